"""Cells, the one shuffle by cell, and the references of each document.

Documents are grouped into cells by their vectors, and neighbouring cells into buckets. A document's
neighbours are in the cells nearest to it, so the task of a bucket reads few other buckets, and all
that it needs is in memory at once: neighbours are found and references chosen in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, unit_rows
from strop.distributed.shards import (
    Columns,
    TaskResult,
    list_column,
    read_table,
    rows_in,
    vector_column,
    vectors_in,
    write_table,
)
from strop.references.neighbors import (
    Neighbors,
    largest,
    nearest_centres,
    neighbors_in_cells,
    neighbors_of,
    nonzero_rows,
    probed_cells,
    rough_centres,
)
from strop.references.selection import choose_references
from strop.references.settings import ReferenceSettings
from strop.types import Vectors

SAMPLE_PER_CELL = 40
READ_AT_ONCE = 8
"""Buckets in memory at a time beside a task's own."""
SAMPLED = 256
"""Documents whose exact neighbours decide how many cells are probed."""
TEXTS = ("row", "id", "title", "text")


def find_cells(
    folder: Path, name: str, *, shards: Sequence[str], cells: int, buckets: int, documents: int
) -> TaskResult:
    """Find the centres of cells from a sample of all vectors, and group them into buckets."""
    step = max(1, documents // (cells * SAMPLE_PER_CELL))
    parts = (_unit_vectors(folder, shard)[1][::step] for shard in shards)
    centres = rough_centres(np.concatenate(list(parts)), cells)
    # Cells side by side in this order are neighbours, so buckets are runs of it.
    coarse = nearest_centres(centres, rough_centres(centres, max(1, int(np.sqrt(cells)))))
    bucket_of = np.empty(cells, np.int32)
    bucket_of[np.argsort(coarse, kind="stable")] = np.arange(cells) * buckets // cells
    columns = {"centre": vector_column(centres), "bucket": bucket_of}
    file = write_table(folder / "cells" / f"{name}.parquet", columns)
    return TaskResult((file,), counts={"cells": cells, "buckets": buckets, "documents": documents})


@dataclass(frozen=True)
class Cells:
    """Centres (cells, dim) and the bucket of each cell."""

    centres: Vectors
    bucket_of: NDArray[np.int32]

    @classmethod
    def read(cls, folder: Path) -> Cells:
        """Read what ``find_cells`` wrote."""
        table = read_table(folder / "cells" / "centres.parquet")
        return cls(vectors_in(table["centre"]), table["bucket"].to_numpy())


def fill_buckets(folder: Path, name: str) -> TaskResult:
    """Sort a shard's documents and vectors by bucket, each bucket a row group."""
    cells = Cells.read(folder)
    rows, vectors = _unit_vectors(folder, name)
    texts = read_table(folder / "documents" / f"{name}.parquet", TEXTS)
    cell_of = nearest_centres(vectors, cells.centres).astype(np.int32)
    bucket_of = cells.bucket_of[cell_of]
    labels, groups = np.unique(bucket_of).tolist(), list[Columns]()
    for bucket in labels:
        inside = np.flatnonzero(bucket_of == bucket)
        part = texts.take(inside)
        columns: Columns = {column: part[column] for column in TEXTS}
        groups.append(columns | {"cell": cell_of[inside], "vector": vector_column(vectors[inside])})
    assert (rows == rows_in(texts)).all()
    file = write_table(folder / "buckets" / f"{name}.parquet", *groups, labels=labels)
    return TaskResult((file,))


def _unit_vectors(folder: Path, name: str) -> tuple[Ints, Vectors]:
    """Return the rows and unit vectors of a shard, scaled as an index scales them."""
    table = read_table(folder / "vectors" / f"{name}.parquet")
    return rows_in(table), unit_rows(vectors_in(table["vector"]))


def read_buckets(
    folder: Path, shards: Sequence[str], buckets: Sequence[int], columns: Sequence[str]
) -> Any:
    """Return the documents of buckets, in the order of the corpus."""
    import pyarrow

    parts = [
        read_table(folder / "buckets" / f"{shard}.parquet", columns, buckets) for shard in shards
    ]
    table = pyarrow.concat_tables(parts)
    return table.take(np.argsort(rows_in(table), kind="stable"))


# -- references -------------------------------------------------------------------------------


def count_probes(
    folder: Path, name: str, *, shards: Sequence[str], neighbors: int, recall: float
) -> TaskResult:
    """Find how many cells must be probed to find a share ``recall`` of the nearest documents.

    The exact neighbours of a sample tell: each lies in a cell, and the document has that cell at
    some place in its order of cells.
    """
    cells, sample = Cells.read(folder), _sample(folder, shards)
    best = np.empty((len(sample), 0), np.float32)
    homes = np.empty((len(sample), 0), np.int64)
    for shard in shards:
        table = read_table(folder / "buckets" / f"{shard}.parquet", ["cell", "vector"])
        products, cell_of = sample @ vectors_in(table["vector"]).T, table["cell"].to_numpy()
        nearest = largest(products, neighbors + 1)
        best = np.concatenate([best, np.take_along_axis(products, nearest, 1)], axis=1)
        homes = np.concatenate([homes, cell_of[nearest]], axis=1)
        kept = largest(best, neighbors + 1)
        best, homes = np.take_along_axis(best, kept, 1), np.take_along_axis(homes, kept, 1)
    order = probed_cells(sample, cells.centres, len(cells.centres))
    place = np.argsort(order, axis=1)  # of each cell in the order of the document
    places = np.sort(np.take_along_axis(place, homes[:, 1:], 1).ravel())  # not itself
    last = min(len(places) - 1, int(np.ceil(recall * len(places))))
    probes = int(places[last]) + 1 if len(places) else 1
    found = float((places < probes).mean()) if len(places) else 1.0
    columns = {"probes": [probes], "recall": [found]}
    file = write_table(folder / "probes" / f"{name}.parquet", columns)
    return TaskResult(
        (file,), counts={"probes": probes, "recall": found, "cells": len(cells.centres)}
    )


def _sample(folder: Path, shards: Sequence[str]) -> Vectors:
    """Return some vectors from all over the corpus."""
    few = [shards[at] for at in np.unique(np.linspace(0, len(shards) - 1, 16).astype(int))]
    most, parts = -(-SAMPLED // len(few)), []
    for shard in few:
        vectors = _unit_vectors(folder, shard)[1]
        vectors = vectors[nonzero_rows(vectors)]
        parts.append(vectors[:: max(1, len(vectors) // most)][:most])
    return np.concatenate(parts)


def choose(
    folder: Path, name: str, *, shards: Sequence[str], settings: dict[str, Any], method: str
) -> TaskResult:
    """Find the neighbours of a bucket's documents and choose their references."""
    wished, cells = ReferenceSettings.from_json(settings), Cells.read(folder)
    own = Points.read(folder, shards, [int(name)])
    if method == "exact":
        points = Points.read(folder, shards, np.unique(cells.bucket_of).tolist())
        wanted, usable = np.searchsorted(points.rows, own.rows), nonzero_rows(points.vectors)
        near = neighbors_of(points.vectors, usable, wanted, wished.neighbors)
        counts = {"compared": len(wanted) * len(points.rows), "read": len(points.rows)}
    else:
        probes = read_table(folder / "probes" / "all.parquet")["probes"][0].as_py()
        probed = probed_cells(own.vectors, cells.centres, probes)
        needed = np.unique(cells.bucket_of[np.unique(probed)]).tolist()
        parts = (
            Points.read(folder, shards, needed[first : first + READ_AT_ONCE])
            for first in range(0, len(needed), READ_AT_ONCE)
        )
        points, near, counts = _near_in_cells(own, probed, wished.neighbors, parts)
    chosen = choose_references(points.vectors, near.rows, near.similarities, wished)
    listed, taken = (near.rows >= 0).sum(axis=1), (chosen.rows >= 0).sum(axis=1)
    columns = {
        "row": own.rows,
        "neighbors": list_column(points.rows[near.rows], listed),
        "similarities": list_column(near.similarities, listed),
        "references": list_column(points.rows[chosen.rows], taken),
        "buckets": list_column(cells.bucket_of[points.cells[chosen.rows]], taken),
        "reference_similarities": list_column(chosen.similarities, taken),
        "cluster_sizes": list_column(chosen.cluster_sizes, taken),
        "silhouette": chosen.silhouettes,
    }
    file = write_table(folder / "references" / f"{name}.parquet", columns)
    return TaskResult((file,), counts={**counts, "references": int(taken.sum())})


@dataclass(frozen=True)
class Points:
    """Documents by row, in the order of the corpus: their cells and unit vectors."""

    rows: Ints
    cells: NDArray[np.int32]
    vectors: Vectors

    @classmethod
    def read(cls, folder: Path, shards: Sequence[str], buckets: Sequence[int]) -> Points:
        """Return the documents of buckets."""
        table = read_buckets(folder, shards, buckets, ("row", "cell", "vector"))
        return cls(rows_in(table), table["cell"].to_numpy(), vectors_in(table["vector"]))

    def take(self, which: NDArray[Any]) -> Points:
        """Return some of them."""
        return Points(self.rows[which], self.cells[which], self.vectors[which])

    def and_others(self, more: Points) -> Points:
        """Return these and those of ``more`` that are not among them, in order."""
        more = more.take(~np.isin(more.rows, self.rows))
        rows = np.concatenate([self.rows, more.rows])
        cells = np.concatenate([self.cells, more.cells])
        vectors = np.concatenate([self.vectors, more.vectors])
        return Points(rows, cells, vectors).take(np.argsort(rows, kind="stable"))


def _near_in_cells(
    own: Points, probed: NDArray[np.int32], neighbors: int, parts: Iterable[Points]
) -> tuple[Points, Neighbors, dict[str, int]]:
    """Return the neighbours of a bucket's documents, from some buckets after the other.

    The lists are places in the points returned beside them. Only what is on a list stays in memory.
    """
    points, counts = own, {"compared": 0, "read": 0}
    listed = np.empty((len(own.rows), 0), np.int64)
    similarities = np.empty((len(own.rows), 0), np.float32)
    for part in parts:
        others = part.take(np.isin(part.cells, probed))
        sizes = np.bincount(others.cells, minlength=int(probed.max(initial=0)) + 1)
        counts["compared"] += int(sizes[probed].sum())
        counts["read"] += len(part.rows)
        both = others.and_others(own)
        # A document of this bucket is a neighbour only when its own cell is compared.
        cell_of = np.where(np.isin(both.rows, others.rows), both.cells, -1).astype(np.int32)
        wanted, usable = np.searchsorted(both.rows, own.rows), nonzero_rows(both.vectors)
        near = neighbors_in_cells(both.vectors, usable, wanted, neighbors, cell_of, probed)
        rows = np.where(near.rows >= 0, both.rows[near.rows], -1)
        rows = np.concatenate([listed, rows], axis=1)
        scores = np.concatenate([similarities, near.similarities], axis=1)
        order = np.lexsort((rows, -np.where(rows >= 0, scores, -np.inf)), axis=1)[:, :neighbors]
        listed = np.take_along_axis(rows, order, 1)
        similarities = np.take_along_axis(scores, order, 1)
        points = points.and_others(both)
        points = points.take(np.isin(points.rows, np.union1d(own.rows, listed)))
    places = np.where(listed >= 0, np.searchsorted(points.rows, listed), -1)
    return points, Neighbors(places, similarities), counts
