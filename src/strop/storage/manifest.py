"""Which documents came from which folder, and what their files were like: so that ``Index.sync``
reads only files that changed, and removes only documents whose file is gone."""

from __future__ import annotations

import os
import sqlite3
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
        rows = self._database.rows("SELECT id FROM manifest WHERE folder = ?", (folder,))
        return sorted({id_ for (id_,) in rows} - {file.id for file in files})

    def adopt(self, connection: sqlite3.Connection, folder: str, files: Sequence[File]) -> None:
        """Refuse documents that came from another folder; one that is not there any more moved."""
        for (other,) in connection.execute("SELECT DISTINCT folder FROM manifest").fetchall():
            theirs = connection.execute("SELECT id FROM manifest WHERE folder = ?", (other,))
            both = {id_ for (id_,) in theirs} & {file.id for file in files}
            if other == folder or not both:
                continue
            if os.path.isdir(other):
                raise BadInput(
                    f"{folder}: document {min(both)!r} came from {other}, which has a file of that"
                    " name too. Put both folders into one and name that, or use another index"
                )
            connection.execute("UPDATE manifest SET folder = ? WHERE folder = ?", (folder, other))

    def put(self, connection: sqlite3.Connection, folder: str, files: Iterable[File]) -> None:
        """Remember files as they were read."""
        young = time.time_ns() - _SETTLED
        connection.executemany(
            "INSERT OR REPLACE INTO manifest VALUES (?, ?, ?, ?)",
            [
                (one.id, folder, one.size, one.modified_ns if one.modified_ns < young else -1)
                for one in files
            ],
        )
