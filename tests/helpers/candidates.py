"""An effort for small indexes."""

from __future__ import annotations

from typing import Any

from strop.search import candidates


def few(k: int, measured: Any, known: bool = True) -> candidates.Effort:
    """As ``Effort.of``, for a small index."""
    first, second, third, fourth = measured.tolist()[:4]
    most = 40 * k, 10 * k, 9 * k, 8 * k
    if measured[4] == 4:  # much, to measure with
        most = 400 * k, 40 * k, 36 * k, 32 * k
    return candidates.Effort(k, (first, second, third, fourth), most, (1.0, 1.0))
