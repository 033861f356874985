"""What searches see of an index: the newest snapshot, its layouts and its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints
from strop.errors import BadIndex, BadInput
from strop.filters import Filter
from strop.methods import Method
from strop.search.filtered import FilteredDocuments
from strop.search.layout import Layout
from strop.search.words import Words, WordScorer, count_words
from strop.storage.catalog import Catalog
from strop.storage.database import reporting_damage
from strop.storage.query_sets import QuerySet, augmented_set
from strop.storage.snapshot import Snapshot, load_snapshot
from strop.storage.word_reader import SourceWords
from strop.storage.words import TEXT

Removed = Mapping[str, Mapping[int, NDArray[np.bool_]]]
"""Queries that a view is without: for each set and document number, which of its list."""


@dataclass
class VersionCache:
    """What was computed for one version of an index; searches of that version share it."""

    snapshot: Snapshot
    layouts: dict[object, Layout] = field(default_factory=dict)
    sources: dict[int, SourceWords] = field(default_factory=dict)
    words: dict[object, Words] = field(default_factory=dict)
    """By the sets whose words count."""
    selected: dict[Filter, FilteredDocuments] = field(default_factory=dict)

    @cached_property
    def groups(self) -> Ints:
        """A number for the document of each chunk, -1 where it was not read yet."""
        return np.full(len(self.snapshot.numbers), -1, np.int64)


class View(NamedTuple):
    """The documents of an index at one moment, with the lists of the sets that a method mixes."""

    snapshot: Snapshot
    layout: Layout
    names: list[str]
    cache: VersionCache


class Views:
    """The views of an index, computed anew only when it has changed.

    With ``fixed``, a snapshot and the queries it is without, they never follow a change.
    """

    def __init__(self, catalog: Catalog, fixed: tuple[Snapshot, Removed] | None = None) -> None:
        self._catalog = catalog
        self.fixed = fixed is not None
        self._removed: Removed = fixed[1] if fixed else {}
        # Replaced as one value: threads may look at different versions at the same time.
        self._last: VersionCache | None = VersionCache(fixed[0]) if fixed else None
        self._before: tuple[Ints, dict[object, Layout]] | None = None  # numbers, layouts
        self._remembered: dict[tuple[WordScorer, str], Floats] | None = None  # word scores

    def close(self) -> None:
        """Release the vectors."""
        self._last = self._before = None

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes: all but negative ones."""
        sets = self._catalog.sets.all()
        return [name for name, set_ in sets.items() if not set_.augmented and not set_.negative]

    def mixed(self, method: Method) -> list[str]:
        """Return the names of the sets whose vectors a method mixes into documents."""
        if method.weighting == "none":
            return []
        return list(self.query_sets() if method.sets is None else method.sets)

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot."""
        with self._catalog.reading():
            return self._newest().snapshot

    def of(self, method: Method) -> View:
        """Return the newest view for a method."""
        newest = self._newest()
        snapshot, names = newest.snapshot, self.mixed(method)
        known = self._catalog.sets.all()  # another set may have the name later
        ids = [known[name].set_id for name in names]
        key = (*ids, method.n, method.augmented, method.whiten)
        layout = newest.layouts.get(key)
        if layout is None:
            documents = snapshot.documents
            if method.augmented is not None:
                documents = snapshot.sets[self._augmented(method)]
            mixed = [snapshot.sets[name] for name in names]
            layout = Layout(documents, mixed, method.n, method.whiten)
            if not method.whiten:  # its map changes with the vectors
                self._carry_over(snapshot, layout, key)
            newest.layouts[key] = layout
        return View(snapshot, layout, names, newest)

    def _newest(self) -> VersionCache:
        last = self._last
        if last is not None and last.snapshot.version == self._catalog.settings.number("version"):
            return last
        if self.fixed:
            raise BadIndex(
                f"{self._catalog.folder} changed while it was being scored: score it again"
            )
        newest = VersionCache(load_snapshot(self._catalog, None if last is None else last.snapshot))
        if last is not None:
            newest.sources = dict(last.sources)
            if newest.snapshot.documents is last.snapshot.documents:
                newest.layouts = last.layouts
            else:
                self._before = last.snapshot.numbers, last.layouts
        # Not read back from self: another thread may have put another version there meanwhile.
        self._last = newest
        return newest

    def _augmented(self, method: Method) -> str:
        name = augmented_set(method.augmented or "")
        augmented = self._catalog.sets.all().get(name)
        if augmented is None or self._catalog.waiting.count(augmented.set_id):
            raise BadInput(
                f"{method.name} needs every document embedded with its {method.augmented!r} "
                f"queries: call index.augment({method.augmented!r}) first"
            )
        return name

    def _carry_over(self, snapshot: Snapshot, layout: Layout, key: object) -> None:
        """Give a layout what the one before it has computed for documents that did not change."""
        before = self._before
        older = None if before is None else before[1].pop(key, None)
        if before is None or older is None or not older.size:
            return
        at = np.minimum(np.searchsorted(before[0], snapshot.numbers), older.size - 1)
        layout.follow(older, np.where(before[0][at] == snapshot.numbers, at, -1))

    def words(self, method: Method) -> Words:
        """Return the words of the documents, of the newest version.

        The generated queries that a method mixes count as the document's own words. A method that
        mixes none counts those of the sets that it names, such as ``bm25:sets=simple``. ``n``
        limits the vectors only.
        """
        with self._catalog.reading():
            newest, known = self._newest(), self._catalog.sets.all()
        names = self.mixed(method) or method.sets or ()
        sets = [known[name] for name in names if not known[name].derived]
        key = tuple(set_.set_id for set_ in sets)
        if key not in newest.words:
            newest.words[key] = (
                self._count_words(newest.snapshot, sets)
                if self.fixed
                else self._stored_words(newest.snapshot, [TEXT, *key], newest.sources)
            )
        words, remembered = newest.words[key], self._remembered
        return words if remembered is None else words.remembering(remembered)

    @contextmanager
    def remembering_words(self) -> Iterator[None]:
        """Compute the word scores of each query only once meanwhile."""
        self._remembered = {}
        try:
            yield
        finally:
            self._remembered = None

    def _stored_words(
        self, snapshot: Snapshot, sources: list[int], known: dict[int, SourceWords]
    ) -> Words:
        """Return the words in the catalog; what is known of an older version is followed."""
        index = self._catalog.words
        loaded = index.load(sources, known)
        known |= loaded
        with reporting_damage(self._catalog.path, "words"):
            last, behind = snapshot.numbers[-1:], loaded[TEXT].entries.shape[1]
            if (last >= behind).any():
                raise ValueError(f"document {last[0]} of {behind} has none")
            scorer = WordScorer(loaded)
        return Words(index.tokenizer(), scorer, lambda _: index.reading(), snapshot.numbers)

    def _count_words(self, snapshot: Snapshot, sets: Sequence[QuerySet]) -> Words:
        """Count the words of a view that the catalog does not keep: texts and their queries."""
        numbers = snapshot.numbers.tolist()
        lists = [self.texts_of(set_, numbers) for set_ in sets]

        def text(number: int) -> str:
            own = self._catalog.documents.get(number).counted
            return "\n".join([own, *(one for of in lists for one in of.get(number, []))])

        texts = map(text, numbers)
        return count_words(texts, self._catalog.words.tokenizer())

    def mixed_texts(
        self, view: View, method: Method, numbers: Sequence[int]
    ) -> dict[int, list[tuple[str, str]]]:
        """Return the queries that a method mixes into documents, with their sets, by number."""
        known = self._catalog.sets.all()
        texts: dict[int, list[tuple[str, str]]] = {number: [] for number in numbers}
        for name in view.names:
            for number, of in self.texts_of(known[name], numbers).items():
                texts[number] += [(name, text) for text in of[: method.n]]
        return texts

    def texts_of(self, set_: QuerySet, numbers: Sequence[int]) -> dict[int, list[str]]:
        """Return documents' queries of a set that this view has, by number."""
        lists = self._catalog.sets.queries_of(set_, numbers)
        for number, removed in self._removed.get(set_.name, {}).items():
            if number in lists:
                pairs = zip(lists[number], removed, strict=True)
                lists[number] = [text for text, gone in pairs if not gone]
        return lists
