"""Publishing: brings the copy of an index in an engine up to date, in proportion to what changed.

The log of changes tells which documents may differ from the copy, their stamps which do differ. So
the next publisher continues the work of one that was stopped, and a second run writes nothing. If
the log does not reach back far enough, all stamps are compared. ``META`` is written last, with the
state of the words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import numpy as np

from strop.common.arrays import Ints, ranges
from strop.engines import open_engine
from strop.engines.base import META, Engine, Record, pack
from strop.engines.parents import document_id, parent_pieces, piece_name
from strop.errors import BadIndex, BadInput, StropError
from strop.io.tokenizer import VERSION
from strop.search.rows import as_floats
from strop.search.searcher import Searcher
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot
from strop.storage.word_copies import State, new_pieces, no_words, old_pieces, word_state
from strop.types import Progress, Vectors

FORMAT = 3
"""The format number of copies. A copy of another format is refused."""
BATCH = 500
"""Documents written at a time."""
PIECES = 5000
"""Pieces of words written at a time."""
WORDS = "words"
"""Name of the piece with the state of the words."""
_PENDING_WORDS = "begun"
"""Name of the piece with the state of the words that a publisher is writing."""


@dataclass(frozen=True)
class Publication:
    """The result of publishing: numbers of documents by what was, or would be, done."""

    url: str
    version: int
    new: int
    changed: int
    removed: int
    unchanged: int
    documents: int
    compared: str
    """``log``: only changed documents were compared; ``all``: every document."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def publish(
    searcher: Searcher,
    url: str,
    *,
    source: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Publication:
    """Bring the copy at a URL up to date; with ``dry_run`` only report what would be done.

    ``source`` is a query for the texts (``postgres_source``); then they are not copied.
    """
    catalog = searcher.catalog
    with closing(open_engine(url)) as engine:
        if dry_run:
            engine.refuse_foreign(catalog.dim)
        with nullcontext() if dry_run else engine.publishing(catalog.dim), catalog.reading():
            return _Publisher(searcher, engine, source).run(dry_run, progress)


