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

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.database import Database
from strop.errors import BadInput
from strop.files import checked_string
from strop.types import Document

_BATCH_CHARACTERS = 16_000_000


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


@dataclass(frozen=True)
class Waiting:
    """One document whose list is still to be embedded; ``texts`` is None where it is derived."""

    number: int
    document: Document
    digest: bytes
    texts: list[str] | None


def digest_of(document: Document) -> bytes:
    """Return a hash of what is embedded of a document: a change of it means embedding anew."""
    joined = json.dumps([document.title, document.text], ensure_ascii=False)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def expanded_set(style: str) -> str:
    """Return the name of the set of texts expanded with the queries of another."""
    return f"expanded:{style}"


class Catalog(Database):
    """Reads and writes one catalog file; safe to use from several threads."""

    def meta(self, key: str) -> Any:
        """Return one stored value, None if there is none."""
        with self.reading() as connection:
            found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else json.loads(found[0])

    # -- documents ------------------------------------------------------------------------

    def store(self, documents: Iterable[tuple[Document, str]]) -> tuple[int, int, int, int]:
        """Take in documents with the places they came from, all or none.

        Returns how many are new, changed, unchanged and have no content.
        """
        new = changed = same = empty = 0
        with self.writing() as connection:
            # On disk, so that telling duplicates costs no memory.
            connection.execute("DROP TABLE IF EXISTS temp.seen")
            connection.execute(
                "CREATE TEMP TABLE seen (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID"
            )
            for document, place in documents:
                for what in ("id", "title", "text"):
                    checked_string(getattr(document, what), what, place, "give it as text")
                try:
                    connection.execute("INSERT INTO seen VALUES (?, ?)", (document.id, place))
                except sqlite3.IntegrityError:
                    (earlier,) = connection.execute(
                        "SELECT place FROM seen WHERE id = ?", (document.id,)
                    ).fetchone()
                    raise BadInput(
                        f"{place}: document id {document.id!r} stands already at {earlier}. Ids "
                        "must be unique: remove one, or name another field with --id-field"
                    ) from None
                digest = digest_of(document)
                metadata = _metadata(document, place)
                known = connection.execute(
                    "SELECT number, digest, metadata FROM documents WHERE id = ?", (document.id,)
                ).fetchone()
                bare = not document.content
                empty += bare
                if known is None:
                    new += 1
                    connection.execute(
                        "INSERT INTO documents (id, title, text, metadata, digest, empty)"
                        " VALUES (?, ?, ?, ?, ?, ?)",
                        (document.id, document.title, document.text, metadata, digest, bare),
                    )
                elif known[1:] != (digest, metadata):
                    changed += 1
                    connection.execute(
                        "UPDATE documents SET title = ?, text = ?, metadata = ?, digest = ?,"
                        " empty = ? WHERE number = ?",
                        (document.title, document.text, metadata, digest, bare, known[0]),
                    )
                else:
                    same += 1
            connection.execute("DROP TABLE temp.seen")
        return new, changed, same, empty

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents with all that hangs on them; an unknown id removes nothing at all."""
        if isinstance(ids, str):
            raise BadInput(f"remove takes a list of ids, not {ids!r}: write [{ids!r}]")
        with self.writing() as connection:
            numbers = [self.number_of(id_) for id_ in ids]
            for table in ("documents", "queries", "waiting_queries", "selections"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE number = ?", [(number,) for number in numbers]
                )

    def number_of(self, id_: str) -> int:
        """Return a document's number in this index."""
        with self.reading() as connection:
            found = _find(connection, id_)
        if found is None:
            raise BadInput(f"{self.path.parent} has no document {id_!r}")
        return found[0]

    def all_documents(self) -> Iterator[tuple[int, Document, bytes]]:
        """Yield (number, document, digest) in order, each read when it is wanted."""
        number = -1
        while True:
            with self.reading() as connection:
                found = connection.execute(
                    "SELECT number, id, title, text, digest FROM documents WHERE number > ?"
                    " ORDER BY number LIMIT 1",
                    (number,),
                ).fetchone()
            if found is None:
                return
            number, id_, title, text, digest = found
            yield number, Document(id_, text, title), digest

    def all_ids(self) -> list[str]:
        """Return the id of every document, in order of number."""
        with self.reading() as connection:
            found = connection.execute("SELECT id FROM documents ORDER BY number").fetchall()
        return [id_ for (id_,) in found]

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the catalog."""
        with self.reading() as connection:
            return {id_ for id_ in ids if _find(connection, id_) is None}

    def document(self, number: int) -> Document:
        """Return one document by number."""
        with self.reading() as connection:
            id_, title, text, metadata = connection.execute(
                "SELECT id, title, text, metadata FROM documents WHERE number = ?", (number,)
            ).fetchone()
        return Document(id_, text, title, json.loads(metadata))

    def ids(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the ids of documents by number, of those that are there."""
        with self.reading() as connection:
            found = (
                connection.execute(
                    "SELECT number, id FROM documents WHERE number = ?", (number,)
                ).fetchone()
                for number in set(numbers)
            )
            return dict(pair for pair in found if pair is not None)

    def waiting_documents(self, limit: int) -> list[tuple[int, Document, bytes]]:
        """Return documents that still need a vector, in order: (number, document, digest)."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT number, id, title, text, digest FROM documents"
                " WHERE embedded IS NOT digest ORDER BY number LIMIT ?",
                (limit,),
            )
            return [
                (number, Document(id_, text, title), digest)
                for number, id_, title, text, digest in _bounded(found, 3)
            ]

    def waiting_count(self) -> int:
        """Return how many documents still need a vector."""
        return self._count("SELECT count(*) FROM documents WHERE embedded IS NOT digest")

    def __len__(self) -> int:
        """Return the number of documents."""
        return self._count("SELECT count(*) FROM documents")

    def _count(self, sql: str) -> int:
        with self.reading() as connection:
            return int(connection.execute(sql).fetchone()[0])

    def document_rows(self) -> int:
        """Return how many rows of the documents' vector file are in use."""
        return int(self.meta("rows"))

    def documents_embedded(self, done: Sequence[tuple[int, bytes]], rows: int) -> None:
        """Record that (number, digest) of ``done`` have their vectors from row ``rows`` on."""
        with self.writing() as connection:
            connection.executemany(
                "UPDATE documents SET row = ?, embedded = ? WHERE number = ?",
                [(rows + at, digest, number) for at, (number, digest) in enumerate(done)],
            )
            connection.execute("UPDATE meta SET value = ? WHERE key = 'rows'", (rows + len(done),))

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
                found = _find(connection, id_)
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

    def store_generated(self, set_: QuerySet, lists: Iterable[tuple[int, list[str]]]) -> int:
        """Let (number, queries) lists wait to be embedded, in one transaction; count them."""
        with self.writing() as connection:
            connection.execute("DROP TABLE IF EXISTS temp.pooled")
            connection.execute("CREATE TEMP TABLE pooled (number INTEGER PRIMARY KEY, texts TEXT)")
            connection.executemany(
                "INSERT INTO pooled VALUES (?, ?)",
                ((number, json.dumps(texts, ensure_ascii=False)) for number, texts in lists),
            )
            (count,) = connection.execute("SELECT count(*) FROM pooled").fetchone()
            self._let_wait(connection, set_)
            connection.execute("DROP TABLE temp.pooled")
        return int(count)

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
                for number, id_, title, text, digest, texts in _bounded(found, 3)
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


def _bounded(rows: Iterable[tuple[Any, ...]], text: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows until their texts, in column ``text``, are as much as memory should hold."""
    total = 0
    for row in rows:
        yield row
        total += len(row[text])
        if total > _BATCH_CHARACTERS:
            return


def _find(connection: sqlite3.Connection, id_: str) -> tuple[int, bytes] | None:
    """Return a document's number and digest."""
    try:
        found: tuple[int, bytes] | None = connection.execute(
            "SELECT number, digest FROM documents WHERE id = ?", (id_,)
        ).fetchone()
    except UnicodeEncodeError:  # a lone surrogate; no stored id has one
        return None
    return found


def _metadata(document: Document, place: str) -> str:
    try:
        text = json.dumps(dict(document.metadata), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{place}: the metadata cannot be stored as JSON: {error}") from error
    return checked_string(text, "the metadata", place, "use JSON values")
