"""Numba's compiler with its cache on disk, and two processor instructions that numba lacks.

Only ``search/`` and ``references/`` use it. Numba writes the cache next to the source file; if
that folder is read-only it uses NUMBA_CACHE_DIR or the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*, reorder: bool = False, inline: bool = False) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL.

    ``reorder`` lets the compiler add in any order, and so use vector instructions; NaN and
    infinity keep their meaning. ``inline`` copies the function into its callers.

    It is compiled again, which takes seconds, for each combination of argument types. So all calls
    must pass a float for the same arguments, and arrays that are all contiguous, and either all
    writeable or all read-only.
    """
    options: dict[str, Any] = {"nogil": True, "inline": "always" if inline else "never"}
    if reorder:
        options["fastmath"] = {"reassoc", "contract", "arcp", "nsz"}

    def compile_(function: F) -> F:
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder for the cache can be written: compile in each process
            return njit(**options)(function)  # type: ignore[no-any-return]

    return compile_


def _bits_set(context: Any, word: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: list[Any]) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


def _prefetch_line(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, arguments: list[Any]) -> Any:
        pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [pointer] + [int32] * 3)
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), signature)
        # For reading (0), to stay in all caches (3), data (1).
        builder.call(
            prefetch, [builder.inttoptr(arguments[0], pointer), int32(0), int32(3), int32(1)]
        )
        return context.get_dummy_value()

    return types.void(types.intp), generate


bits_set: Callable[[Any], Any] = cast(Any, intrinsic(_bits_set))
"""Return the number of bits set in a word (uint64)."""
prefetch_line: Callable[[int], None] = cast(Any, intrinsic(_prefetch_line))
"""Prefetch the cache line at an address."""


@compiled(inline=True)
def copy_to(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array (n,) to another. Numba takes seconds to compile ``target[:] = source``."""
    for at in range(len(source)):
        target[at] = source[at]


@compiled()
def prefetch_rows(array: NDArray[Any], first: int, last: int) -> None:
    """Prefetch the rows ``first:last`` of an array."""
    row_bytes = array.strides[0]
    begin = array.ctypes.data
    for address in range(begin + first * row_bytes, begin + last * row_bytes, 64):
        prefetch_line(address)
