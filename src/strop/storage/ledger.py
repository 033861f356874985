"""The catalog's ledger: the rows where vectors are stored, their checksums, and a log of changes.

A *span* records which rows of a file belong to a document: its own vector (set 0) or its list in a
query set. ``vector_version`` is the version at which these vectors were committed. It identifies
them wherever they are stored: compaction moves rows and does not change ``vector_version``.

``digest`` identifies the text of the document for which they were computed; ``older`` is set when
the text has changed since. What is derived from the text (its vector, its sentences) then waits to
be recomputed, and the old vectors are used until it is. Queries that were given (imported,
generated) are not used any more: nobody knows whether the new text answers them. They count again
when they are given again, or when the user confirms them.

``changes`` lists the document numbers whose spans were added, changed or removed at each version. A
reader reads only these to bring its data up to date. The log begins at ``log_from``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.errors import IndexDamaged
from strop.storage.database import Database, damaged, reporting_damage
from strop.storage.settings import Settings
from strop.storage.vectors import (
    STORED,
    VECTOR_FILE,
    Rows,
    Sums,
    bytes_of,
    file_name,
    row_bytes,
)

DOCUMENTS = 0
"""The id of the set of the documents' own vectors."""
DERIVED = ("sentences", "augmented")
"""Sources of query sets whose lists can be computed from the documents at any time."""
_IS_SEARCHED = (
    "(NOT older OR coalesce((SELECT json_extract(settings, '$.source') FROM sets"
    f" WHERE sets.set_id = ?), 'augmented') IN {DERIVED})"
)
SUMS_TOGETHER = 1024
"""The number of checksums in one row of the table ``checksums``."""


@dataclass(frozen=True)
class VectorFile:
    """A file of vectors.

    ``rows`` is the number of committed rows, ``live`` the number of rows in use, and ``lists`` the
    number of documents that use them.
    """

    set_id: int
    name: str
    dtype: str
    rows: int
    live: int
    lists: int

    @property
    def is_possible(self) -> bool:
        """Whether strop can have written it: a name of this folder and set, plausible numbers."""
        if not all(type(count) is int and 0 <= count < 2**40 for count in astuple(self)[3:]):
            return False
        if self.dtype not in STORED or not VECTOR_FILE.fullmatch(str(self.name)):
            return False
        stem, ending = file_name(self.set_id, self.dtype).rsplit(".", 1)
        return self.name.split(".")[0] == stem and self.name.endswith(f".{ending}")

    def renamed(self, dtype: str) -> str:
        """Return a name for the file, with rows of a type, that will replace this one."""
        stem, *middle, _ = self.name.split(".")
        ending = file_name(self.set_id, dtype).rpartition(".")[2]
        return f"{stem}.{int(middle[0]) + 1 if middle else 2}.{ending}"


