"""Numba's compiler, with its results kept on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*, reorder: bool = False) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL.

    With ``reorder``, sums of products may be taken in any order, which lets them run several at
    a time; NaN and infinity keep their meaning.
    """
    options: dict[str, Any] = {"nogil": True}
    if reorder:
        options["fastmath"] = {"reassoc", "contract", "arcp", "nsz"}

    def compile_(function: F) -> F:
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder to keep it in can be written: compile anew each time
            return njit(**options)(function)  # type: ignore[no-any-return]

    return compile_
