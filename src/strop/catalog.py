"""The catalog: one SQLite file that holds everything an index knows except its vectors.

It is the only truth. A change is one transaction, so a process stopped at any instant leaves
the catalog as it was before or after, never between. Vector files (vectors.py) are written and
synced before the transaction that refers to them.

Work is stored first and embedded afterwards, in batches, each a transaction of its own. What
still waits can be read off the catalog, so interrupted work goes on where it stopped:

- a document waits while ``embedded`` (the digest its vector was made from) differs from
  ``digest`` (that of its text); until then its old vector serves;
- a list of imported queries waits in ``waiting_queries``;
- a derived list (sentences, expanded text) waits while it is missing or of another digest.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.document_catalog import DocumentCatalog, bounded, find_document
from strop.errors import BadInput
from strop.files import checked_string
from strop.types import Document


@dataclass(frozen=True)
class QuerySet:
    """A named set of query lists, one list for each document that has any.

    ``settings["source"]`` is ``sentences`` (derived from the text), ``file`` (imported), ``lm``
    (written by a language model) or ``expanded`` (one text per document: its own with the
    queries of ``settings["of"]`` appended). ``settings["kind"]`` says whether its texts are
    embedded as queries or documents.
    """

    set_id: int
    name: str
    settings: dict[str, Any]
    rows: int

    @property
    def derived(self) -> bool:
        """Whether its lists are made from the documents alone, whenever they are wanted."""
        return self.settings["source"] in ("sentences", "expanded")

    @property
    def negative(self) -> bool:
        """Whether its queries are relevant to a document's references and not to itself."""
        if self.settings["source"] == "lm":
            return bool(self.settings["settings"]["prompt"]["style"] == "negative")
        return self.name == "negative"


@dataclass(frozen=True)
class Waiting:
    """One document whose list is still to be embedded; ``texts`` is None where it is derived."""

    number: int
    document: Document
    digest: bytes
    texts: list[str] | None


def expanded_set(style: str) -> str:
    """Return the name of the set of texts expanded with the queries of another."""
    return f"expanded:{style}"


