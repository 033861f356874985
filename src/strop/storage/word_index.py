"""The words of an index: counted in the transaction that changes texts, read by searches.

Triggers on the tables of texts record which documents and lists changed, whatever changes them.
Before the commit the words of these are counted from the tables. A list of queries that was
given (imported or generated) counts if it has vectors and was given for the present text of its
document (ledger.py). Lists that are derived from the text add no words.

The languages of the texts determine their terms. They are detected when the first documents are
added, and again when there are ten times as many. Only if the languages differ then, all words are
recounted.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from strop.errors import IndexDamaged
from strop.io.languages import LANGUAGES, SAMPLE, detect_languages
from strop.io.tokenizer import VERSION, Tokenizer
from strop.storage.database import Database, reporting_damage
from strop.storage.ledger import DERIVED
from strop.storage.settings import Settings
from strop.storage.word_reader import SourceWords, load_source
from strop.storage.words import TEXT, WordWriter, read_segment
from strop.types import Document

_GROWTH = 10
"""Languages are detected again when the number of documents has grown by this factor."""
_EVENTS = (
    ("documents", "INSERT", f"{TEXT}, NEW.number", "1"),
    ("documents", "DELETE", f"{TEXT}, OLD.number", "1"),
    ("documents", "UPDATE", f"{TEXT}, NEW.number", "NEW.digest IS NOT OLD.digest"),
    ("queries", "INSERT", "NEW.set_id, NEW.number", "1"),
    ("queries", "DELETE", "OLD.set_id, OLD.number", "1"),
    ("spans", "UPDATE", "NEW.set_id, NEW.number", "NEW.set_id AND NEW.older IS NOT OLD.older"),
)
"""Table, event, (source, document number) of the words that change, and the condition."""
_WITH_WORDS = (
    "SELECT 0, number FROM documents UNION ALL"
    " SELECT set_id, q.number FROM queries q JOIN spans s USING (set_id, number)"
    " JOIN sets USING (set_id) WHERE NOT s.older"
    f" AND json_extract(settings, '$.source') NOT IN {DERIVED} ORDER BY 1, 2"
)
"""Each source and document number that must have words."""
_CHANGED_LISTS = (
    "SELECT c.source, c.number, iif(s.older = 0, q.texts, NULL)"
    " FROM (SELECT DISTINCT source, number FROM changed_texts WHERE source != 0"
    " AND source NOT IN (SELECT set_id FROM sets"
    f" WHERE json_extract(settings, '$.source') IN {DERIVED})) c"
    " LEFT JOIN queries q ON q.set_id = c.source AND q.number = c.number"
    " LEFT JOIN spans s ON s.set_id = c.source AND s.number = c.number"
    " ORDER BY c.source, c.number"
)
_CHANGED_DOCUMENTS = (
    "SELECT c.number, title, text FROM (SELECT DISTINCT number FROM changed_texts"
    " WHERE source = 0) c LEFT JOIN documents d ON d.number = c.number ORDER BY c.number"
)


def word_settings(languages: Mapping[str, str], documents: int | None) -> dict[str, Any]:
    """Return what an index stores about its terms: the tokenizer's version and the languages.

    ``documents`` is the number of documents that the languages were detected from, None if the
    user gave the languages.
    """
    return {"version": VERSION, "languages": dict(languages), "from": documents}


class WordIndex:
    """The words of a catalog's documents and given query lists."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._tokenizer: tuple[object, Tokenizer] | None = None
        database.follow(self._watch, self._update)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that the words of this index were counted with, for queries."""
        stored = self._settings.once_per_version("words", self._stored)
        if stored is not None and stored["version"] != VERSION:
            raise IndexDamaged(
                f"{self._database.path.parent} has words that another version of strop counted. "
                f"Count them again: strop check {self._database.path.parent} --repair"
            )
        languages = None if stored is None else stored["languages"]
        cached = self._tokenizer
        if cached is None or cached[0] != languages:
            cached = self._tokenizer = languages, Tokenizer(languages)
        return cached[1]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction; cells that cannot be decoded are reported as damage."""
        with self._database.reading() as connection, reporting_damage(self._database.path, "words"):
            yield connection

    def load(
        self, sources: list[int], before: Mapping[int, SourceWords] | None = None
    ) -> dict[int, SourceWords]:
        """Return sources of words by id; of a source in ``before``, only the changes are read."""
        with self.reading() as connection:
            return {one: load_source(connection, one, (before or {}).get(one)) for one in sources}

    def compact(self) -> None:
        """Drop the postings of words that were replaced or removed, if they are many."""
        with self._database.writing() as connection, reporting_damage(self._database.path, "words"):
            WordWriter(connection).compact()

    def recount(self) -> None:
        """Recount all words from the texts."""
        with self._database.writing() as connection:
            try:
                self._stored()
            except IndexDamaged:
                self._settings.put(words=None)
            if self._detection_is_due():
                self._detect(connection)
            with reporting_damage(self._database.path, "texts"):
                self._recount(connection)

    def size(self) -> int:
        """Return how many bytes of the catalog are words, without SQLite's overhead."""
        size = self._database.value("SELECT coalesce(sum(bytes), 0) FROM word_segments")
        with reporting_damage(self._database.path, "words"):
            return int(size)

    def problems(self) -> list[str]:
        """Read all words and return a description of each problem."""
        problems = []
        with self._database.reading() as connection:
            self.tokenizer()
            if self._stored() is None and self._settings.number("documents"):
                problems.append("the index does not say what its words are")
            rows = connection.execute("SELECT source FROM word_sources").fetchall()
            expected: dict[int, list[int]] = {TEXT: [], **{source: [] for (source,) in rows}}
            for source, number in connection.execute(_WITH_WORDS):
                expected.setdefault(source, []).append(number)
            for source, numbers in expected.items():
                name = "the documents" if source == TEXT else f"query set {source}"
                words = load_source(connection, source)
                with_words = np.flatnonzero(words.entries[0])
                counts = words.texts, words.words, with_words.tolist()
                if counts != (len(numbers), int(words.entries[1].sum()), numbers):
                    problems.append(f"the words of {name} are not those of its texts")
                for segment, _ in words.segments.values():
                    if read_segment(connection, segment.segment).sum != segment.sum:
                        problems.append(f"words of {name} are not what was written")
            (orphans,) = connection.execute(
                "SELECT count(*) FROM word_postings WHERE segment NOT IN"
                " (SELECT segment FROM word_segments)"
            ).fetchone()
        return problems + ([f"{orphans:,} words belong to nothing"] if orphans else [])

    # -- inside -------------------------------------------------------------------------------

    @staticmethod
    def _watch(connection: sqlite3.Connection) -> None:
        """Prepare a connection to record which texts it changes."""
        script = ["CREATE TEMP TABLE IF NOT EXISTS changed_texts (source INTEGER, number INTEGER)"]
        script += [
            f"CREATE TEMP TRIGGER IF NOT EXISTS words_{table}_{event} AFTER {event}"
            f" ON main.{table} WHEN {when} BEGIN INSERT INTO changed_texts VALUES ({values}); END"
            for table, event, values, when in _EVENTS
        ]
        connection.executescript(";\n".join(script))

    def _update(self, connection: sqlite3.Connection) -> bool:
        """Before a commit: count the words of changed texts; return whether there were any."""
        if connection.execute("SELECT 1 FROM changed_texts").fetchone() is None:
            return False
        with reporting_damage(self._database.path, "words"):
            if self._detection_is_due() and self._detect(connection):
                self._recount(connection)
            else:
                self._count(connection)
        return True

    def _stored(self) -> dict[str, Any] | None:
        stored = self._settings.get("words")
        if stored is None:
            return None
        with reporting_damage(self._database.path, "settings of words"):
            languages, documents = dict(stored["languages"]), stored["from"]
            for script, name in languages.items():
                if name not in LANGUAGES[script]:
                    raise ValueError(f"{name!r:.40} is no language of {script}")
            return {
                "version": stored["version"],
                "languages": languages,
                "from": None if documents is None else int(documents),
            }

    def _detection_is_due(self) -> bool:
        """Return whether the languages must be detected, or detected again."""
        stored, documents = self._stored(), self._settings.number("documents")
        if stored is None:
            return documents > 0
        if stored["version"] != VERSION:
            return True
        return stored["from"] is not None and documents >= _GROWTH * max(1, stored["from"])

    def _detect(self, connection: sqlite3.Connection) -> bool:
        """Detect the languages; return whether words were counted with other languages."""
        stored = self._stored()
        if stored is not None and stored["from"] is None:  # they were given
            new = word_settings(stored["languages"], None)
        else:
            documents = self._settings.number("documents")
            new = word_settings(detect_languages(_sample(connection)), documents)
        self._settings.put(words=new)
        return stored is not None and stored != {**new, "from": stored["from"]}

    def _recount(self, connection: sqlite3.Connection) -> None:
        (newest,) = connection.execute(
            "SELECT coalesce(max(CAST(generation AS INTEGER)), 0) FROM word_sources"
        ).fetchone()
        for table in ("word_postings", "word_segments", "word_lengths", "word_sources"):
            connection.execute(f"DELETE FROM {table}")
        # A new generation shows readers that the words they have read are obsolete.
        connection.execute(
            "INSERT INTO word_sources SELECT set_id, ?1, ?1, 0, 0 FROM files",
            (newest % 2**31 + 1,),
        )
        connection.execute("INSERT INTO changed_texts SELECT ?, number FROM documents", (TEXT,))
        connection.execute("INSERT INTO changed_texts SELECT set_id, number FROM queries")
        self._count(connection)

    def _count(self, connection: sqlite3.Connection) -> None:
        writer, terms_of = WordWriter(connection), self.tokenizer().document
        removed = defaultdict(list)
        for source, number, text in _changed(connection):
            if text is None:
                removed[source].append(number)
            else:
                writer.put(source, number, terms_of(text))
        for source, numbers in removed.items():
            writer.remove(source, numbers)
        writer.flush()
        connection.execute("DELETE FROM changed_texts")


def _changed(connection: sqlite3.Connection) -> Iterator[tuple[int, int, str | None]]:
    """Yield (source, document number, text) of what changed; None if no text counts now."""
    for number, title, text in connection.execute(_CHANGED_DOCUMENTS):
        yield TEXT, number, None if text is None else Document("", text, title).counted
    for source, number, texts in connection.execute(_CHANGED_LISTS):
        yield source, number, None if texts is None else "\n".join(json.loads(texts))


def _sample(connection: sqlite3.Connection) -> list[str]:
    """Return the beginnings of documents from all over the index."""
    first, last = connection.execute("SELECT min(number), max(number) FROM documents").fetchone()
    numbers = np.linspace(first, last, SAMPLE).astype(np.int64)
    rows = connection.execute(
        "SELECT title, substr(text, 1, 10000) FROM documents"
        " WHERE number IN (SELECT value FROM json_each(?))",
        (json.dumps(np.unique(numbers).tolist()),),
    )
    return [f"{title}\n{text}" for title, text in rows]
