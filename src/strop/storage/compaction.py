"""Rewrites vector files: without unused rows, without damaged ones, or with another type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, as_floats, ranges
from strop.errors import IndexDamaged
from strop.storage.catalog import Catalog
from strop.storage.ledger import VectorFile
from strop.storage.vectors import (
    Rows,
    Sums,
    bytes_of,
    cannot_write,
    damaged_rows,
    map_rows,
    row_sums,
    stored_rows,
    sync_folder,
    type_for,
    whole_rows,
)
from strop.types import Progress

_COPIED_BYTES = 64_000_000
"""Bytes, as float32, of the rows that are copied in one step."""


def compact(catalog: Catalog, stored: str | None = None, progress: Progress | None = None) -> None:
    """Rewrite vector files without the rows that nothing refers to.

    With ``stored``, all query vectors get that type; later sets will use it too. If this is
    stopped, some files have the new type and some the old one: the catalog stores the type of each.
    """
    files = catalog.vectors.files()
    dtypes = {file.set_id: file.dtype for file in files.values()}
    if stored is not None:
        for set_ in catalog.sets.all().values():
            dtypes[set_.set_id] = type_for(stored, set_.settings["source"])
        catalog.settings.put(query_vectors=stored)
    to_rewrite = [
        file
        for file in files.values()
        if file.rows > file.live or file.dtype != dtypes[file.set_id]
    ]
    for at, file in enumerate(to_rewrite, 1):
        spans = catalog.vectors.spans(file.set_id)
        for first, behind, owners in damage(catalog, file, spans):
            if len(owners):
                raise IndexDamaged(
                    f"{catalog.folder}/vectors/{file.name} is damaged in rows {first:,} to "
                    f"{behind - 1:,}. Repair it first: strop check {catalog.folder} --repair"
                )
        rewrite(catalog, file, dtypes[file.set_id])
        if progress is not None:
            progress("compacting", at, len(to_rewrite))


def damage(
    catalog: Catalog, file: VectorFile, spans: NDArray[np.int64]
) -> Iterator[tuple[int, int, Ints]]:
    """Yield ranges of damaged rows of a file: first, end (exclusive), numbers of the documents."""
    sums = catalog.vectors.checksums(file.set_id)[: file.rows]
    damaged = damaged_rows(*catalog.vector_file(file), sums)
    if len(sums) < file.rows:
        damaged.append((len(sums), file.rows))
    for first, behind in damaged:
        yield first, behind, spans[(spans[:, 1] < behind) & (spans[:, 1] + spans[:, 2] > first), 0]


def rewrite(
    catalog: Catalog, file: VectorFile, dtype: str, damaged: list[int] | None = None
) -> None:
    """Copy the rows in use to a new file, in the order of documents, and switch to that file.

    Its rows are of the type ``dtype``. The vectors of the documents ``damaged`` are left out and
    wait to be recomputed. Readers of the old file keep it until they read the catalog again.
    """
    old, row = catalog.vector_file(file)
    new = old.with_name(file.renamed(dtype))
    spans = catalog.vectors.spans(file.set_id)
    spans = spans[~np.isin(spans[:, 0], damaged or [])]
    start, count = spans[:, 1].copy(), spans[:, 2]
    spans[:, 1] = np.cumsum(count) - count
    rows = map_rows(old, min(file.rows, whole_rows(old, row)), row)
    try:
        sums = copy_rows(rows, start, count, new, None if dtype == file.dtype else dtype)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise cannot_write(catalog.folder, error) from error
    del rows
    with catalog.writing():
        if damaged:
            catalog.sets.forget(file.set_id, damaged)
        catalog.vectors.move(file, new.name, dtype, spans, sums)
    with suppress(OSError):  # if a reader has it open, a later writer deletes it
        old.unlink()


def copy_rows(rows: Rows, start: Ints, count: Ints, path: Path, dtype: str | None) -> Sums:
    """Write spans of rows to a new file without gaps; return the file's checksums.

    The rows are converted to the type ``dtype``, if one is given.
    """
    sums, written, at = [np.empty(0, np.uint32)], 0, 0
    ends = np.cumsum(count)
    path.parent.mkdir(exist_ok=True)
    with open(path, "w+b") as file:
        while at < len(start):
            max_rows = written + max(1, _COPIED_BYTES // (4 * rows.shape[1]))
            end = max(at + 1, int(np.searchsorted(ends, max_rows, "right")))
            batch = rows[ranges(start[at:end], count[at:end])]
            if dtype is not None:
                batch = stored_rows(as_floats(batch), dtype)
            file.write(bytes_of(batch))
            sums.append(row_sums(batch))
            written, at = written + len(batch), end
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return np.concatenate(sums)
