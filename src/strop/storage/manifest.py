"""Which documents came from which folder, and what their files were like: so that ``Index.sync``
reads only files that changed, and removes only documents whose file is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from strop.errors import BadInput
from strop.io.folders import File
from strop.storage.database import Database

_SETTLED = 2 * 10**9
"""Nanoseconds. A file may change again within a tick of the clock: a younger one is read again."""


class Manifest:
    """The files of synced folders, by document id; within the transaction of the caller."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def changed(self, folder: str, files: Sequence[File]) -> list[File]:
        """Return the files that are not what they were, or were not there."""
        known = {
            id_: (size, modified)
            for id_, size, modified in self._database.rows(
                "SELECT id, size, modified FROM manifest WHERE folder = ?", (folder,)
            )
        }
        return [file for file in files if known.get(file.id) != (file.size, file.modified_ns)]

    def gone(self, folder: str, files: Iterable[File]) -> list[str]:
        """Return the documents of a folder whose files are not among these."""
        return sorted(self._ids(folder) - {file.id for file in files})

    def _ids(self, folder: str) -> set[str]:
        sql = "SELECT id FROM manifest WHERE folder = ?"
        return set(self._database.column(sql, (folder,)))

    def adopt(self, folder: str, files: Sequence[File]) -> None:
        """Refuse documents that came from another folder; one that is not there any more moved."""
        for other in self._database.column("SELECT DISTINCT folder FROM manifest"):
            both = self._ids(other) & {file.id for file in files}
            if other == folder or not both:
                continue
            if os.path.isdir(other):
                raise BadInput(
                    f"{folder}: document {min(both)!r} came from {other}, which has a file of that"
                    " name too. Put both folders into one and name that, or use another index"
                )
            sql = "UPDATE manifest SET folder = ? WHERE folder = ?"
            self._database.execute(sql, (folder, other))

    def put(self, folder: str, files: Iterable[File]) -> None:
        """Remember files as they were read."""
        young = time.time_ns() - _SETTLED
        self._database.executemany(
            "INSERT OR REPLACE INTO manifest VALUES (?, ?, ?, ?)",
            [
                (one.id, folder, one.size, one.modified_ns if one.modified_ns < young else -1)
                for one in files
            ],
        )
