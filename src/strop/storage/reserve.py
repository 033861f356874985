"""Room on the disk that is kept back for replies that are paid for already."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from strop.errors import DiskFull
from strop.storage.vectors import cannot_write

RESERVE_BYTES = 4 << 20
NEEDED_BYTES = 4 << 20
"""With less room than this beside the reserve, no further reply is asked for."""


@contextmanager
def reserved(folder: Path) -> Iterator[IO[bytes]]:
    """Keep room back on the disk of an index; closing the file gives it to the replies.

    The file has no name, so nothing is left of it when the process is killed.
    """
    try:
        room = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed below)
        try:
            room.write(os.urandom(RESERVE_BYTES))  # a file system may compress zeros to nothing
            room.flush()
            os.fsync(room.fileno())
        except BaseException:
            room.close()
            raise
    except OSError as error:
        raise cannot_write(folder, error) from error
    with room:
        yield room


def room_problem(folder: Path) -> DiskFull | None:
    """Return the error for a disk that has too little room for further replies, None if it has."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # then writing says what is wrong
        return None
    if free >= NEEDED_BYTES:
        return None
    return DiskFull(
        f"the disk of {folder} has {free / 1e6:.1f} MB left: no more calls are made, so that "
        "replies that are paid for can still be stored. Free some space and run the command again"
    )
