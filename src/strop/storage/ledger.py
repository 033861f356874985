"""The catalog's ledger: where vectors stand, their checksums, and a log of what changed.

A *span* says which rows of a file are a document's: its own vector (set 0) or its list in a query
set. ``vector_version`` is the version at which these vectors were committed. It names them wherever
they stand: compaction moves rows and leaves ``vector_version`` as it is.

``digest`` says for which text of the document they were made; ``older`` is set when that is not its
text any more. What is derived from the text (its vector, its sentences) then waits to be made anew
and serves until it is. Queries that were given (imported, generated) serve no more: nobody knows
whether the new text answers them. They count again when they are given again, or when the user says
that they still hold.

``changes`` lists which document numbers had spans come, change or go at each version, so that a
reader brings what it knows up to date by reading these alone. It reaches back to ``log_from``.
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
"""The set that stands for the documents' own vectors."""
DERIVED = ("sentences", "augmented")
"""Sources of query sets whose lists are made from the documents alone, when they are wanted."""
_IS_SEARCHED = (
    "(NOT older OR coalesce((SELECT json_extract(settings, '$.source') FROM sets"
    f" WHERE sets.set_id = ?), 'augmented') IN {DERIVED})"
)
SUMS_TOGETHER = 1024
"""Checksums kept in one entry of the catalog."""


@dataclass(frozen=True)
class VectorFile:
    """A file of vectors: how many rows count, how many are referred to, by how many documents."""

    set_id: int
    name: str
    dtype: str
    rows: int
    live: int
    lists: int

    @property
    def is_possible(self) -> bool:
        """Whether it can be what strop wrote: a name of this folder and set, sensible numbers."""
        if not all(type(one) is int and 0 <= one < 2**40 for one in astuple(self)[3:]):
            return False
        if self.dtype not in STORED or not VECTOR_FILE.fullmatch(str(self.name)):
            return False
        first, ending = file_name(self.set_id, self.dtype).rsplit(".", 1)
        return self.name.split(".")[0] == first and self.name.endswith(f".{ending}")

    def renamed(self, dtype: str) -> str:
        """Return a name for the file of rows of a type that is to take this one's place."""
        stem, *middle, _ = self.name.split(".")
        ending = file_name(self.set_id, dtype).rpartition(".")[2]
        return f"{stem}.{int(middle[0]) + 1 if middle else 2}.{ending}"


class VectorLedger:
    """Where vectors stand, and what changed."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    # -- files ----------------------------------------------------------------------------

    def files(self) -> dict[int, VectorFile]:
        """Return every file by the set whose vectors it holds."""
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
        """Refuse rows of a set's file (mapped as ``vectors``) that are not what was written.

        Only the checksums of these rows are read: cheap for the few that a final score rests on.
        ``known_sums`` keeps them for this mapping of the file: 1 + the checksum of each row, 0
        where it has not been read.
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
                f"stand. To repair it: strop check {folder} --repair"
            )

    def _read_sums(self, set_id: int, blocks: Iterable[int], known_sums: Ints) -> None:
        """Read the checksums of some blocks of rows."""
        for block in blocks:
            row = self._database.row(
                "SELECT sums FROM checksums WHERE set_id = ? AND block = ?", (set_id, block)
            )
            stored = row[0] if row and isinstance(row[0], bytes) else b""
            sums = np.frombuffer(stored[: len(stored) // 4 * 4], "<u4")[:SUMS_TOGETHER]
            place = slice(block * SUMS_TOGETHER, block * SUMS_TOGETHER + len(sums))
            known_sums[place] = 1 + sums[: len(known_sums[place])].astype(np.int64)

    # -- spans ----------------------------------------------------------------------------

    def place(self, file: VectorFile, lists: Sequence[tuple[int, int, bytes]], sums: Sums) -> None:
        """Record that the next rows of a file are the vectors of ``lists``, in order.

        A list is (document number, how many rows, digest of the text they are for); ``sums`` are
        the checksums of the rows.
        """
        with self._database.writing() as connection:
            self.unplace(file.set_id, [number for number, _, _ in lists])
            version = self._settings.number("version") + 1
            row, values = file.rows, []
            for number, count, digest in lists:
                values.append((file.set_id, number, row, count, version, digest, digest, number))
                row += count
            connection.executemany(
                "INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?,"
                " ? IS NOT (SELECT digest FROM documents WHERE number = ?))",
                values,
            )
            connection.execute(
                "UPDATE files SET rows = ?, live = live + ?, lists = lists + ? WHERE set_id = ?",
                (row, row - file.rows, sum(count > 0 for _, count, _ in lists), file.set_id),
            )
            self._add_sums(file.set_id, file.rows, sums)

    def unplace(self, set_id: int, numbers: Sequence[int]) -> None:
        """Within a transaction: documents' vectors of a set are not theirs any more."""
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
            # Damaged spans may have any count; a repair counts anew.
            (min(max(sum(counts), 0), 2**62), sum(count > 0 for count in counts), set_id),
        )
        self.log(numbers)

    def move(
        self, file: VectorFile, name: str, dtype: str, spans: NDArray[np.int64], sums: Sums
    ) -> None:
        """Let a file ``name`` with rows of type ``dtype`` take the place of another.

        ``spans`` has a line (number, start, …) for each list that the new file holds, ``sums``
        the checksum of each row.
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
        """Write down the checksums of rows behind the first ``rows``, in blocks."""
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
        """Within a transaction: note that spans of documents came, changed or went."""
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

        None if the log does not reach back so far, or the version is still to come.
        """
        with self._database.reading():
            if not self._settings.number("log_from") <= since <= self._settings.number("version"):
                return None
            rows = self._database.rows("SELECT first, last FROM changes WHERE version > ?", [since])
        with reporting_damage(self._database.path, "logged changes"):
            return np.array(rows, np.int64).reshape(-1, 2)

    def logged(self) -> int:
        """Return how many changes the log holds."""
        count = self._database.value("SELECT sum(last - first + 1) FROM changes")
        with reporting_damage(self._database.path, "logged changes"):
            return int(count or 0)

    def cut_log(self, version: int, cache: str) -> None:
        """Forget changes up to ``version``: the file ``cache`` holds what they led to."""
        with self._database.writing(searchable=False) as connection:
            connection.execute("DELETE FROM changes WHERE version <= ?", (version,))
            self._settings.put(log_from=version)
            self._settings.put_sidecar("spans", cache)

    def recount(self) -> None:
        """Count documents and rows in use anew."""
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