class Catalog(DocumentCatalog):
    """Reads and writes one catalog file; safe to use from several threads."""

    # -- query sets -----------------------------------------------------------------------

    def sets(self) -> dict[str, QuerySet]:
        """Return the query sets by name, in the order they were made."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT set_id, name, settings, rows FROM sets ORDER BY set_id"
            ).fetchall()
        return {
            name: QuerySet(set_id, name, json.loads(settings), rows)
            for set_id, name, settings, rows in found
        }

    def ensure_set(self, name: str, settings: dict[str, Any]) -> QuerySet:
        """Return a set, made if it is missing; with other settings its lists are made anew."""
        known = self.sets().get(name)
        if known is None or known.settings != settings:
            with self.writing() as connection:
                connection.execute(
                    "INSERT INTO sets (name, settings) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET settings = excluded.settings",
                    (name, json.dumps(settings)),
                )
                if known is not None:
                    self._make_stale(connection, "set_id = ?", (known.set_id,))
        return self.sets()[name]

    def store_queries(
        self,
        set_: QuerySet,
        lists: Iterable[tuple[str, str, Sequence[str]]],
        n: int | None = None,
    ) -> tuple[int, int, list[str]]:
        """Take in (place, document id, queries) lists, all or none; they wait to be embedded.

        Several lists for one document are pooled in their order; of each pool the first n count.
        Returns how many documents and queries were taken, and the ids not in the index.
        """
        unknown: list[str] = []
        with self.writing() as connection:
            connection.execute("DROP TABLE IF EXISTS temp.pooled")
            connection.execute("CREATE TEMP TABLE pooled (number INTEGER PRIMARY KEY, texts TEXT)")
            for place, id_, texts in lists:
                if isinstance(texts, str):
                    raise BadInput(f"{place}: the queries of {id_!r} are one text, not a list")
                queries_of = f"{place}, queries of {id_!r}"
                checked = [checked_string(one, "a query", queries_of, "use text") for one in texts]
                found = find_document(connection, id_)
                if found is None:
                    unknown.append(f"{place}: {id_!r}")
                    continue
                earlier = connection.execute(
                    "SELECT texts FROM pooled WHERE number = ?", (found[0],)
                ).fetchone()
                both = (json.loads(earlier[0]) if earlier else []) + checked
                text = json.dumps(both[:n], ensure_ascii=False)
                connection.execute("INSERT OR REPLACE INTO pooled VALUES (?, ?)", (found[0], text))
            taken, queries = connection.execute(
                "SELECT count(*), coalesce(sum(json_array_length(texts)), 0) FROM pooled"
            ).fetchone()
            if not taken:
                raise BadInput(
                    "none of the ids is a document of this index"
                    + (f" (first: {unknown[0]})" if unknown else ": the file has no lists")
                )
            self._let_wait(connection, set_)
            connection.execute("DROP TABLE temp.pooled")
        return taken, queries, unknown

    def store_generated(
        self, name: str, settings: dict[str, Any], lists: Iterable[tuple[int, list[str]]]
    ) -> int:
        """Let (number, queries) lists wait to be embedded, in one transaction once all are made.

        A set that another generator made is this one's afterwards: lists it has not written are
        dropped. Returns how many. Without any list nothing changes: a run of failures costs no set.
        """
        # Making the lists may take long, and others want to keep replies meanwhile: a table of
        # this connection alone needs no lock.
        with self.reading() as connection:
            connection.execute("DROP TABLE IF EXISTS temp.pooled")
            connection.execute("CREATE TEMP TABLE pooled (number INTEGER PRIMARY KEY, texts TEXT)")
            connection.executemany(
                "INSERT INTO pooled VALUES (?, ?)",
                ((number, json.dumps(texts, ensure_ascii=False)) for number, texts in lists),
            )
            if connection.execute("SELECT 1 FROM pooled").fetchone() is None:
                connection.execute("DROP TABLE temp.pooled")
                return 0
        with self.writing() as connection:
            known = self.sets().get(name)
            set_ = self.ensure_set(name, settings)
            dropped = 0
            if known is not None and known.settings != settings:
                dropped = self._drop_others(connection, set_)
            self._let_wait(connection, set_)
            connection.execute("DROP TABLE temp.pooled")
        return dropped

    def _drop_others(self, connection: sqlite3.Connection, set_: QuerySet) -> int:
        """Drop the lists of documents that are not pooled."""
        others = "set_id = ? AND number NOT IN (SELECT number FROM pooled)"
        for expanded in self.sets().values():
            if expanded.settings.get("of") == set_.name:
                self._make_stale(connection, others, (expanded.set_id,))
        connection.execute(f"DELETE FROM waiting_queries WHERE {others}", (set_.set_id,))
        deleted = connection.execute(f"DELETE FROM queries WHERE {others}", (set_.set_id,))
        return deleted.rowcount

    @staticmethod
    def _let_wait(connection: sqlite3.Connection, set_: QuerySet) -> None:
        """Let the pooled lists wait to be embedded, but for those that are already."""
        which = (set_.set_id,)
        connection.execute(
            "DELETE FROM waiting_queries WHERE set_id = ? AND number IN"
            " (SELECT number FROM pooled)",
            which,
        )
        connection.execute(
            "UPDATE queries SET digest = (SELECT digest FROM documents d"
            " WHERE d.number = queries.number) WHERE set_id = ? AND EXISTS"
            " (SELECT 1 FROM pooled p WHERE p.number = queries.number AND p.texts = queries.texts)",
            which,
        )
        connection.execute(
            "INSERT INTO waiting_queries SELECT ?, p.number, p.texts, d.digest FROM pooled p"
            " JOIN documents d USING (number) LEFT JOIN queries q ON q.set_id = ?"
            " AND q.number = p.number WHERE q.texts IS NOT p.texts",
            (set_.set_id, set_.set_id),
        )

    def waiting_queries(self, set_: QuerySet, after: int, limit: int) -> list[Waiting]:
        """Return documents behind number ``after`` whose list is still to be embedded, in order."""
        if not set_.derived:
            sql = (
                "SELECT number, id, title, text, w.digest, w.texts FROM waiting_queries w"
                " JOIN documents USING (number) WHERE set_id = ? AND number > ?"
                " ORDER BY number LIMIT ?"
            )
        else:
            sql = (
                "SELECT d.number, id, title, text, d.digest, NULL FROM documents d"
                " LEFT JOIN queries q ON q.set_id = ? AND q.number = d.number"
                " WHERE d.number > ? AND q.digest IS NOT d.digest ORDER BY d.number LIMIT ?"
            )
        with self.reading() as connection:
            found = connection.execute(sql, (set_.set_id, after, limit))
            return [
                Waiting(
                    number, Document(id_, text, title), digest, json.loads(texts) if texts else None
                )
                for number, id_, title, text, digest, texts in bounded(found, 3)
            ]

    def queries_embedded(
        self, set_: QuerySet, done: Sequence[tuple[int, bytes, list[str]]], rows: int
    ) -> None:
        """Record lists (number, digest, texts) whose vectors stand from row ``rows`` on."""
        with self.writing() as connection:
            for number, digest, texts in done:
                connection.execute(
                    "INSERT OR REPLACE INTO queries VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        set_.set_id, number, json.dumps(texts, ensure_ascii=False), digest, rows,
                        len(texts),
                    ),
                )  # fmt: skip
                rows += len(texts)
            connection.executemany(
                "DELETE FROM waiting_queries WHERE set_id = ? AND number = ?",
                [(set_.set_id, number) for number, _, _ in done],
            )
            connection.execute("UPDATE sets SET rows = ? WHERE set_id = ?", (rows, set_.set_id))
            for other in self.sets().values():  # text expanded with the old queries is out of date
                if other.settings.get("of") == set_.name:
                    for number, _, _ in done:
                        self._make_stale(
                            connection, "set_id = ? AND number = ?", (other.set_id, number)
                        )

    def queries(self, set_: QuerySet, number: int) -> list[str]:
        """Return one document's embedded texts of a set, in the order of their vectors."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT texts FROM queries WHERE set_id = ? AND number = ?", (set_.set_id, number)
            ).fetchone()
        return json.loads(found[0]) if found else []

    def spans(self, set_: QuerySet | None) -> NDArray[np.int64]:
        """Return where vectors stand: rows (number, start, count) in order of number.

        Of the documents themselves if ``set_`` is None.
        """
        with self.reading() as connection:
            if set_ is None:
                found = connection.execute(
                    "SELECT number, row, 1 FROM documents WHERE row IS NOT NULL ORDER BY number"
                ).fetchall()
            else:
                found = connection.execute(
                    "SELECT number, start, count FROM queries WHERE set_id = ? ORDER BY number",
                    (set_.set_id,),
                ).fetchall()
        return np.array(found, dtype=np.int64).reshape(-1, 3)

    @staticmethod
    def _make_stale(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> None:
        connection.execute(f"UPDATE queries SET digest = x'' WHERE {where}", values)

    # -- counting and mending -------------------------------------------------------------

    def counts(self) -> dict[str, Any]:
        """Return numbers for people: documents, lists and queries by set, what waits."""
        with self.reading() as connection:

            def number(sql: str, *values: object) -> int:
                return int(connection.execute(sql, values).fetchone()[0] or 0)

            sets = {}
            for set_ in self.sets().values():
                which = (set_.set_id,)
                sets[set_.name] = {
                    **set_.settings,
                    "documents": number(
                        "SELECT count(*) FROM queries WHERE set_id = ? AND count > 0", *which
                    ),
                    "queries": number("SELECT sum(count) FROM queries WHERE set_id = ?", *which),
                    "older_than_text": number(
                        "SELECT count(*) FROM queries q JOIN documents d USING (number)"
                        " WHERE set_id = ? AND q.digest <> d.digest",
                        *which,
                    ),
                    "waiting": self._waiting(connection, set_),
                }
            references = {
                **(self.meta("references") or {}),
                "documents": number("SELECT count(*) FROM selections"),
                "out_of_date": number(
                    "SELECT count(*) FROM documents d LEFT JOIN neighbors n USING (number)"
                    " LEFT JOIN selections s USING (number)"
                    " WHERE d.row IS NOT NULL AND (n.row IS NOT d.row OR s.number IS NULL)"
                )
                + number(  # removed, but still in the lists of others
                    "SELECT count(*) FROM neighbors LEFT JOIN documents d USING (number)"
                    " WHERE d.number IS NULL"
                ),
            }
            return {
                "references": references if references["documents"] else None,
                "documents": number("SELECT count(*) FROM documents"),
                "empty": number("SELECT count(*) FROM documents WHERE empty"),
                "waiting": self.waiting_count(),
                "sets": sets,
            }

    def waiting_lists(self, set_: QuerySet) -> int:
        """Return how many documents' lists of a set still are to be embedded."""
        with self.reading() as connection:
            return self._waiting(connection, set_)

    @staticmethod
    def _waiting(connection: sqlite3.Connection, set_: QuerySet) -> int:
        if not set_.derived:
            sql = "SELECT count(*) FROM waiting_queries WHERE set_id = ?"
        else:
            sql = (
                "SELECT count(*) FROM documents d LEFT JOIN queries q"
                " ON q.set_id = ? AND q.number = d.number WHERE q.digest IS NOT d.digest"
            )
        return int(connection.execute(sql, (set_.set_id,)).fetchone()[0])

    def forget_rows(self, set_: QuerySet | None, rows: int) -> None:
        """Let everything whose vector stands at row ``rows`` or behind wait again."""
        with self.writing() as connection:
            if set_ is None:
                connection.execute(
                    "UPDATE documents SET row = NULL, embedded = NULL WHERE row >= ?", (rows,)
                )
                connection.execute("UPDATE meta SET value = ? WHERE key = 'rows'", (rows,))
                # Rows will be used again for other vectors: these are the old ones' no more.
                connection.execute("UPDATE neighbors SET row = -1 WHERE row >= ?", (rows,))
                return
            which = (set_.set_id, rows)
            if not set_.derived:
                connection.execute(
                    "INSERT OR IGNORE INTO waiting_queries SELECT set_id, number, texts, digest"
                    " FROM queries WHERE set_id = ? AND start + count > ?",
                    which,
                )
            connection.execute("DELETE FROM queries WHERE set_id = ? AND start + count > ?", which)
            connection.execute("UPDATE sets SET rows = ? WHERE set_id = ?", (rows, set_.set_id))
