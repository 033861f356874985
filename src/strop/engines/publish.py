"""Publishing: brings the copy of an index in an engine up to date, in proportion to what changed.

The log of changes says which documents may differ from the copy; their stamps say which do. So a
publisher that was stopped is continued by the next one, and a second run writes nothing. Where the
log does not reach back, all stamps are compared. ``META`` is written last, with the words.
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
from strop.engines.parents import document_id, piece_name, whole_pieces
from strop.errors import BadIndex, BadInput, StropError
from strop.io.tokenizer import VERSION
from strop.methods import Method
from strop.search.rows import as_floats
from strop.search.searcher import Searcher
from strop.search.whitening import Whitening
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Snapshot
from strop.storage.word_copies import State, new_pieces, no_words, old_pieces, word_state
from strop.types import Progress, Vectors

FORMAT = 2
"""Of what a copy holds. A copy of another format is refused."""
BATCH = 500
"""Documents written at a time."""
PIECES = 5000
"""Pieces of words written at a time."""
WORDS, WHITENING = "words", "whitening"
_BEGUN = "begun"
"""The pieces that have the state of the words, and that of a publisher which is at work."""


@dataclass(frozen=True)
class Publication:
    """What publishing did, or would do: documents by what happened to them."""

    url: str
    version: int
    new: int
    changed: int
    removed: int
    unchanged: int
    documents: int
    compared: str
    """``log``: only what changed was compared; ``all``: every document."""

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
    """Bring the copy at a URL up to date; with ``dry_run`` only say what would be done.

    ``source`` is a query for the texts (``postgres_source``), which are not copied then.
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
        self._known = about = self._read(META)
        if about is not None and about["index_id"] != self._catalog.settings.get("index_id"):
            raise BadIndex(
                f"{engine.address.shown} holds a copy of another index: give the copy another name"
                " (in PostgreSQL ?table=NAME, else another collection or path), or delete that one"
                " first"
            )
        known = None if about is None else about.get("source")
        self._source: str | None = source or known
        # What the copy names is not run: somebody else may have written it. Its view is there.
        self._new_source = source if source != known else None
        if self._source and not hasattr(engine, "use_source"):
            raise BadInput(f"--source needs PostgreSQL, not {engine.address.shown}")
        if self._source and self._documents.are_chunked():
            raise BadInput(
                f"{self._catalog.folder} is cut into chunks, whose texts are in no table: build an"
                " index of whole documents (strop build --chunk none) for --source"
            )

    def _read(self, name: str) -> Any:
        found = self._engine.read([name])
        return json.loads(found[name]) if name in found else None

    def run(self, dry_run: bool, progress: Progress | None) -> Publication:
        """Write what differs; return what that was."""
        candidates, gone, compared = self._differing()
        if self._new_source and not dry_run:
            self._engine.use_source(self._new_source)  # type: ignore[attr-defined]
        counts = {"new": 0, "changed": 0, "unchanged": 0}
        for at in range(0, len(candidates), BATCH):
            numbers = candidates[at : at + BATCH]
            stamps = self._engine.stamps(numbers)
            records = []
            for record in records_of(self._catalog, self._snapshot, numbers):
                record = replace(record, elsewhere=bool(self._source))
                old = stamps.get(record.number)
                same = old == record.stamp
                counts["new" if old is None else "unchanged" if same else "changed"] += 1
                if not same:
                    records.append(record)
            if not dry_run:
                self._write_wholes(set(self._documents.document_ids_of(numbers.tolist()).values()))
            if records and not dry_run:
                self._engine.put(records)
            if progress is not None:
                progress("publishing documents", at + len(numbers), len(candidates))
        written = counts["new"] + counts["changed"]
        if not dry_run:
            if len(gone):
                self._remove(gone)
            if written or len(gone) or self._known is None:
                self._engine.prepare()
            self._finish(progress)
        return Publication(
            url=self._engine.address.shown, version=self._snapshot.version, removed=len(gone),
            documents=len(self._snapshot.numbers), compared=compared, **counts,
        )  # fmt: skip

    def _write_wholes(self, ids: set[str]) -> None:
        """Write documents that are cut, where they differ: before the records of their chunks."""
        if not self._documents.are_chunked():
            return
        pieces = dict(whole_pieces(self._catalog, ids - self._documents.unknown(ids)))
        there = self._engine.read(list(pieces))
        if changed := {name: new for name, new in pieces.items() if there.get(name) != new}:
            self._engine.write(changed)

    def _remove(self, gone: Ints) -> None:
        ids = {document_id(id_) for id_ in self._engine.ids(gone).values()}
        self._write_wholes(ids)
        self._engine.remove(gone)
        if self._documents.are_chunked():
            self._engine.forget([], [piece_name(id_) for id_ in self._documents.unknown(ids)])

    def _differing(self) -> tuple[Ints, Ints, str]:
        """Return the documents that may differ from the copy, those to remove, and how it knows."""
        here, about = self._snapshot.numbers, self._known
        since = None if about is None else self._since(about["version"], about.get("mark"))
        known = None if about is None else (about["format"], about.get("source"))
        if since is None or known != (FORMAT, self._source):
            there = self._engine.every()
            return here, np.setdiff1d(there, here, assume_unique=True), "all"
        touched = np.unique(ranges(since[:, 0], since[:, 1] - since[:, 0] + 1))
        missing = np.setdiff1d(touched, here, assume_unique=True)
        gone = np.array(sorted(self._engine.stamps(missing)), np.int64)
        return np.intersect1d(touched, here, assume_unique=True), gone, "log"

    def _since(self, version: int, mark: str | None) -> Any:
        """Return what changed since a version, None if it is not one of this folder's history.

        A folder that was restored from a backup, or copied, reaches the same number another way.
        """
        same = mark is not None and mark == self._catalog.settings.mark(version)
        return self._catalog.vectors.changes(version) if same else None

    def _finish(self, progress: Progress | None) -> None:
        """Bring the words up to date, then say what the copy is."""
        known: State = self._read(WORDS) or no_words()
        left: State = self._read(_BEGUN) or no_words()  # of a publisher that was stopped
        with self._catalog.reading() as connection:
            state = word_state(connection)
            pieces = new_pieces(connection, state, known)
            if state != known:
                self._engine.write({_BEGUN: _json(state)})
            done = 0
            while part := dict(islice(pieces, PIECES)):
                self._engine.write(part)
                done += 1
                if progress is not None:
                    progress("publishing words", done, done)
        about = self._about()
        unchanged = {key: about[key] for key in about if key != "published"}
        before = {key: value for key, value in (self._known or {}).items() if key != "published"}
        if state != known or unchanged != before:
            written = {WORDS: _json(state), META: _json(about)}
            if whitening := about["whitening"]:
                rows = [self._snapshot.sets[name].vectors for name in whitening["sets"]]
                written = {WHITENING: Whitening(rows, whitening["power"]).to_bytes(), **written}
            self._engine.write(written)
        for old in (known, left):
            prefixes, names = old_pieces(state, old)
            if prefixes or names:
                self._engine.forget(prefixes, names)

    def _about(self) -> dict[str, Any]:
        """Return what a copy must know to be searched without the folder."""
        catalog, searcher = self._catalog, self._searcher
        files = catalog.vectors.files()
        mixed, cut = searcher.views.query_sets(), self._documents.are_chunked()
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
            "documents": self._documents.total() if cut else len(self._snapshot.numbers),
            "chunks": len(self._snapshot.numbers) if cut else None,
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
            "whitening": whitened(defaults[""], mixed),
            "languages": catalog.words.tokenizer().languages,
            "tokenizer": VERSION,
        }


