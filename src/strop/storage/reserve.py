"""Room on the disk that is kept back for replies that are paid for already."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strop.errors import DiskFull
from strop.storage.vectors import cannot_write

RESERVE = "reserve"
"""The file in an index folder that holds the room while a model is asked."""
RESERVE_BYTES = 4 << 20
NEEDED_BYTES = 4 << 20
"""With less room than this beside the reserve, no further reply is asked for."""


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Keep room back on the disk of an index; ``release`` gives it to the replies."""
    file = folder / RESERVE
    try:
        with open(file, "wb") as room:
            room.write(os.urandom(RESERVE_BYTES))  # a file system may compress zeros to nothing
            room.flush()
            os.fsync(room.fileno())
    except OSError as error:
        release(folder)
        raise cannot_write(folder, error) from error
    try:
        yield
    finally:
        release(folder)


def release(folder: Path) -> bool:
    """Give the reserved room back; return whether there was any."""
    with suppress(OSError):
        (folder / RESERVE).unlink()
        return True
    return False


def room_problem(folder: Path) -> DiskFull | None:
    """Return the error for a disk that has too little room for further replies, None if it has."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # then writing says what is wrong
        return None
    if free >= NEEDED_BYTES:
        return None
    return DiskFull(
        f"the disk of {folder} has {free / 1e6:.1f} MB left: no more replies are asked for while "
        "there is room for those that are paid for. Free some space and run the command again"
    )