class _Publisher:
    """Publishes one state of a catalog, within a read transaction."""

    def __init__(self, searcher: Searcher, engine: Engine, source: str | None) -> None:
        self._searcher, self._catalog, self._engine = searcher, searcher.catalog, engine
        self._snapshot, self._documents = searcher.views.snapshot(), searcher.catalog.documents
        self._sets = self._catalog.sets.all()
        self._previous_meta = about = self._read(META)
        if about is not None and about["index_id"] != self._catalog.settings.get("index_id"):
            raise BadIndex(
                f"{engine.address.shown} holds a copy of another index: give the copy another name"
                " (in PostgreSQL ?table=NAME, else another collection or path), or delete that one"
                " first"
            )
        published_source = None if about is None else about.get("source")
        self._source: str | None = source or published_source
        # The copy's query is not run: somebody else may have written it. Its view exists already.
        self._new_source = source if source != published_source else None
        if self._source and not hasattr(engine, "use_source"):
            raise BadInput(f"--source needs PostgreSQL, not {engine.address.shown}")
        if self._source and self._documents.are_split():
            raise BadInput(
                f"the documents of {self._catalog.folder} are split into chunks, whose texts are in"
                " no table: build an index without chunks (strop build --chunk none) for --source"
            )

    def _read(self, name: str) -> Any:
        pieces = self._engine.read([name])
        return json.loads(pieces[name]) if name in pieces else None

    def run(self, dry_run: bool, progress: Progress | None) -> Publication:
        """Write what differs, and return what was done."""
        candidates, removed, compared = self._differing()
        if self._new_source and not dry_run:
            self._engine.use_source(self._new_source)  # type: ignore[attr-defined]
        counts = {"new": 0, "changed": 0, "unchanged": 0}
        for first in range(0, len(candidates), BATCH):
            numbers = candidates[first : first + BATCH]
            stamps = self._engine.stamps(numbers)
            records = []
            for record in records_of(self._catalog, self._snapshot, numbers):
                record = replace(record, text_in_source=bool(self._source))
                old = stamps.get(record.number)
                same = old == record.stamp
                counts["new" if old is None else "unchanged" if same else "changed"] += 1
                if not same:
                    records.append(record)
            if not dry_run:
                self._write_parents(set(self._documents.document_ids_of(numbers.tolist()).values()))
            if records and not dry_run:
                self._engine.put(records)
            if progress is not None:
                progress("publishing documents", first + len(numbers), len(candidates))
        written = counts["new"] + counts["changed"]
        if not dry_run:
            if len(removed):
                self._remove(removed)
            if written or len(removed) or self._previous_meta is None:
                self._engine.prepare()
            self._finish(progress)
        return Publication(
            url=self._engine.address.shown, version=self._snapshot.version, removed=len(removed),
            documents=len(self._snapshot.numbers), compared=compared, **counts,
        )  # fmt: skip

    def _write_parents(self, ids: set[str]) -> None:
        """Write the pieces of split documents that differ, before the records of their chunks."""
        if not self._documents.are_split():
            return
        pieces = dict(parent_pieces(self._catalog, ids - self._documents.unknown(ids)))
        stored = self._engine.read(list(pieces))
        if changed := {
            name: content for name, content in pieces.items() if stored.get(name) != content
        }:
            self._engine.write(changed)

    def _remove(self, numbers: Ints) -> None:
        ids = {document_id(id_) for id_ in self._engine.ids(numbers).values()}
        self._write_parents(ids)
        self._engine.remove(numbers)
        if self._documents.are_split():
            self._engine.forget([], [piece_name(id_) for id_ in self._documents.unknown(ids)])

    def _differing(self) -> tuple[Ints, Ints, str]:
        """Return the documents that may differ from the copy, those to remove, and ``compared``."""
        current, about = self._snapshot.numbers, self._previous_meta
        changes = (
            None if about is None else self._changes_since(about["version"], about.get("mark"))
        )
        previous = None if about is None else (about["format"], about.get("source"))
        if changes is None or previous != (FORMAT, self._source):
            published = self._engine.every()
            return current, np.setdiff1d(published, current, assume_unique=True), "all"
        touched = np.unique(ranges(changes[:, 0], changes[:, 1] - changes[:, 0] + 1))
        missing = np.setdiff1d(touched, current, assume_unique=True)
        removed = np.array(sorted(self._engine.stamps(missing)), np.int64)
        return np.intersect1d(touched, current, assume_unique=True), removed, "log"

    def _changes_since(self, version: int, mark: str | None) -> Any:
        """Return the changes since a version, None if it is not in this folder's history.

        A restored backup, or a copy of the folder, can have another version of the same number.
        """
        same = mark is not None and mark == self._catalog.settings.mark(version)
        return self._catalog.vectors.changes(version) if same else None

    def _finish(self, progress: Progress | None) -> None:
        """Bring the words up to date, then write the description of the copy."""
        published: State = self._read(WORDS) or no_words()
        pending: State = self._read(_PENDING_WORDS) or no_words()  # left by a stopped publisher
        with self._catalog.reading() as connection:
            state = word_state(connection)
            pieces = new_pieces(connection, state, published)
            if state != published:
                self._engine.write({_PENDING_WORDS: _json(state)})
            done = 0
            while batch := dict(islice(pieces, PIECES)):
                self._engine.write(batch)
                done += 1
                if progress is not None:
                    progress("publishing words", done, done)
        about = self._about()
        unchanged = {key: about[key] for key in about if key != "published"}
        previous = {
            key: value for key, value in (self._previous_meta or {}).items() if key != "published"
        }
        if state != published or unchanged != previous:
            self._engine.write({WORDS: _json(state), META: _json(about)})
        for old in (published, pending):
            prefixes, names = old_pieces(state, old)
            if prefixes or names:
                self._engine.forget(prefixes, names)

    def _about(self) -> dict[str, Any]:
        """Return the description that a search of the copy needs, without the folder."""
        catalog, searcher = self._catalog, self._searcher
        files = catalog.vectors.files()
        mixed, split = searcher.views.query_sets(), self._documents.are_split()
        sets = {name: set_ for name, set_ in self._sets.items() if not set_.augmented}
        ids = {0, *(set_.set_id for set_ in sets.values())}
        defaults = {"": searcher.method(None)}
        if mixed:
            defaults["sharp"] = searcher.method("sharp")
        return {
            "format": FORMAT,
            "index_id": catalog.settings.get("index_id"),
            "version": self._snapshot.version,
            "mark": self._catalog.settings.mark(self._snapshot.version),
            "published": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "embedder": catalog.embedder,
            "source": self._source,
            "documents": self._documents.total() if split else len(self._snapshot.numbers),
            "chunks": len(self._snapshot.numbers) if split else None,
            "rows": sum(file.live for set_id, file in files.items() if set_id in ids),
            "sets": {
                name: {
                    "id": set_.set_id,
                    "source": set_.settings["source"],
                    "queries": files[set_.set_id].live,
                    "documents": int(np.count_nonzero(self._snapshot.sets[name].count)),
                    "mixed": name in mixed,
                    "words": not set_.derived,
                }
                for name, set_ in sets.items()
            },
            "methods": {name: asdict(method) for name, method in defaults.items()},
            "languages": catalog.words.tokenizer().languages,
            "tokenizer": VERSION,
        }


def records_of(catalog: Catalog, snapshot: Snapshot, numbers: Ints) -> Iterator[Record]:
    """Yield documents of a snapshot as engines store them, with verified checksums."""
    sets = {name: set_ for name, set_ in catalog.sets.all().items() if not set_.augmented}
    places = np.searchsorted(snapshot.numbers, numbers)
    spans = {0: snapshot.documents}
    spans |= {set_.set_id: snapshot.sets[name] for name, set_ in sets.items()}
    for set_id, span in spans.items():
        used = ranges(span.start[places], span.count[places])
        catalog.vectors.verify_rows(set_id, span.vectors, used, span.known_sums)
    documents = catalog.documents.several(numbers.tolist())
    texts = {name: catalog.sets.queries_of(set_, numbers.tolist()) for name, set_ in sets.items()}
    searched = {0, *(set_.set_id for set_ in sets.values() if not set_.negative)}
    for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
        by_set = {
            set_id: np.asarray(
                span.vectors[span.start[place] : span.start[place] + span.count[place]]
            )
            for set_id, span in spans.items()
            if span.count[place]
        }
        queries = {name: lists[number] for name, lists in texts.items() if lists.get(number)}
        query_rows = sum(map(len, by_set.values())) - 1
        if number not in documents or sum(map(len, queries.values())) != query_rows:
            raise StropError(  # damage must not be copied
                f"{catalog.folder}: document {number} has vectors and not the texts they belong to."
                f" To see what is wrong: strop check {catalog.folder}"
            )
        vectors = [as_floats(rows) for set_id, rows in by_set.items() if set_id in searched]
        rows: Vectors = np.concatenate(vectors)
        filled = np.any(rows, axis=1)
        yield Record(
            number, documents[number], queries, pack(by_set), rows[filled], bool(filled[0])
        )


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=True).encode()
