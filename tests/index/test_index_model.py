"""An index against a simple model of it, over random sequences of changes."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.fakes import (
    DIM,
    Bag,
    Doubles,
    Failure,
    all_scores,
    assert_close,
    create,
    max_score,
    memory,
    reopen,
    sharpened_score,
    vector_of,
    vectors_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strop import Document
from strop.errors import BadInput, UnfinishedIndex

pytestmark = pytest.mark.usefixtures("without_words")

# -- against a model -------------------------------------------------------------------------

WORDS = "amber birch cedar delta ember fjord grove heath islet jetty".split()
POOL = [f"d{i}" for i in range(8)]

_word = st.sampled_from(WORDS)
_sentence = st.lists(_word, min_size=3, max_size=5).map(lambda words: " ".join(words) + ".")
_query = st.lists(_word, min_size=1, max_size=3).map(" ".join)
_style = st.sampled_from(["simple", "contrastive"])


class Page(NamedTuple):
    """A document of the model; its sentences are given, not split from a text."""

    title: str
    sentences: tuple[str, ...]
    metadata: int

    def document(self, id_: str) -> Document:
        return Document(id_, " ".join(self.sentences), self.title, {"m": self.metadata})


_page = st.builds(
    Page,
    st.lists(_word, max_size=2).map(" ".join),
    st.lists(_sentence, max_size=3).map(tuple),
    st.integers(0, 1),
)
_pages = st.dictionaries(st.sampled_from(POOL), _page, max_size=4)
_lists = st.dictionaries(st.sampled_from([*POOL, "nobody"]), st.lists(_query, max_size=4))

SEARCH_OPTIONS: list[dict[str, Any]] = [
    {"method": "trad"},
    {"method": "sharp", "alpha": 0.3, "temperature": 1.0},
    {"method": "sharp", "temperature": float("inf"), "alpha": 2.0},
    {"method": "sharp", "n": 1},
    {"method": "maxsim"},
    {"method": "simsharp"},
]


class IndexAgainstModel(RuleBasedStateMachine):
    """After any sequence of changes the scores equal those of the formulas."""

    @initialize()
    def create_index(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strop-test-", dir=memory()))
        self.bag = Bag()
        self.index = create(self.folder / "index", self.bag)
        self.other = reopen(self.folder / "index")
        self.pages: dict[str, Page] = {}
        self.sets: dict[str, dict[str, list[str]]] = {}
        self.texts: dict[tuple[str, str], tuple[object, ...]] = {}  # for which a list was imported
        self.most: int | None = None
        self.steps = 0

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            self.other.close()
            shutil.rmtree(self.folder)

    # The model.

    def queries_of(self, id_: str) -> dict[str, list[str]]:
        lists = {}
        for style in self.sets:
            if style == "sentences":
                page = self.pages[id_]
                parts = [part for part in dict.fromkeys([page.title, *page.sentences]) if part]
                lists[style] = [" ".join(parts)] if self.most == 1 and parts else parts
            else:
                lists[style] = self.sets[style].get(id_, [])
        return lists

    def counts(self, style: str, id_: str) -> bool:
        """Tell whether a list counts: its document has the text that the list was imported for."""
        return style == "sentences" or self.texts.get((style, id_)) == self.pages[id_][:2]

    def score(self, q: Doubles, id_: str, options: dict[str, Any]) -> float:
        page = self.pages[id_]
        d = vector_of(" ".join([page.title, *page.sentences]), "document")
        method = options.get("method", "sharp" if self.sets else "trad")
        if method == "trad":
            return float(q @ d) if d.any() else -1.0
        lists = [
            vectors_of(texts[: options.get("n")], "document" if style == "sentences" else "query")
            for style, texts in self.queries_of(id_).items()
            if (method != "simsharp" or style == "simple") and self.counts(style, id_)
        ]
        queries = np.concatenate([np.empty((0, DIM)), *lists])
        if method == "maxsim":
            return max_score(q, d, queries)
        temperature = options.get("temperature", 1.0 if method == "simsharp" else 0.1)
        return sharpened_score(q, d, queries, options.get("alpha", 1.0), temperature)

    # Changes to both.

    @rule(pages=_pages, keep=st.booleans())
    def add(self, pages: dict[str, Page], keep: bool) -> None:
        new = pages.keys() - self.pages.keys()
        same = {id_ for id_ in pages if self.pages.get(id_) == pages[id_]}
        documents = [page.document(id_) for id_, page in pages.items()]
        result = self.index.add(documents, keep_queries=keep)
        self.pages.update(pages)
        if keep:
            self.texts |= {key: pages[key[1]][:2] for key in self.texts if key[1] in pages}
        assert result.new == len(new)
        assert result.unchanged == len(same)
        assert result.changed == len(pages) - len(new) - len(same)
        assert result.empty == sum(not (page.title or page.sentences) for page in pages.values())

    @rule(pages=_pages, after=st.integers(0, 8))
    def fail_while_adding_and_finish(self, pages: dict[str, Page], after: int) -> None:
        self.bag.fail_after = after
        try:
            self.index.add([page.document(id_) for id_, page in pages.items()])
        except Failure:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnfinishedIndex)
                all_scores(self.other, "amber birch")  # an unfinished index can be searched
        self.bag.fail_after = None
        self.pages.update(pages)
        self.index.finish()

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        removed = data.draw(st.lists(st.sampled_from(sorted(self.pages)), unique=True))
        self.index.remove(removed)
        self.forget(set(removed))

    @rule(kept=st.sets(st.sampled_from(POOL), min_size=4))
    def keep_only(self, kept: set[str]) -> None:
        removed = self.pages.keys() - kept
        assert self.index.keep_only(kept) == len(removed)
        self.forget(removed)

    def forget(self, removed: set[str]) -> None:
        for by_id in (self.pages, *self.sets.values()):
            for id_ in removed:
                by_id.pop(id_, None)  # type: ignore[attr-defined]
        self.texts = {key: text for key, text in self.texts.items() if key[1] not in removed}

    @rule(most=st.sampled_from([None, 1]))
    def sharpen(self, most: int | None) -> None:
        self.index.sharpen(n=most or 100)
        self.most = most
        self.sets.setdefault("sentences", {})

    @rule(lists=_lists, style=_style, n=st.sampled_from([None, 2]))
    def import_queries(self, lists: dict[str, list[str]], style: str, n: int | None) -> None:
        known = {id_: texts[:n] for id_, texts in lists.items() if id_ in self.pages}
        if not known:
            with pytest.raises(BadInput):
                self.index.import_queries(lists, style, n=n)
            return
        result = self.index.import_queries(lists, style, n=n)
        assert result[:2] == (len(known), sum(map(len, known.values())))
        assert len(result[2]) == len(lists) - len(known)
        self.sets.setdefault(style, {}).update(known)
        self.texts |= {(style, id_): self.pages[id_][:2] for id_ in known}

    @rule()
    def reopen_index(self) -> None:
        self.index.close()
        self.index = reopen(self.folder / "index", self.bag)

    # Invariants after each change.

    @invariant()
    def same_documents(self) -> None:
        if not hasattr(self, "index"):
            return
        for index in (self.index, self.other):
            assert len(index) == len(self.pages)
            assert index.unknown(POOL) == set(POOL) - self.pages.keys()
        for id_, page in self.pages.items():
            assert self.index.get(id_) == page.document(id_)
            assert self.index.queries_of(id_) == self.queries_of(id_)

    @invariant()
    def same_scores(self) -> None:
        if not hasattr(self, "index"):
            return
        self.steps += 1
        all_options = [{}, SEARCH_OPTIONS[self.steps % len(SEARCH_OPTIONS)]]
        query = " ".join(WORDS[(self.steps + at) % len(WORDS)] for at in range(2))
        q = vector_of(query, "query")
        for options in all_options:
            if options and options["method"] != "trad" and not self.sets:
                continue
            if options.get("method") == "simsharp" and "simple" not in self.sets:
                continue
            expected = {id_: self.score(q, id_, options) for id_ in self.pages}
            for index in (self.index, self.other):
                assert_close(all_scores(index, query, **options), expected, 1e-5)
            # The hits are the three best; near-ties may come in any order.
            hits = self.index.search(query, k=3, **options)
            best = sorted(expected.values(), reverse=True)[:3]
            np.testing.assert_allclose(hits.scores[0], best, atol=1e-5)
            assert all(
                abs(expected[id_] - score) < 1e-5
                for id_, score in zip(hits.ids[0], hits.scores[0], strict=True)
            )

    @invariant()
    def nothing_is_damaged(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.index.check() == []
        info = self.index.info()
        assert info["waiting"] == 0
        assert all(set_["waiting"] == 0 for set_ in info["sets"].values())


IndexAgainstModel.TestCase.settings = settings(max_examples=25, stateful_step_count=12)
TestIndexAgainstModel = IndexAgainstModel.TestCase