def whitened(method: Method, mixed: list[str]) -> dict[str, Any] | None:
    """Return which map of whitening.py a method needs, as JSON values."""
    if not method.whiten:
        return None
    return {"power": method.whiten, "sets": list(mixed if method.sets is None else method.sets)}


def records_of(catalog: Catalog, snapshot: Snapshot, numbers: Ints) -> Iterator[Record]:
    """Yield documents as engines store them, of numbers that a snapshot has; verified."""
    sets = {name: set_ for name, set_ in catalog.sets.all().items() if not set_.augmented}
    places = np.searchsorted(snapshot.numbers, numbers)
    spans = {0: snapshot.documents}
    spans |= {set_.set_id: snapshot.sets[name] for name, set_ in sets.items()}
    for set_id, of in spans.items():
        used = ranges(of.start[places], of.count[places])
        catalog.vectors.verify_rows(set_id, of.vectors, used, of.known_sums)
    documents = catalog.documents.several(numbers.tolist())
    texts = {name: catalog.sets.queries_of(set_, numbers.tolist()) for name, set_ in sets.items()}
    searched = {0, *(set_.set_id for set_ in sets.values() if not set_.negative)}
    for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
        parts = {
            set_id: np.asarray(of.vectors[of.start[place] : of.start[place] + of.count[place]])
            for set_id, of in spans.items()
            if of.count[place]
        }
        queries = {name: of[number] for name, of in texts.items() if of.get(number)}
        rows_of_queries = sum(map(len, parts.values())) - 1
        if number not in documents or sum(map(len, queries.values())) != rows_of_queries:
            raise StropError(  # a copy of damage is no copy
                f"{catalog.folder}: document {number} has vectors and not the texts they belong to."
                f" To see what is wrong: strop check {catalog.folder}"
            )
        vectors = [as_floats(rows) for set_id, rows in parts.items() if set_id in searched]
        rows: Vectors = np.concatenate(vectors)
        filled = np.any(rows, axis=1)
        yield Record(number, documents[number], queries, pack(parts), rows[filled], bool(filled[0]))


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=True).encode()
