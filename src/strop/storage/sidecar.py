"""Sidecars: files of arrays in ``cache/`` that can be recomputed from the catalog.

The catalog's settings name the current one of each kind (``spans``, ``candidates``), and only once
it is complete. Sidecars are memory-mapped when they are read.

A file with any damage (cut short, flipped bytes) is treated like a missing one. Each has a new
name, so a reader's map of an older one stays valid.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadIndex, IndexDamaged
from strop.storage.vectors import no_links

CACHE = "cache"
"""The folder of sidecars in an index."""
SIDECAR_FILE = re.compile(r"[a-z]{1,20}-[0-9a-f]{32}")
"""The names of sidecars. Never a path."""
_MAGIC = b"strop cache 1\n"
_ALIGNMENT = 64
"""Each array begins at a multiple of this many bytes."""


@contextmanager
def replaced_sidecar(folder: Path, kind: str, older: str | None) -> Iterator[Path]:
    """Give the path of a new sidecar, for the caller to write and, as the last step, to name it.

    Afterwards the older one is deleted. After an ``OSError`` or ``BadIndex`` (a full disk) the new
    one is deleted: the catalog must not name it then. After any other error the next writer does.
    """
    path = folder / CACHE / f"{kind}-{uuid.uuid4().hex}"
    try:
        yield path
    except (OSError, BadIndex):
        delete_sidecar(folder, path.name)
        raise
    delete_sidecar(folder, older)


def delete_sidecar(folder: Path, name: str | None) -> None:
    """Delete a sidecar that is no longer used, if it exists."""
    if name is not None:
        with suppress(OSError):
            (folder / CACHE / name).unlink()


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], *, sync: bool = False
) -> None:
    """Write arrays and JSON values to a new file; with ``sync``, wait until it is on disk."""
    places, at, crc = {}, 0, 0
    buffers: list[Any] = []
    data: Any
    for name, array in arrays.items():
        block = np.ascontiguousarray(array)
        places[name] = [block.dtype.str, list(block.shape), at]
        for data in (block.reshape(-1).view(np.uint8), bytes(-block.nbytes % _ALIGNMENT)):
            crc = zlib.crc32(data, crc)
            at += len(data)
            buffers.append(data)
    head = json.dumps({"about": about, "arrays": places, "size": at, "crc": crc}).encode()
    head += b" " * (-(len(_MAGIC) + 8 + len(head)) % _ALIGNMENT)
    path.parent.mkdir(exist_ok=True)
    with open(path, "xb") as file:
        file.write(
            _MAGIC + len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little")
        )
        file.write(head)
        for data in buffers:
            file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_arrays(
    path: Path, *, trusted: bool = False
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return a file's arrays, read-only, and its values; None if it is missing or damaged.

    Of a ``trusted`` file only the size is checked; its arrays are read when they are used.
    """
    try:
        with open(path, "rb", opener=no_links) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, IndexDamaged):
        return None
    data = memoryview(mapped)
    begin = len(_MAGIC) + 8
    if data[: len(_MAGIC)] != _MAGIC or len(data) < begin:
        return None
    length = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 4], "little")
    head = data[begin : begin + length]
    if zlib.crc32(head) != int.from_bytes(data[begin - 4 : begin], "little"):
        return None
    try:
        return _arrays(json.loads(bytes(head)), data[begin + length :], trusted)
    except (ValueError, TypeError, KeyError, OverflowError):  # a head that strop did not write
        return None


def _arrays(
    head: dict[str, Any], body: memoryview, trusted: bool
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    if len(body) != head["size"] or not (trusted or zlib.crc32(body) == head["crc"]):
        return None
    arrays: dict[str, NDArray[Any]] = {}
    for name, (dtype, shape, at) in head["arrays"].items():
        type_ = np.dtype(dtype)
        if type_.hasobject:
            return None
        flat = np.frombuffer(body[at : at + math.prod(shape) * type_.itemsize], type_)
        arrays[name] = flat.reshape(shape)
    return arrays, dict(head["about"])


def entries(folder: Path) -> list[Path]:
    """Return the files in a folder, none if there is no folder."""
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
