"""Neighbour lists and selected references of documents, as the catalog stores them.

The table ``neighbors`` has a row for each document that took part, with the ``vector_version`` of
its vector. The list is NULL until it is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints
from strop.storage.database import Database, reporting_damage
from strop.storage.documents import Documents
from strop.storage.settings import Settings

_DROP_SELECTION = "DELETE FROM selections WHERE number = ?"


@dataclass(frozen=True)
class Reference:
    """A reference of a document: its id, its similarity, and the size of its cluster."""

    id: str
    similarity: float
    cluster_size: int


@dataclass(frozen=True)
class SelectedReferences:
    """A document's references and the mean silhouette of the clusters they represent."""

    references: list[Reference]
    silhouette: float


class References:
    """Neighbour lists and references in a catalog; documents are named by number."""

    def __init__(self, database: Database, settings: Settings, documents: Documents) -> None:
        self._database = database
        self._settings = settings
        self._documents = documents

    def of(self, number: int) -> SelectedReferences | None:
        """Return a document's references that are still in the index; None without a selection."""
        with self._database.reading():
            row = self._database.row(
                "SELECT others, similarities, sizes, silhouette FROM selections WHERE number = ?",
                (number,),
            )
            if row is None:
                return None
            with reporting_damage(self._database.path, "references"):
                columns = zip(row[:3], ("<i4", "<f4", "<i4"), strict=True)
                others, similarities, sizes = (
                    np.frombuffer(blob, dtype).tolist() for blob, dtype in columns
                )
                ids = self._documents.ids_of(others)
                selected = zip(others, similarities, sizes, strict=True)
                return SelectedReferences(
                    [
                        Reference(ids[other], similarity, size)
                        for other, similarity, size in selected
                        if other in ids
                    ],
                    float(row[3]),
                )

    def settings(self) -> dict[str, Any]:
        """Return the settings that the stored lists and references were computed with."""
        with reporting_damage(self._database.path, "settings of references"):
            return dict(self._settings.get("references") or {})

    def begin(self, settings: dict[str, Any], *, lists: bool, selections: bool) -> None:
        """Store new settings; keep neighbour ``lists`` and ``selections`` only if requested."""
        with self._database.writing() as connection:
            if not lists:
                connection.execute("DELETE FROM neighbors")
            if not selections:
                connection.execute("DELETE FROM selections")
            self._settings.put(references=settings)

    def known(self) -> NDArray[np.int64]:
        """Return (number, vector_version, has a list) of each document that took part (n, 3)."""
        rows = self._database.rows(
            "SELECT number, vector_version, others IS NOT NULL FROM neighbors ORDER BY number"
        )
        return np.array(rows, np.int64).reshape(-1, 3)

    def without_list(self) -> Ints:
        """Return the numbers of documents whose list is still to be computed."""
        return self._numbers("others IS NULL")

    def without_selection(self) -> Ints:
        """Return the numbers of documents whose references are still to be selected."""
        return self._numbers("number NOT IN (SELECT number FROM selections)")

    def _numbers(self, condition: str) -> Ints:
        sql = f"SELECT number FROM neighbors WHERE {condition} ORDER BY number"
        return np.array(self._database.column(sql), np.int64)

    def lists(self, numbers: Ints, width: int) -> tuple[NDArray[np.int32], Floats]:
        """Return the first ``width`` neighbours of each list: numbers (-1: none), similarities."""
        others = np.full((len(numbers), width), -1, np.int32)
        similarities = np.zeros((len(numbers), width), np.float32)
        sql = "SELECT others, similarities FROM neighbors WHERE number = ?"
        with self._database.reading():
            for at, number in enumerate(numbers.tolist()):
                blobs = self._database.row(sql, (number,))
                nearest = np.frombuffer(blobs[0], "<i4")[:width]
                others[at, : len(nearest)] = nearest
                similarities[at, : len(nearest)] = np.frombuffer(blobs[1], "<f4")[:width]
        return others, similarities

    def replace_documents(self, gone: Ints, new: Iterable[tuple[int, int]], emptied: Ints) -> None:
        """Drop the documents ``gone``, add ``new`` ones, and empty the lists of ``emptied``.

        ``new`` has (number, vector_version). None of all these has references afterwards.
        """
        added = list(new)
        with self._database.writing() as connection:
            connection.executemany("DELETE FROM neighbors WHERE number = ?", _rows(gone))
            connection.executemany("INSERT INTO neighbors VALUES (?, ?, NULL, NULL)", added)
            connection.executemany(
                "UPDATE neighbors SET others = NULL, similarities = NULL WHERE number = ?",
                _rows(emptied),
            )
            out_of_date = [*_rows(gone), *_rows(emptied), *((number,) for number, _ in added)]
            connection.executemany(_DROP_SELECTION, out_of_date)

    def store_lists(self, numbers: Ints, others: Ints, similarities: Floats) -> None:
        """Store neighbour lists (n, width), -1 for none; their references are dropped."""
        blobs = zip(_blobs(others, others), _blobs(similarities, others), strict=True)
        with self._database.writing() as connection:
            connection.executemany(
                "UPDATE neighbors SET others = ?, similarities = ? WHERE number = ?",
                [(*lists, number) for lists, number in zip(blobs, numbers.tolist(), strict=True)],
            )
            connection.executemany(_DROP_SELECTION, _rows(numbers))

    def store_selections(
        self, numbers: Ints, others: Ints, similarities: Floats, sizes: Ints, silhouettes: Floats
    ) -> None:
        """Store references (n, width), -1 for none, with similarity and size of their cluster."""
        blobs = (_blobs(values, others) for values in (others, similarities, sizes))
        rows = zip(numbers.tolist(), *blobs, silhouettes.tolist(), strict=True)
        with self._database.writing() as connection:
            connection.executemany("INSERT INTO selections VALUES (?, ?, ?, ?, ?)", rows)

    def counts(self) -> dict[str, Any] | None:
        """Return the settings, ``documents`` and ``out_of_date``; None without references.

        ``documents`` is how many have references, ``out_of_date`` how many were added, changed or
        removed since.
        """
        settings = self.settings()
        with self._database.reading():
            documents = self._database.value("SELECT count(*) FROM selections")
            if not settings or not documents:
                return None
            changed = self._database.value(
                "SELECT count(*) FROM spans v LEFT JOIN neighbors n USING (number)"
                " LEFT JOIN selections s USING (number) WHERE v.set_id = 0"
                " AND (n.vector_version IS NOT v.vector_version OR s.number IS NULL)"
            )
            gone = self._database.value(  # removed, but still in the lists of others
                "SELECT count(*) FROM neighbors LEFT JOIN documents d USING (number)"
                " WHERE d.number IS NULL"
            )
        return {**settings, "documents": documents, "out_of_date": changed + gone}


def _blobs(values: NDArray[Any], others: Ints) -> list[bytes]:
    """Return the bytes of each row of values, without the places where ``others`` is -1."""
    stored = values.astype("<f4" if values.dtype.kind == "f" else "<i4")
    counts = (others >= 0).sum(axis=1).tolist()
    return [row[:count].tobytes() for row, count in zip(stored, counts, strict=True)]


def _rows(numbers: Ints) -> list[tuple[int]]:
    return [(number,) for number in numbers.tolist()]
