"""Append-only files of rows, read through memory maps.

A file contains only rows of equal size, float32 or int8. All vectors have unit length, so a row
needs no scale: ``arrays.as_floats`` normalizes it.

The catalog stores the number of committed rows, in the same transaction as the spans that refer to
them. Bytes after these rows were left by a writer that was stopped; they are never read, and the
next writer overwrites them. Committed rows never change, so a reader's map stays valid while a
writer appends. The catalog stores a checksum of the bytes of every row.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadIndex, BadInput, DiskFull, IndexDamaged
from strop.types import Vectors

Rows = NDArray[Any]
"""Rows with their stored type: ``rows.nbytes // len(rows)`` bytes each."""
Sums = NDArray[np.uint32]

_ROWS_PER_READ = 16_384
_TYPES = {"int8": ("i1", "i8"), "float32": ("<f4", "f32")}
"""By name: numpy's type of a component, and the extension of such files."""
VECTOR_FILE = re.compile(r"(documents|queries-[1-9]\d{0,17})(\.[1-9]\d{0,17})?\.(f32|i8)")
"""The names of vector files: set, number of rewrites, type. Never a path."""
STORED = tuple(_TYPES)
"""The types in which an index can store its query vectors."""
DEFAULT_STORED = "int8"
"""The default type of stored query vectors."""


def check_stored(stored: str) -> str:
    """Refuse an unknown type of stored vectors."""
    if stored not in STORED:
        raise BadInput(f"query_vectors {stored!r} is not one of: {', '.join(STORED)}")
    return stored


def type_for(stored: str, source: str) -> str:
    """Return the type of the rows of a query set, by its source; the documents' are float32."""
    return "float32" if source == "augmented" else stored  # augmented texts replace documents


def row_type(dtype: str, dim: int) -> np.dtype[Any]:
    """Return numpy's type of one row of a file, by the name that the catalog stores."""
    return np.dtype((_TYPES[dtype][0], (dim,)))


def file_name(set_id: int, dtype: str) -> str:
    """Return the name of the first file of a set; set 0 is the documents."""
    ending = _TYPES[dtype][1]
    return f"queries-{set_id}.{ending}" if set_id else f"documents.{ending}"


def stored_rows(vectors: Vectors, dtype: str) -> Rows:
    """Return vectors (n, dim) in their stored type."""
    value = np.dtype(_TYPES[dtype][0])
    if value.kind != "i":
        return np.ascontiguousarray(vectors, dtype=value)
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    rows: Rows = np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(value)
    return rows


def cannot_write(index: Path, error: OSError) -> BadIndex:
    """Return the error for an index folder that cannot be written to."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BadIndex(f"{index} cannot be written ({error.strerror}): check its permissions")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (DiskFull if full else BadIndex)(
        f"{index} cannot be written: {error.strerror or error}. What was committed is safe: make "
        f"room, then give the same command again, or go on with strop finish {index}"
    )


def append_rows(path: Path, committed: int, rows: Rows) -> None:
    """Write ``rows`` after the first ``committed`` ones; return when they are on disk."""
    if not path.parent.exists():  # vectors can be recomputed, so the user may delete the folder
        path.parent.mkdir()
        sync_folder(path.parent.parent)
    begin = committed * row_bytes(rows)
    with open(path, "r+b" if path.exists() else "x+b", opener=no_links) as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < begin:
            raise _damaged(path, file.tell(), begin)
        file.seek(begin)
        file.truncate()
        file.write(bytes_of(rows))  # tofile() hides a full disk
        file.flush()
        os.fsync(file.fileno())
    if committed == 0:  # new, or a writer was stopped before it synced the folder
        sync_folder(path.parent)


def map_rows(path: Path, count: int, row: np.dtype[Any]) -> Rows:
    """Return the first ``count`` rows of a file, read-only, without loading them."""
    if count == 0:
        return np.empty(0, row)
    needed = count * row.itemsize
    try:
        # The size of the open file: its name may belong to another file by now.
        with open(path, "rb", opener=no_links) as file:
            size = os.fstat(file.fileno()).st_size
            if size >= needed:
                # As a plain array: each access to a memmap costs microseconds.
                return np.asarray(np.memmap(file, dtype=row, mode="r", shape=(count,)))
    except FileNotFoundError:
        size = 0
    raise _damaged(path, size, needed)


def no_links(path: str, flags: int) -> int:
    """Open a file, as an ``opener``; refuse a link, which may lead out of the index."""
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise IndexDamaged(
                f"{path} is a link, which may lead out of the index: put the file itself there"
            ) from error
        raise


def whole_rows(path: Path, row: np.dtype[Any]) -> int:
    """Return the number of complete rows in a file; 0 if it is missing."""
    return path.stat().st_size // row.itemsize if path.exists() else 0


def row_bytes(rows: Rows) -> int:
    """Return the size of one row of (n, dim)."""
    return int(rows.shape[1] * rows.itemsize)


def bytes_of(rows: Rows) -> memoryview:
    """Return the bytes of rows, as they are written to a file."""
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


# -- checksums -------------------------------------------------------------------------------


def row_sums(rows: Rows) -> Sums:
    """Return the CRC-32 of each row."""
    data, size = bytes_of(rows), row_bytes(rows)
    crc = zlib.crc32
    return np.array([crc(data[at : at + size]) for at in range(0, len(data), size)], np.uint32)


def damaged_rows(path: Path, row: np.dtype[Any], sums: Sums) -> list[tuple[int, int]]:
    """Read the rows that have checksums; return ranges (first, end exclusive) of damaged rows."""
    good = np.zeros(len(sums), np.bool_)
    with suppress(FileNotFoundError), open(path, "rb", opener=no_links) as file:
        for first in range(0, len(sums), _ROWS_PER_READ):
            expected = sums[first : first + _ROWS_PER_READ]
            try:
                file.seek(first * row.itemsize)
                data = file.read(len(expected) * row.itemsize)
            except OSError:  # the disk cannot read it
                continue
            actual = row_sums(np.frombuffer(data, row, len(data) // row.itemsize))
            good[first : first + len(actual)] = actual == expected[: len(actual)]
    edges = np.flatnonzero(np.diff(np.concatenate([[True], good, [True]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new file's name survives a power cut; not every system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _damaged(path: Path, size: int, needed: int) -> IndexDamaged:
    index = path.parent.parent
    return IndexDamaged(
        f"{path} is cut short: it has {size:,} of {needed:,} bytes. Its vectors can be made again "
        f"from the catalog: strop check {index} --repair"
    )
