"""Writes vector files anew: without unused rows, without damaged ones, or with another type."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, as_floats, ranges
from strop.errors import IndexDamaged
from strop.storage.catalog import Catalog
from strop.storage.check import damage
from strop.storage.ledger import VectorFile
from strop.storage.vectors import (
    Sums,
    bytes_of,
    cannot_write,
    map_rows,
    row_sums,
    row_type,
    stored_rows,
    sync_folder,
    type_for,
    whole_rows,
)
from strop.types import Progress

_COPIED_AT_ONCE = 64_000_000


def compact(
    catalog: Catalog,
    folder: Path,
    dim: int,
    stored: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write vector files anew without the rows that nothing refers to.

    With ``stored``, all become of the types of that way to store, as will be sets to come.
    Stopped in between, some files are: each says of itself what it is.
    """
    sources = {set_.set_id: set_.settings["source"] for set_ in catalog.sets.all().values()}
    wanted = {file.set_id: file.dtype for file in catalog.vectors.files().values()}
    if stored is not None:
        wanted |= {set_id: type_for(stored, source) for set_id, source in sources.items()}
        catalog.settings.put(query_vectors=stored)
    files = [
        file
        for file in catalog.vectors.files().values()
        if file.rows > file.live or file.dtype != wanted[file.set_id]
    ]
    for at, file in enumerate(files):
        path, row = folder / "vectors" / file.name, row_type(file.dtype, dim)
        spans = catalog.vectors.spans(file.set_id)
        for first, behind in damage(catalog, path, row, file):
            if ((spans[:, 1] < behind) & (spans[:, 1] + spans[:, 2] > first)).any():
                raise IndexDamaged(
                    f"{path} is damaged in rows {first:,} to {behind - 1:,}. Mend it first: "
                    f"strop check {folder} --repair"
                )
        rewrite(catalog, folder, dim, file, wanted[file.set_id])
        if progress is not None:
            progress("compacting", at + 1, len(files))


def rewrite(
    catalog: Catalog,
    folder: Path,
    dim: int,
    file: VectorFile,
    dtype: str,
    bad: list[int] | None = None,
) -> None:
    """Copy the rows in use to a new file, in the order of documents, and let it take over.

    Its rows are of the type ``dtype``. The vectors of the documents ``bad`` are left out and wait
    to be made again. Readers of the old file keep it until they look again.
    """
    row = row_type(file.dtype, dim)
    old, name = folder / "vectors" / file.name, file.renamed(dtype)
    spans = catalog.vectors.spans(file.set_id)
    spans = spans[~np.isin(spans[:, 0], bad or [])]
    start, count = spans[:, 1].copy(), spans[:, 2]
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    rows = map_rows(old, min(file.rows, whole_rows(old, row)), row)
    try:
        sums = copy_rows(
            rows, start, count, folder / "vectors" / name, 4 * dim,
            None if dtype == file.dtype else dtype,
        )  # fmt: skip
    except OSError as error:
        with suppress(OSError):
            (folder / "vectors" / name).unlink()
        raise cannot_write(folder, error) from error
    del rows
    spans[:, 1] = ends - count
    with catalog.writing():
        if bad:
            catalog.sets.forget(file.set_id, bad)
        catalog.vectors.move(file, name, dtype, total, spans, sums)
    with suppress(OSError):  # where a reader holds it, it goes later
        old.unlink()


def copy_rows(
    rows: NDArray[Any], start: Ints, count: Ints, path: Path, row_bytes: int, dtype: str | None
) -> Sums:
    """Write spans of rows one behind the other; return the new file's checksums.

    They become rows of the type ``dtype``, if one is given; as floats they take ``row_bytes``.
    """
    sums, written = [np.empty(0, np.uint32)], 0
    ends = np.cumsum(count)
    path.parent.mkdir(exist_ok=True)
    with open(path, "w+b") as file:
        at = 0
        while at < len(start):
            most = written + max(1, _COPIED_AT_ONCE // row_bytes)
            end = max(at + 1, int(np.searchsorted(ends, most, "right")))
            part = rows[ranges(start[at:end], count[at:end])]
            if dtype is not None:
                part = stored_rows(as_floats(part), dtype)
            file.write(bytes_of(part))
            sums.append(row_sums(part))
            written += len(part)
            at = end
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return np.concatenate(sums)
