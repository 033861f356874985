"""The data that searches of an index use: the newest snapshot, its layouts and its words."""

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
"""Queries that a view leaves out: for each set and document number, flags over its list."""


@dataclass
class VersionCache:
    """Results computed for one version of an index; searches of that version share them."""

    snapshot: Snapshot
    layouts: dict[object, Layout] = field(default_factory=dict)
    sources: dict[int, SourceWords] = field(default_factory=dict)
    words: dict[object, Words] = field(default_factory=dict)
    """The key is the ids of the sets whose words count."""
    selected: dict[Filter, FilteredDocuments] = field(default_factory=dict)

    @cached_property
    def groups(self) -> Ints:
        """A number for the document of each chunk, -1 if it was not read yet."""
        return np.full(len(self.snapshot.numbers), -1, np.int64)


class View(NamedTuple):
    """The documents of an index at one moment, with the lists of the sets that a method mixes."""

    snapshot: Snapshot
    layout: Layout
    names: list[str]
    cache: VersionCache


class Views:
    """The views of an index, recomputed only when it has changed.

    With ``fixed``, a snapshot and the queries that it leaves out, they ignore later changes.
    """

    def __init__(self, catalog: Catalog, fixed: tuple[Snapshot, Removed] | None = None) -> None:
        self._catalog = catalog
        self.fixed = fixed is not None
        self._removed: Removed = fixed[1] if fixed else {}
        # Replaced as one value: threads may use different versions at the same time.
        self._newest_cache: VersionCache | None = VersionCache(fixed[0]) if fixed else None
        self._previous: tuple[Ints, dict[object, Layout]] | None = None  # numbers, layouts
        self._word_scores: dict[tuple[WordScorer, str], Floats] | None = None

    def close(self) -> None:
        """Release the vectors."""
        self._newest_cache = self._previous = None

    def query_sets(self) -> list[str]:
        """Return the names of the query sets that ``sharp`` mixes: all except negative ones."""
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
        sets = self._catalog.sets.all()
        ids = [sets[name].set_id for name in names]  # a later set may have the same name
        key = (*ids, method.n, method.augmented)
        layout = newest.layouts.get(key)
        if layout is None:
            documents = snapshot.documents
            if method.augmented is not None:
                documents = snapshot.sets[self._augmented(method)]
            mixed = [snapshot.sets[name] for name in names]
            layout = Layout(documents, mixed, method.n)
            self._carry_over(snapshot, layout, key)
            newest.layouts[key] = layout
        return View(snapshot, layout, names, newest)

    def _newest(self) -> VersionCache:
        last = self._newest_cache
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
                self._previous = last.snapshot.numbers, last.layouts
        # Not read back from self: another thread may have stored another version in the meantime.
        self._newest_cache = newest
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
        """Copy Gram terms of unchanged documents from the previous version's layout."""
        previous = self._previous
        older = None if previous is None else previous[1].pop(key, None)
        if previous is None or older is None or not older.size:
            return
        numbers = previous[0]
        at = np.minimum(np.searchsorted(numbers, snapshot.numbers), older.size - 1)
        layout.follow(older, np.where(numbers[at] == snapshot.numbers, at, -1))

    def words(self, method: Method) -> Words:
        """Return the words of the documents of the newest version.

        The generated queries that a method mixes count as part of the document's text. If a method
        mixes none, the queries of the sets that it names count, as in ``bm25:sets=simple``. ``n``
        limits the vectors only.
        """
        with self._catalog.reading():
            newest, all_sets = self._newest(), self._catalog.sets.all()
        names = self.mixed(method) or method.sets or ()
        sets = [all_sets[name] for name in names if not all_sets[name].derived]
        key = tuple(set_.set_id for set_ in sets)
        if key not in newest.words:
            newest.words[key] = (
                self._count_words(newest.snapshot, sets)
                if self.fixed
                else self._stored_words(newest.snapshot, [TEXT, *key], newest.sources)
            )
        words, cache = newest.words[key], self._word_scores
        return words if cache is None else words.with_cache(cache)

    @contextmanager
    def caching_word_scores(self) -> Iterator[None]:
        """Compute the word scores of each query only once within this context."""
        self._word_scores = {}
        try:
            yield
        finally:
            self._word_scores = None

    def _stored_words(
        self, snapshot: Snapshot, sources: list[int], cached: dict[int, SourceWords]
    ) -> Words:
        """Return the words in the catalog; ``cached`` ones of an older version are updated."""
        index = self._catalog.words
        loaded = index.load(sources, cached)
        cached |= loaded
        with reporting_damage(self._catalog.path, "words"):
            last, size = snapshot.numbers[-1:], loaded[TEXT].entries.shape[1]
            if (last >= size).any():
                raise ValueError(f"document {last[0]} of {size} has none")
            scorer = WordScorer(loaded)
        return Words(index.tokenizer(), scorer, lambda _: index.reading(), snapshot.numbers)

    def _count_words(self, snapshot: Snapshot, sets: Sequence[QuerySet]) -> Words:
        """Count the words of a fixed view, which the catalog does not store: texts and queries."""
        numbers = snapshot.numbers.tolist()
        lists = [self.texts_of(set_, numbers) for set_ in sets]

        def text(number: int) -> str:
            document = self._catalog.documents.get(number)
            queries = (query for by_number in lists for query in by_number.get(number, []))
            return "\n".join([document.counted, *queries])

        texts = map(text, numbers)
        return count_words(texts, self._catalog.words.tokenizer())

    def mixed_texts(
        self, view: View, method: Method, numbers: Sequence[int]
    ) -> dict[int, list[tuple[str, str]]]:
        """Return the queries that a method mixes into documents, with their sets, by number."""
        sets = self._catalog.sets.all()
        texts: dict[int, list[tuple[str, str]]] = {number: [] for number in numbers}
        for name in view.names:
            for number, queries in self.texts_of(sets[name], numbers).items():
                texts[number] += [(name, text) for text in queries[: method.n]]
        return texts

    def texts_of(self, set_: QuerySet, numbers: Sequence[int]) -> dict[int, list[str]]:
        """Return documents' queries of a set, by number, without those left out."""
        lists = self._catalog.sets.queries_of(set_, numbers)
        for number, removed in self._removed.get(set_.name, {}).items():
            if number in lists:
                pairs = zip(lists[number], removed, strict=True)
                lists[number] = [text for text, is_removed in pairs if not is_removed]
        return lists
