"""What a reader sees of an index at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strop.catalog import Catalog
from strop.kernels import Ints
from strop.types import Vectors
from strop.vectors import map_rows, stored_as, vector_file


@dataclass(frozen=True)
class Spans:
    """Where each document's vectors stand in a file: rows ``start[j] : start[j] + count[j]``."""

    vectors: Vectors
    start: Ints
    count: Ints


@dataclass(frozen=True)
class Snapshot:
    """What a reader sees: the documents that have vectors, in order, and their query lists."""

    version: int
    numbers: Ints
    documents: Spans
    sets: Mapping[str, Spans]


def load_snapshot(catalog: Catalog, folder: Path, dim: int, version: int) -> Snapshot:
    """Read where every vector stands, and map the files; vectors themselves are not read."""
    with catalog.reading():
        numbers, rows, ones = catalog.spans(None).T
        own = map_rows(vector_file(folder, None), catalog.document_rows(), dim)
        sets = {}
        for set_ in catalog.sets().values():
            file = vector_file(folder, set_.set_id, stored_as(set_.settings))
            vectors = map_rows(file, set_.rows, dim)
            whose, start, count = catalog.spans(set_).T
            # A list may be there before its document's vector, and is then left out.
            places = np.searchsorted(numbers, whose)
            known = places < len(numbers)
            known[known] = numbers[places[known]] == whose[known]
            starts, counts = np.zeros_like(numbers), np.zeros_like(numbers)
            starts[places[known]] = start[known]
            counts[places[known]] = count[known]
            sets[set_.name] = Spans(vectors, starts, counts)
    return Snapshot(version, numbers, Spans(own, rows, ones), sets)
