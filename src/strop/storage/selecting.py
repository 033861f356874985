"""Which documents a filter selects, in any store that can tell which pass one test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Protocol

import numpy as np

from strop.common.arrays import Ints
from strop.filters import Filter, Ids, Test


class Values(Protocol):
    """Where a store has the values of metadata: which documents pass a test, by number."""

    def every(self) -> Ints:
        """Return the numbers of all documents, ascending."""

    def with_ids(self, ids: Sequence[str]) -> Ints:
        """Return the numbers of the documents with these ids, ascending."""

    def passing(self, test: Test) -> Ints:
        """Return the numbers of the documents that pass, ascending."""


def select(filter_: Filter, values: Values) -> Ints:
    """Return the numbers of the documents that match, ascending."""
    if isinstance(filter_, Test):
        return values.passing(filter_)
    if isinstance(filter_, Ids):
        return values.with_ids(filter_.ids)
    parts = [select(part, values) for part in filter_.parts]
    if filter_.op == "and":
        both = partial(np.intersect1d, assume_unique=True)
        return reduce(both, parts) if parts else values.every()
    either: Ints = reduce(np.union1d, parts, np.empty(0, np.int64))
    return either if filter_.op == "or" else np.setdiff1d(values.every(), either, True)
