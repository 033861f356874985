"""The files of synced folders: which document came from which file, its size and modification time.

With these, ``Index.sync`` reads only files that changed, and removes only documents whose file is
gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from strop.errors import BadInput
from strop.io.folders import File
from strop.storage.database import Database

_SETTLED_NS = 2 * 10**9
"""A file that was modified less than this before it was read is read again by the next sync: it may
have changed once more within a tick of the file system's clock."""


class Manifest:
    """The files of synced folders, by document id; used within the transaction of the caller."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def changed(self, folder: str, files: Sequence[File]) -> list[File]:
        """Return the files that changed or are new."""
        recorded = {
            id_: (size, modified)
            for id_, size, modified in self._database.rows(
                "SELECT id, size, modified FROM manifest WHERE folder = ?", (folder,)
            )
        }
        return [file for file in files if recorded.get(file.id) != (file.size, file.modified_ns)]

    def gone(self, folder: str, files: Iterable[File]) -> list[str]:
        """Return the documents of a folder whose files are not among these."""
        return sorted(self._ids(folder) - {file.id for file in files})

    def _ids(self, folder: str) -> set[str]:
        sql = "SELECT id FROM manifest WHERE folder = ?"
        return set(self._database.column(sql, (folder,)))

    def adopt(self, folder: str, files: Sequence[File]) -> None:
        """Refuse documents that came from another folder.

        If that folder is gone, it was moved here: its documents belong to this one from now on.
        """
        for other in self._database.column("SELECT DISTINCT folder FROM manifest"):
            shared = self._ids(other) & {file.id for file in files}
            if other == folder or not shared:
                continue
            if os.path.isdir(other):
                raise BadInput(
                    f"{folder}: document {min(shared)!r} came from {other}, which has a file of"
                    " that name too. Put both folders into one and name that, or use another index"
                )
            sql = "UPDATE manifest SET folder = ? WHERE folder = ?"
            self._database.execute(sql, (folder, other))

    def put(self, folder: str, files: Iterable[File]) -> None:
        """Record files that were read."""
        settled_before = time.time_ns() - _SETTLED_NS
        self._database.executemany(
            "INSERT OR REPLACE INTO manifest VALUES (?, ?, ?, ?)",
            [
                (
                    file.id,
                    folder,
                    file.size,
                    file.modified_ns if file.modified_ns < settled_before else -1,
                )
                for file in files
            ],
        )
