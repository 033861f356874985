"""Writes vector files anew: without unused rows, without damaged ones, or with another type."""

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

_COPIED_AT_ONCE = 64_000_000


def compact(catalog: Catalog, stored: str | None = None, progress: Progress | None = None) -> None:
    """Write vector files anew without the rows that nothing refers to.

    With ``stored``, all query vectors get that form, as will those of sets to come. If it is
    stopped, some files have it and some do not: the catalog keeps the type of each.
    """
    files = catalog.vectors.files()
    wanted = {file.set_id: file.dtype for file in files.values()}
    if stored is not None:
        for set_ in catalog.sets.all().values():
            wanted[set_.set_id] = type_for(stored, set_.settings["source"])
        catalog.settings.put(query_vectors=stored)
    changing = [
        file
        for file in files.values()
        if file.rows > file.live or file.dtype != wanted[file.set_id]
    ]
    for at, file in enumerate(changing, 1):
        spans = catalog.vectors.spans(file.set_id)
        for first, behind, owners in damage(catalog, file, spans):
            if len(owners):
                raise IndexDamaged(
                    f"{catalog.folder}/vectors/{file.name} is damaged in rows {first:,} to "
                    f"{behind - 1:,}. Repair it first: strop check {catalog.folder} --repair"
                )
        rewrite(catalog, file, wanted[file.set_id])
        if progress is not None:
            progress("compacting", at, len(changing))


def damage(
    catalog: Catalog, file: VectorFile, spans: NDArray[np.int64]
) -> Iterator[tuple[int, int, Ints]]:
    """Yield the rows of a file that are not what was written: first, behind the last, whose."""
    sums = catalog.vectors.checksums(file.set_id)[: file.rows]
    found = damaged_rows(*catalog.vector_file(file), sums)
    if len(sums) < file.rows:
        found.append((len(sums), file.rows))
    for first, behind in found:
        yield first, behind, spans[(spans[:, 1] < behind) & (spans[:, 1] + spans[:, 2] > first), 0]


def rewrite(
    catalog: Catalog, file: VectorFile, dtype: str, damaged: list[int] | None = None
) -> None:
    """Copy the rows in use to a new file, in the order of documents, and let it take over.

    Its rows are of the type ``dtype``. The vectors of the documents ``damaged`` are left out and
    wait to be made again. Readers of the old file keep it until they look again.
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
    with suppress(OSError):  # where a reader has it open, it goes later
        old.unlink()


def copy_rows(rows: Rows, start: Ints, count: Ints, path: Path, dtype: str | None) -> Sums:
    """Write spans of rows one behind the other; return the new file's checksums.

    They become rows of the type ``dtype``, if one is given.
    """
    sums, written, at = [np.empty(0, np.uint32)], 0, 0
    ends = np.cumsum(count)
    path.parent.mkdir(exist_ok=True)
    with open(path, "w+b") as file:
        while at < len(start):
            most = written + max(1, _COPIED_AT_ONCE // (4 * rows.shape[1]))
            end = max(at + 1, int(np.searchsorted(ends, most, "right")))
            part = rows[ranges(start[at:end], count[at:end])]
            if dtype is not None:
                part = stored_rows(as_floats(part), dtype)
            file.write(bytes_of(part))
            sums.append(row_sums(part))
            written, at = written + len(part), end
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return np.concatenate(sums)
