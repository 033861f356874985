"""Numba's compiler, with its results kept on disk where that is possible.

And two instructions of processors that numba has no name for.
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

    With ``reorder``, sums of products may be taken in any order, which lets them run several at
    a time; NaN and infinity keep their meaning. With ``inline`` it becomes part of its callers.
    """
    options: dict[str, Any] = {"nogil": True, "inline": "always" if inline else "never"}
    if reorder:
        options["fastmath"] = {"reassoc", "contract", "arcp", "nsz"}

    def compile_(function: F) -> F:
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder to keep it in can be written: compile anew each time
            return njit(**options)(function)  # type: ignore[no-any-return]

    return compile_


def _bits_set(context: Any, word: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, given: list[Any]) -> Any:
        return builder.ctpop(given[0])

    return types.uint64(types.uint64), generate


def _line_soon(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, given: list[Any]) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer] + [number] * 3)
        read = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        builder.call(read, [builder.inttoptr(given[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


bits_set: Callable[[Any], Any] = cast(Any, intrinsic(_bits_set))
"""Return how many bits of a word (uint64) are set."""
line_soon: Callable[[int], None] = cast(Any, intrinsic(_line_soon))
"""Let the processor begin to read what stands at an address."""


@compiled()
def read_soon(array: NDArray[Any], first: int, last: int) -> None:
    """Let the processor begin to read the rows ``first:last`` of an array, for later."""
    wide = array.strides[0]
    begin = array.ctypes.data
    for address in range(begin + first * wide, begin + last * wide, 64):
        line_soon(address)
