"""Sidecars: files of arrays in ``cache/`` that can be made again from the catalog.

They are written whole and mapped when read. The catalog's settings name the one of each kind that
counts (``spans``, ``candidates``); one sidecar may be several files, ``NAME`` and ``NAME.more``.

Whatever is wrong with such a file (missing, cut short, flipped bytes), it is as if it were not
there. The name of each is new, so a reader's map of an older one stays true.
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
SIDECAR_FILE = re.compile(r"[a-z]{1,20}-[0-9a-f]{32}(\.[a-z]{1,20})?")
"""The names of a sidecar's files. Never a path."""
_MAGIC = b"strop cache 1\n"
_ALIGNED = 64


@contextmanager
def replaced_sidecar(folder: Path, kind: str, older: str | None) -> Iterator[Path]:
    """Give the path of a new sidecar, to be written there and named in the catalog.

    Then the older one is deleted. If this fails (a full disk), the new one is deleted.
    """
    path = folder / CACHE / f"{kind}-{uuid.uuid4().hex}"
    try:
        yield path
    except (OSError, BadIndex):
        delete_sidecar(folder, path.name)
        raise
    delete_sidecar(folder, older)


def delete_sidecar(folder: Path, name: str | None) -> None:
    """Delete a sidecar that no longer counts, if it is there."""
    if name is not None:
        with suppress(OSError):
            (folder / CACHE / name).unlink()


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], *, sync: bool = False
) -> None:
    """Write arrays and JSON values to a new file; with ``sync``, wait for the disk to have it."""
    places, at, crc = {}, 0, 0
    parts: list[Any] = []
    data: Any
    for name, array in arrays.items():
        part = np.ascontiguousarray(array)
        places[name] = [part.dtype.str, list(part.shape), at]
        for data in (part.reshape(-1).view(np.uint8), bytes(-part.nbytes % _ALIGNED)):
            crc = zlib.crc32(data, crc)
            at += len(data)
            parts.append(data)
    head = json.dumps({"about": about, "arrays": places, "size": at, "crc": crc}).encode()
    head += b" " * (-(len(_MAGIC) + 8 + len(head)) % _ALIGNED)
    path.parent.mkdir(exist_ok=True)
    with open(path, "xb") as file:
        file.write(
            _MAGIC + len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little")
        )
        file.write(head)
        for data in parts:
            file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_arrays(
    path: Path, *, trusted: bool = False
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Return a file's arrays, read-only, and its values; None if it is not as it was written.

    Of a ``trusted`` file the size is enough, and its arrays are only read when they are used.
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
        kind = np.dtype(dtype)
        if kind.hasobject:
            return None
        flat = np.frombuffer(body[at : at + math.prod(shape) * kind.itemsize], kind)
        arrays[name] = flat.reshape(shape)
    return arrays, dict(head["about"])


def entries(folder: Path) -> list[Path]:
    """Return the files in a folder, none if there is no folder."""
    return [one for one in folder.iterdir() if one.is_file()] if folder.is_dir() else []
