"""Cells, the one shuffle by cell, and the references of each document.

Documents are grouped into cells by their vectors, and neighbouring cells into buckets. A document's
neighbours are in the cells nearest to it, so the task of a bucket reads few other buckets. All its
data are in memory at once: one pass finds the neighbours and chooses the references.
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
"""Vectors per cell in the sample that determines the centres."""
READ_AT_ONCE = 8
"""Buckets in memory at a time, besides the task's own bucket."""
SAMPLED = 256
"""Documents whose exact neighbours determine how many cells are probed."""
TEXTS = ("row", "id", "title", "text")


def find_cells(
    folder: Path, name: str, *, shards: Sequence[str], cells: int, buckets: int, documents: int
) -> TaskResult:
    """Compute the centres of cells from a sample of all vectors, and group them into buckets."""
    step = max(1, documents // (cells * SAMPLE_PER_CELL))
    samples = (_unit_vectors(folder, shard)[1][::step] for shard in shards)
    centres = rough_centres(np.concatenate(list(samples)), cells)
    # Adjacent cells in this order are neighbours in space, so buckets are runs of it.
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
        bucket_texts = texts.take(inside)
        columns: Columns = {column: bucket_texts[column] for column in TEXTS}
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

    tables = [
        read_table(folder / "buckets" / f"{shard}.parquet", columns, buckets) for shard in shards
    ]
    table = pyarrow.concat_tables(tables)
    return table.take(np.argsort(rows_in(table), kind="stable"))


# -- references -------------------------------------------------------------------------------


def count_probes(
    folder: Path, name: str, *, shards: Sequence[str], neighbors: int, recall: float
) -> TaskResult:
    """Find how many cells must be probed to find a share ``recall`` of the nearest documents.

    This is computed from the exact neighbours of a sample: each lies in a cell, and this cell has
    a place in the document's order of cells, by distance.
    """
    cells, sample = Cells.read(folder), _sample(folder, shards)
    best = np.empty((len(sample), 0), np.float32)
    neighbor_cells = np.empty((len(sample), 0), np.int64)
    for shard in shards:
        table = read_table(folder / "buckets" / f"{shard}.parquet", ["cell", "vector"])
        products, cell_of = sample @ vectors_in(table["vector"]).T, table["cell"].to_numpy()
        nearest = largest(products, neighbors + 1)
        best = np.concatenate([best, np.take_along_axis(products, nearest, 1)], axis=1)
        neighbor_cells = np.concatenate([neighbor_cells, cell_of[nearest]], axis=1)
        kept = largest(best, neighbors + 1)
        best = np.take_along_axis(best, kept, 1)
        neighbor_cells = np.take_along_axis(neighbor_cells, kept, 1)
    order = probed_cells(sample, cells.centres, len(cells.centres))
    place_of_cell = np.argsort(order, axis=1)  # for each document
    others = neighbor_cells[:, 1:]  # the first neighbour is the document itself
    places = np.sort(np.take_along_axis(place_of_cell, others, 1).ravel())
    index = min(len(places) - 1, int(np.ceil(recall * len(places))))
    probes = int(places[index]) + 1 if len(places) else 1
    reached = float((places < probes).mean()) if len(places) else 1.0
    columns = {"probes": [probes], "recall": [reached]}
    file = write_table(folder / "probes" / f"{name}.parquet", columns)
    return TaskResult(
        (file,), counts={"probes": probes, "recall": reached, "cells": len(cells.centres)}
    )


def _sample(folder: Path, shards: Sequence[str]) -> Vectors:
    """Return some vectors from all parts of the corpus."""
    sampled_shards = [
        shards[at] for at in np.unique(np.linspace(0, len(shards) - 1, 16).astype(int))
    ]
    per_shard, samples = -(-SAMPLED // len(sampled_shards)), []
    for shard in sampled_shards:
        vectors = _unit_vectors(folder, shard)[1]
        vectors = vectors[nonzero_rows(vectors)]
        samples.append(vectors[:: max(1, len(vectors) // per_shard)][:per_shard])
    return np.concatenate(samples)


def find_references(
    folder: Path, name: str, *, shards: Sequence[str], settings: dict[str, Any], method: str
) -> TaskResult:
    """Find the neighbours of a bucket's documents and choose their references."""
    reference_settings, cells = ReferenceSettings.from_json(settings), Cells.read(folder)
    own = Points.read(folder, shards, [int(name)])
    if method == "exact":
        points = Points.read(folder, shards, np.unique(cells.bucket_of).tolist())
        queried, usable = np.searchsorted(points.rows, own.rows), nonzero_rows(points.vectors)
        near = neighbors_of(points.vectors, usable, queried, reference_settings.neighbors)
        counts = {"compared": len(queried) * len(points.rows), "read": len(points.rows)}
    else:
        probes = read_table(folder / "probes" / "all.parquet")["probes"][0].as_py()
        probed = probed_cells(own.vectors, cells.centres, probes)
        needed = np.unique(cells.bucket_of[np.unique(probed)]).tolist()
        batches = (
            Points.read(folder, shards, needed[first : first + READ_AT_ONCE])
            for first in range(0, len(needed), READ_AT_ONCE)
        )
        points, near, counts = _near_in_cells(own, probed, reference_settings.neighbors, batches)
    chosen = choose_references(points.vectors, near.rows, near.similarities, reference_settings)
    neighbor_counts = (near.rows >= 0).sum(axis=1)
    reference_counts = (chosen.rows >= 0).sum(axis=1)
    columns = {
        "row": own.rows,
        "neighbors": list_column(points.rows[near.rows], neighbor_counts),
        "similarities": list_column(near.similarities, neighbor_counts),
        "references": list_column(points.rows[chosen.rows], reference_counts),
        "buckets": list_column(cells.bucket_of[points.cells[chosen.rows]], reference_counts),
        "reference_similarities": list_column(chosen.similarities, reference_counts),
        "cluster_sizes": list_column(chosen.cluster_sizes, reference_counts),
        "silhouette": chosen.silhouettes,
    }
    file = write_table(folder / "references" / f"{name}.parquet", columns)
    return TaskResult((file,), counts={**counts, "references": int(reference_counts.sum())})


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

    def take(self, selection: NDArray[Any]) -> Points:
        """Return the points of an index array or mask."""
        return Points(self.rows[selection], self.cells[selection], self.vectors[selection])

    def merged(self, other: Points) -> Points:
        """Return these points and those of ``other`` that are not among them, in order."""
        other = other.take(~np.isin(other.rows, self.rows))
        rows = np.concatenate([self.rows, other.rows])
        cells = np.concatenate([self.cells, other.cells])
        vectors = np.concatenate([self.vectors, other.vectors])
        return Points(rows, cells, vectors).take(np.argsort(rows, kind="stable"))


def _near_in_cells(
    own: Points, probed: NDArray[np.int32], neighbors: int, batches: Iterable[Points]
) -> tuple[Points, Neighbors, dict[str, int]]:
    """Return the neighbours of a bucket's documents; ``batches`` are points of several buckets.

    The lists are places in the returned points. Only points on a list stay in memory.
    """
    points, counts = own, {"compared": 0, "read": 0}
    listed = np.empty((len(own.rows), 0), np.int64)
    similarities = np.empty((len(own.rows), 0), np.float32)
    for batch in batches:
        candidates = batch.take(np.isin(batch.cells, probed))
        sizes = np.bincount(candidates.cells, minlength=int(probed.max(initial=0)) + 1)
        counts["compared"] += int(sizes[probed].sum())
        counts["read"] += len(batch.rows)
        joined = candidates.merged(own)
        # A document of this bucket is a neighbour only if its own cell is compared.
        cell_of = np.where(np.isin(joined.rows, candidates.rows), joined.cells, -1).astype(np.int32)
        queried, usable = np.searchsorted(joined.rows, own.rows), nonzero_rows(joined.vectors)
        near = neighbors_in_cells(joined.vectors, usable, queried, neighbors, cell_of, probed)
        rows = np.where(near.rows >= 0, joined.rows[near.rows], -1)
        rows = np.concatenate([listed, rows], axis=1)
        scores = np.concatenate([similarities, near.similarities], axis=1)
        order = np.lexsort((rows, -np.where(rows >= 0, scores, -np.inf)), axis=1)[:, :neighbors]
        listed = np.take_along_axis(rows, order, 1)
        similarities = np.take_along_axis(scores, order, 1)
        points = points.merged(joined)
        points = points.take(np.isin(points.rows, np.union1d(own.rows, listed)))
    places = np.where(listed >= 0, np.searchsorted(points.rows, listed), -1)
    return points, Neighbors(places, similarities), counts
