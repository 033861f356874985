"""The catalog's documents: adding (all or nothing), updating, removing, reading."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from strop.errors import BadInput, UnknownDocument
from strop.io.files import checked_string
from strop.storage.chunks import AUTO, Chunks, Split
from strop.storage.database import Database, reporting_damage
from strop.storage.ledger import VectorLedger
from strop.storage.query_sets import QuerySets
from strop.storage.rows import RowWriter
from strop.storage.settings import Settings
from strop.storage.waiting import WaitingList
from strop.types import Changes, Chunk, Document

SIZES = re.compile(r"[1-9][0-9]{1,8}:[0-9]{1,9}")
"""The sizes of chunks as they are stored, such as ``200:40``."""


class Documents:
    """The documents of a catalog.

    A row is what is embedded and searched: a document, or a chunk of one (chunks.py). Rows have
    numbers. Ids name documents; if there are chunks, they have ids too.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        vectors: VectorLedger,
        waiting: WaitingList,
        sets: QuerySets,
    ) -> None:
        self._database, self._settings = database, settings
        self._vectors, self._waiting, self._sets = vectors, waiting, sets
        self.chunks = Chunks(database)

    def add(
        self,
        documents: Iterable[tuple[Document, str]],
        keep_queries: bool = False,
        split: Split | None = None,
    ) -> Changes:
        """Store documents with the places they came from, all or nothing.

        With ``keep_queries``, queries that were given for an older text count for the new one too.
        ``split`` splits documents into chunks.
        """
        outcomes: Counter[str] = Counter()
        with self._database.writing() as connection:
            rows = self._rows(keep_queries)
            # On disk, so that finding duplicates needs no memory.
            connection.execute("DROP TABLE IF EXISTS temp.seen")
            connection.execute(
                "CREATE TEMP TABLE seen (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID"
            )
            for document, place in documents:
                metadata = _checked_metadata(document, place)
                self._refuse_second(document.id, place)
                outcomes["empty"] += not document.content
                if split is None:
                    _, outcome = rows.put(document, metadata)
                else:
                    outcome = self.chunks.put(rows, document, metadata, split, place)
                outcomes[outcome] += 1
            # Their texts may differ now from those of synced files (manifest.py).
            connection.execute("DELETE FROM manifest WHERE id IN (SELECT id FROM temp.seen)")
            connection.execute("DROP TABLE temp.seen")
            rows.finish()
        return Changes(*(outcomes[kind] for kind in ("new", "changed", "unchanged", "empty")))

    def _rows(self, keep_queries: bool = False) -> RowWriter:
        parts = self._database, self._vectors, self._waiting, self._sets
        return RowWriter(*parts, keep_queries)

    def _refuse_second(self, id_: str, place: str) -> None:
        """Refuse a document whose id was in the same input already."""
        try:
            self._database.execute("INSERT INTO seen VALUES (?, ?)", (id_, place))
        except sqlite3.IntegrityError:
            earlier = self._database.value("SELECT place FROM seen WHERE id = ?", (id_,))
            raise BadInput(
                f"{place}: document id {id_!r} is already used at {earlier}. Ids must be unique: "
                "remove one, or name another field with --id-field"
            ) from None

    def remove(self, ids: Sequence[str]) -> None:
        """Remove documents with all that belongs to them; with an unknown id nothing is removed."""
        if isinstance(ids, str):
            raise BadInput(f"remove takes a list of ids, not {ids!r}: write [{ids!r}]")
        with self._database.writing() as connection:
            rows = self._rows()
            if self.are_split():
                self.chunks.remove(rows, ids)
            else:
                rows.remove(sorted({self.number_of(id_) for id_ in ids}))
            connection.executemany("DELETE FROM manifest WHERE id = ?", [(id_,) for id_ in ids])
            rows.finish()

    def keep_only(self, ids: Iterable[str]) -> int:
        """Remove every document whose id is not among ``ids``; return how many."""
        if isinstance(ids, str):
            raise BadInput(f"keep_only takes a list of ids, not {ids!r}: write [{ids!r}]")
        kept = set(ids)
        removed = [id_ for id_ in self.ids() if id_ not in kept]
        if removed:
            self.remove(removed)
        return len(removed)

    def number_of(self, id_: str) -> int:
        """Return the number of a document's row, or of a chunk's."""
        numbers = self.numbers_of(id_)
        if len(numbers) != 1:
            raise BadInput(
                f"{id_!r} is split into {len(numbers):,} chunks: name one of them, such as"
                f" {self.get(numbers[0]).id!r} (see index.chunks({id_!r}))"
            )
        return numbers[0]

    def chunks_of(self, id_: str) -> list[Chunk]:
        """Return the chunks of a document, in order; none if documents are not split."""
        return self.chunks.read(self.numbers_of(id_))

    def numbers_of(self, id_: str) -> list[int]:
        """Return the row numbers of a document (one, or one per chunk), or that of a chunk."""
        with self._database.reading():
            numbers = self.chunks.numbers_of(id_) or self._database.column(
                "SELECT number FROM documents WHERE id = ?", (id_,)
            )
        if not numbers:
            raise UnknownDocument(self._database.path.parent, id_)
        return numbers

    def are_split(self) -> bool:
        """Return whether documents are split into chunks; if so, each row is a chunk."""
        return self._settings.once_per_version("chunking", self.chunking) not in (None, AUTO)

    def chunking(self) -> str | None:
        """Return the stored setting: None, ``auto`` or sizes such as ``200:40``."""
        stored: str | None = self._settings.get("chunking")
        with reporting_damage(self._database.path, "sizes of chunks"):
            if stored not in (None, AUTO) and not SIZES.fullmatch(stored):
                raise ValueError(f"{stored!r:.80}")
        return stored

    def read(self, id_: str) -> Document:
        """Return a document, or a chunk, by id."""
        with self._database.reading():
            numbers = self.chunks.numbers_of(id_)
            if numbers:
                parent = self.chunks.rows(numbers[:1])[numbers[0]].parent
                with reporting_damage(self._database.path, "chunks"):
                    return self.chunks.documents([parent])[parent]
            return self.get(self.number_of(id_))

    def total(self) -> int:
        """Return the number of documents; chunks are not counted."""
        if self.are_split():
            return int(self._database.value("SELECT count(*) FROM wholes"))
        return self.count()

    def all(self, at_a_time: int = 1) -> Iterator[tuple[int, Document, bytes]]:
        """Yield (number, document, digest) in order; ``at_a_time`` rows are read together."""
        number = -1
        while True:
            rows = self._database.rows(
                "SELECT number, id, title, text, digest FROM documents WHERE number > ?"
                " ORDER BY number LIMIT ?",
                (number, at_a_time),
            )
            if not rows:
                return
            for number, id_, title, text, digest in rows:
                yield number, Document(id_, text, title), digest

    def ids(self) -> list[str]:
        """Return the id of every document, in the order they were added."""
        if self.are_split():
            return self._database.column("SELECT id FROM wholes ORDER BY whole")
        return self._database.column("SELECT id FROM documents ORDER BY number")

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return those of ``ids`` that are not in the catalog."""
        sql = "SELECT 1 FROM documents WHERE id = ?1 UNION ALL SELECT 1 FROM wholes WHERE id = ?1"
        with self._database.reading():
            return {id_ for id_ in ids if self._database.row(sql, (id_,)) is None}

    def get(self, number: int) -> Document:
        """Return one document by number."""
        with reporting_damage(self._database.path, "documents"):
            return self.several([number])[number]

    def several(self, numbers: Iterable[int]) -> dict[int, Document]:
        """Return documents by number; numbers that do not exist are left out."""
        rows = self._database.rows(
            "SELECT number, id, title, text, metadata FROM documents"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (json.dumps(list(numbers)),),
        )
        with reporting_damage(self._database.path, "documents"):
            return {
                number: Document(id_ + "", text + "", title + "", dict(json.loads(metadata)))
                for number, id_, title, text, metadata in rows
            }

    def ids_of(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the ids of documents by number; numbers that do not exist are left out."""
        sql = "SELECT number, id FROM documents WHERE number IN (SELECT value FROM json_each(?))"
        return dict(self._database.rows(sql, (json.dumps(list(numbers)),)))

    def document_ids_of(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the ids of the documents that rows belong to, by row number."""
        if not self.are_split():
            return self.ids_of(numbers)
        rows = self._database.rows(
            "SELECT number, id FROM chunks JOIN wholes USING (whole)"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (json.dumps(list(numbers)),),
        )
        return dict(rows)

    def count(self) -> int:
        """Return the number of rows: documents, or their chunks."""
        return self._settings.number("documents")


def _checked_metadata(document: Document, place: str) -> str:
    """Return a document's metadata as JSON; refuse a document that cannot be stored."""
    for field in ("id", "title", "text"):
        checked_string(getattr(document, field), field, place, "give it as text")
    try:
        text = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{place}: the metadata cannot be stored as JSON: {error}") from error
    return checked_string(text, "the metadata", place, "use JSON values")
