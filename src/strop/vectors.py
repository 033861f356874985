"""Append-only files of rows, read through memory maps.

A file holds nothing but rows: float32, float16 or int8, as its ending says. All vectors have unit
length, so an int8 row needs no scale beside it: ``kernels.unit_floats`` reads it as a direction.
 How many of them count is written in the catalog, in the same
transaction as whatever refers to them; bytes behind that are left over from a writer that was
stopped, are never read, and are overwritten by the next one. Committed rows never change, so a
reader's map stays true while a writer appends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadIndex, BadInput, IndexDamaged
from strop.types import Vectors

_ENDINGS = {"float32": ".f32", "float16": ".f16", "int8": ".i8"}
_VALUES: dict[str, np.dtype[Any]] = {
    ".f32": np.dtype("<f4"),
    ".f16": np.dtype("<f2"),
    ".i8": np.dtype("i1"),
}
STORED = tuple(_ENDINGS)
"""How vectors can be stored."""
DEFAULT_STORED = "int8"
"""How query vectors are stored if nothing else is asked for."""


def check_stored(stored: str) -> str:
    """Refuse a way to store vectors that there is not."""
    if stored not in _ENDINGS:
        raise BadInput(f"query vectors cannot be stored as {stored!r}: use {', '.join(STORED)}")
    return stored


def stored_as(settings: Mapping[str, Any]) -> str:
    """Return how a query set's vectors are stored; sets from before there was a choice say not."""
    return str(settings.get("vectors", "float32"))


def cannot_write(index: Path, error: OSError) -> BadIndex:
    """Return the error for an index folder that the system does not let us write to."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BadIndex(f"{index} cannot be written ({error.strerror}): check its permissions")
    return BadIndex(
        f"{index} cannot be written: {error.strerror or error}. What was committed is safe: make "
        f"room, then go on with strop finish {index}"
    )


def vector_file(folder: Path, set_id: int | None, stored: str = "float32") -> Path:
    """Return the file of a query set's vectors, of the documents' own for None."""
    name = "documents" if set_id is None else f"queries-{set_id}"
    return folder / "vectors" / f"{name}{_ENDINGS[stored]}"


def append_rows(path: Path, committed: int, rows: Vectors) -> None:
    """Write ``rows`` (n, dim) behind the first ``committed`` ones; return when they are on disk."""
    begin = committed * rows.shape[1] * _value(path).itemsize
    if not path.parent.exists():  # vectors can be made again, so the folder may be thrown away
        path.parent.mkdir()
        sync_folder(path.parent.parent)
    with open(path, "r+b" if path.exists() else "x+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < begin:
            raise _damaged(path, file.tell(), begin)
        file.seek(begin)
        file.truncate()
        file.write(_encoded(rows, _value(path)).data)  # tofile() hides a full disk
        file.flush()
        os.fsync(file.fileno())
    if committed == 0:  # new, or left by a writer that was stopped before it came here
        sync_folder(path.parent)


def map_rows(path: Path, count: int, dim: int) -> Vectors:
    """Return the first ``count`` rows of a file, read-only, without loading them."""
    if count == 0:
        return np.empty((0, dim), dtype=_value(path))
    need = count * dim * _value(path).itemsize
    have = path.stat().st_size if path.exists() else 0
    if have < need:
        raise _damaged(path, have, need)
    return np.memmap(path, dtype=_value(path), mode="r", shape=(count, dim))


def whole_rows(path: Path, dim: int) -> int:
    """Return how many whole rows a file holds; 0 if it is missing."""
    return path.stat().st_size // (dim * _value(path).itemsize) if path.exists() else 0


def _value(path: Path) -> np.dtype[Any]:
    value: np.dtype[Any] = _VALUES[path.suffix]
    return value


def _encoded(rows: Vectors, value: np.dtype[Any]) -> NDArray[Any]:
    if value.kind != "i":
        return np.ascontiguousarray(rows, dtype=value)
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    return np.rint(rows * (127 / np.where(largest > 0, largest, 1))).astype(value)


def sync_folder(folder: Path) -> None:
    """Make a new file's name survive a power cut; not every system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _damaged(path: Path, have: int, need: int) -> IndexDamaged:
    index = path.parent.parent
    return IndexDamaged(
        f"{path} is cut short: it has {have:,} of {need:,} bytes. Its vectors can be made again "
        f"from the catalog: strop check {index} --repair"
    )