class VectorLedger:
    """The spans of all vectors, their checksums, and the log of changes."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    # -- files ----------------------------------------------------------------------------

    def files(self) -> dict[int, VectorFile]:
        """Return every file by the id of the set whose vectors it contains."""
        path = self._database.path
        with self._database.reading():
            rows = self._database.rows(
                "SELECT set_id, name, dtype, rows, live, lists FROM files ORDER BY set_id"
            )
            sets = {DOCUMENTS, *self._database.column("SELECT set_id FROM sets")}
        files = {values[0]: VectorFile(*values) for values in rows}
        if files.keys() != sets:
            raise damaged(path, "the tables files and sets name different sets")
        for file in files.values():
            if not file.is_possible:
                raise damaged(path, f"the table files has an impossible row ({file!r:.200})")
        return files

    def checksums(self, set_id: int) -> Sums:
        """Return the checksum of each row of a set's file."""
        blobs = self._database.column(
            "SELECT sums FROM checksums WHERE set_id = ? ORDER BY block", (set_id,)
        )
        with reporting_damage(self._database.path, "checksums"):
            return np.frombuffer(b"".join(blobs), "<u4")

    def verify_rows(self, set_id: int, vectors: Rows, rows: Ints, known_sums: Ints) -> None:
        """Raise ``IndexDamaged`` if rows of a set's file (mapped as ``vectors``) are damaged.

        Only the checksums of these rows are read: cheap for the few that final scores depend on.
        ``known_sums`` caches them for this mapping of the file: 1 + the checksum of each row, 0
        if it has not been read.
        """
        sums = known_sums[rows]
        if not sums.all():
            self._read_sums(set_id, {*(rows[sums == 0] // SUMS_TOGETHER).tolist()}, known_sums)
            sums = known_sums[rows]
        data, size = bytes_of(vectors[rows]), row_bytes(vectors)
        if [1 + crc32(data[at : at + size]) for at in range(0, len(data), size)] != sums.tolist():
            folder, file = self._database.path.parent, self.files()[set_id]
            raise IndexDamaged(
                f"{folder}/vectors/{file.name} is damaged where the best documents of this search "
                f"are stored. To repair it: strop check {folder} --repair"
            )

    def _read_sums(self, set_id: int, blocks: Iterable[int], known_sums: Ints) -> None:
        """Read the checksums of some blocks of rows."""
        for block in blocks:
            row = self._database.row(
                "SELECT sums FROM checksums WHERE set_id = ? AND block = ?", (set_id, block)
            )
            stored = row[0] if row and isinstance(row[0], bytes) else b""
            sums = np.frombuffer(stored[: len(stored) // 4 * 4], "<u4")[:SUMS_TOGETHER]
            rows = slice(block * SUMS_TOGETHER, block * SUMS_TOGETHER + len(sums))
            known_sums[rows] = 1 + sums[: len(known_sums[rows])].astype(np.int64)

    # -- spans ----------------------------------------------------------------------------

    def place(self, file: VectorFile, lists: Sequence[tuple[int, int, bytes]], sums: Sums) -> None:
        """Record that the next rows of a file are the vectors of ``lists``, in order.

        A list is (document number, number of rows, digest of the text they are for); ``sums`` are
        the checksums of the rows.
        """
        with self._database.writing() as connection:
            self.unplace(file.set_id, [number for number, _, _ in lists])
            version = self._settings.number("version") + 1
            end, values = file.rows, []
            for number, count, digest in lists:
                values.append((file.set_id, number, end, count, version, digest, digest, number))
                end += count
            connection.executemany(
                "INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?,"
                " ? IS NOT (SELECT digest FROM documents WHERE number = ?))",
                values,
            )
            connection.execute(
                "UPDATE files SET rows = ?, live = live + ?, lists = lists + ? WHERE set_id = ?",
                (end, end - file.rows, sum(count > 0 for _, count, _ in lists), file.set_id),
            )
            self._add_sums(file.set_id, file.rows, sums)

    def unplace(self, set_id: int, numbers: Sequence[int]) -> None:
        """Within a transaction: remove the spans of documents in a set."""
        counts = [
            count
            for number in numbers
            for (count,) in self._database.execute(
                "DELETE FROM spans WHERE set_id = ? AND number = ? RETURNING count",
                (set_id, number),
            )
        ]
        self._database.execute(
            "UPDATE files SET live = max(0, live - ?), lists = lists - ? WHERE set_id = ?",
            # Damaged spans may have any count; a repair recounts.
            (min(max(sum(counts), 0), 2**62), sum(count > 0 for count in counts), set_id),
        )
        self.log(numbers)

    def move(
        self, file: VectorFile, name: str, dtype: str, spans: NDArray[np.int64], sums: Sums
    ) -> None:
        """Replace a file by the file ``name`` with rows of type ``dtype``.

        ``spans`` has a line (number, start, …) for each list in the new file, ``sums`` the checksum
        of each row.
        """
        with self._database.writing() as connection:
            connection.executemany(
                "UPDATE spans SET start = ? WHERE set_id = ? AND number = ?",
                ((start, file.set_id, number) for number, start in spans[:, :2].tolist()),
            )
            connection.execute(
                "UPDATE files SET name = ?, dtype = ?, rows = ? WHERE set_id = ?",
                (name, dtype, len(sums), file.set_id),
            )
            connection.execute("DELETE FROM checksums WHERE set_id = ?", (file.set_id,))
            self._add_sums(file.set_id, 0, sums)
            if len(spans):
                self._log_range(int(spans[0, 0]), int(spans[-1, 0]))

    def _add_sums(self, set_id: int, rows: int, sums: Sums) -> None:
        """Store the checksums of the rows that follow the first ``rows``, in blocks."""
        data = sums.astype("<u4").tobytes()
        block, filled = divmod(rows, SUMS_TOGETHER)
        if filled:
            row = self._database.row(
                "SELECT sums FROM checksums WHERE set_id = ? AND block = ?", (set_id, block)
            )
            with reporting_damage(self._database.path, "checksums"):
                data = row[0] + data
        size = 4 * SUMS_TOGETHER
        blobs = [data[at : at + size] for at in range(0, len(data), size)]
        self._database.executemany(
            "INSERT OR REPLACE INTO checksums VALUES (?, ?, ?)",
            [(set_id, number, blob) for number, blob in enumerate(blobs, block)],
        )

    def spans(self, set_id: int) -> NDArray[np.int64]:
        """Return a set's spans: lines (number, start, count, vector_version), by number."""
        return self._spans("spans s WHERE set_id = ?", set_id)

    def searchable_spans(self, set_id: int) -> NDArray[np.int64]:
        """Return the spans that searches use, as ``spans``.

        Queries that were given for an older text of their document are left out.
        """
        return self._spans(f"spans s WHERE set_id = ? AND {_IS_SEARCHED}", set_id, set_id)

    def changed_spans(self, set_id: int, since: int) -> NDArray[np.int64]:
        """Return ``searchable_spans`` of documents that changed after a version."""
        spans = self._spans(
            "changes CROSS JOIN spans s ON s.set_id = ? AND s.number BETWEEN first AND last"
            f" WHERE version > ? AND {_IS_SEARCHED}",
            set_id,
            since,
            set_id,
        )
        return spans[np.unique(spans[:, 0], return_index=True)[1]]

    def _spans(self, source: str, *values: int) -> NDArray[np.int64]:
        rows = self._database.rows(
            f"SELECT s.number, start, count, vector_version FROM {source}", values
        )
        with reporting_damage(self._database.path, "spans"):
            cells = np.array(rows)  # of another type if a single cell is no whole number
            if len(rows) and cells.dtype != np.int64:
                raise TypeError("cells that are not whole numbers")
            return cells.astype(np.int64).reshape(-1, 4)

    # -- the log --------------------------------------------------------------------------

    def log(self, numbers: Iterable[int]) -> None:
        """Within a transaction: record that spans of documents were added, changed or removed."""
        ordered = np.unique(np.fromiter(numbers, np.int64))
        for run in np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1):
            if len(run):
                self._log_range(int(run[0]), int(run[-1]))

    def _log_range(self, first: int, last: int) -> None:
        self._database.execute(
            "INSERT INTO changes SELECT CAST(value AS INTEGER) + 1, ?, ? FROM meta"
            " WHERE key = 'version'"
            " ON CONFLICT DO UPDATE SET last = max(last, excluded.last)",
            (first, last),
        )

    def changes(self, since: int) -> NDArray[np.int64] | None:
        """Return what changed after a version: ranges (first, last) of document numbers.

        None if the log begins later, or if there is no such version yet.
        """
        with self._database.reading():
            if not self._settings.number("log_from") <= since <= self._settings.number("version"):
                return None
            rows = self._database.rows("SELECT first, last FROM changes WHERE version > ?", [since])
        with reporting_damage(self._database.path, "logged changes"):
            return np.array(rows, np.int64).reshape(-1, 2)

    def logged(self) -> int:
        """Return the number of changes in the log."""
        count = self._database.value("SELECT sum(last - first + 1) FROM changes")
        with reporting_damage(self._database.path, "logged changes"):
            return int(count or 0)

    def cut_log(self, version: int, cache: str) -> None:
        """Drop logged changes up to ``version``: the file ``cache`` contains their result."""
        with self._database.writing(searchable=False) as connection:
            connection.execute("DELETE FROM changes WHERE version <= ?", (version,))
            self._settings.put(log_from=version)
            self._settings.put_sidecar("spans", cache)

    def recount(self) -> None:
        """Recount documents and rows in use."""
        with self._database.writing() as connection:
            connection.execute(
                "UPDATE files SET"
                " live = (SELECT coalesce(sum(count), 0) FROM spans s"
                " WHERE s.set_id = files.set_id),"
                " lists = (SELECT count(*) FROM spans s"
                " WHERE s.set_id = files.set_id AND count > 0)"
            )
            connection.execute(
                "INSERT OR REPLACE INTO meta SELECT 'documents', count(*) FROM documents"
            )
