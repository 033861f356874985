"""Choosing how to sharpen an index: without labels, or on labelled queries with an honest split.

Without labels, stored queries stand in for users': each should find the document it was written
for. They must not be of the set being mixed, or the best setting is one that finds copies. So
sets written apart are crossed: the queries of each ask an index sharpened by the others alone.

With one set alone nothing can be asked. Sentences and titles held out of their documents were
tried as askers: they want too little sharpening where the document's own vector still holds them,
and where it does not they praise whitening also on a corpus where users' questions lose by it
(docs/log.md). Then words are taken into the score and the rest stays: they gained on every corpus
they were tried on, on one of them not significantly. Feedback is asked for only with labels: it
finds what else is relevant, and a stored query has but one document.

A gain is measured on queries that had no part in the choice (folds), with a bootstrap interval.
Other than words with one set alone, a setting that does not surely gain is not taken: the index
keeps its defaults.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.errors import BadInput
from strop.evaluation.scoring import evaluate
from strop.index import Index
from strop.methods import METHODS, Method
from strop.search import candidates
from strop.search.words import countable
from strop.types import Dataset, Progress, Vectors

Doubles = NDArray[np.float64]

ALPHAS = (0.5, 1.0, 2.0, 4.0, 8.0)
TEMPERATURES = (0.05, 0.1, 0.2, 1.0)
WHITENINGS = (0.0, 0.5)
FEEDBACK = 0.2
WORDS = 1.0
WORDS_UP_TO = 20_000
"""Documents whose words are counted unasked: each process that searches counts them anew."""
LENGTHS = (3, 5)
"""First queries of each list, tried against all of them."""
_FOLDS = 5
_FEWEST = 20
_DRAWS = 2000
_DEFAULT = METHODS["sharp"]
_WORDED = f"sharp:words={WORDS:g}"
_DISCOUNT = 1 / np.log2(np.arange(2, 12))


@dataclass(frozen=True)
class Choice:
    """What was chosen for ``sharp``, what it should gain and how sure that is.

    ``gain`` is in points of nDCG@10 (percent) against the defaults, measured on queries that had
    no part in the choice, ``low`` to ``high`` its 95% interval; None where nothing could be
    asked. What ``why`` says is gained on top is not in it, unless that is all that was taken: then
    it is the gain on the queries that were asked whether to take it. Without labels a query has
    one right document, the one it was written for: gains come out larger or smaller than users
    will see, but the order of settings carries over.
    """

    method: Method
    taken: bool
    why: str
    asked: int = 0
    gain: float | None = None
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        settings = asdict(self.method)
        named = ("sets", "alpha", "temperature", "n", "whiten", "feedback", "words")
        return {**asdict(self), "method": {name: settings[name] for name in named}}


@dataclass(frozen=True)
class _Askers:
    """Stored queries of one set: the documents they were written for, and who answers."""

    ids: Sequence[str]
    texts: Sequence[str]
    vectors: Vectors
    mix: tuple[str, ...]


def tune(
    index: Index,
    labels: Dataset | str | os.PathLike[str] | None = None,
    *,
    exclude: Sequence[str] = (),
    queries: int = 1000,
    progress: Progress | None = None,
) -> Choice:
    """Choose alpha, temperature, sets, n, whitening and words for ``sharp``; the index keeps it.

    With ``labels`` on that dataset's queries (``exclude`` drops some); without, on at most
    ``queries`` stored ones of each set. The index uses the choice wherever ``sharp`` is asked
    for, until ``index.keep_tuned(None)`` or until it gets another query set.
    """
    if queries < _FEWEST:
        raise BadInput(f"{queries} queries decide nothing: take {_FEWEST} or more")
    every = tuple(index.query_sets())  # what sharp mixes: negative queries are not among them
    if not every:
        raise BadInput(
            f"{index.path} has no query set to sharpen with: strop queries {index.path} "
            "--style sentences"
        )
    about = index.info()["sets"]
    written = tuple(name for name in every if about[name]["source"] != "sentences")
    if labels is not None:
        choice = _by_labels(index, every, written, labels, exclude, progress)
    elif len(written) > 1:
        choice = _crossed(index, written, "sentences" in every, queries, progress)
    elif written and "sentences" in every:
        choice = _by_sentences(index, written[0], queries, progress)
    else:
        choice = _unasked(len(index))
    if choice.taken and choice.method.words and len(index) >= candidates.TWO_STAGE_FROM:
        choice = replace(choice, why=f"{choice.why}. {_scanned(len(index))}")
    index.keep_tuned(choice.to_json() if choice.taken else None)
    return choice


def settings_grid(sets: tuple[str, ...] | None) -> list[Method]:
    """Return every setting of strength, temperature and whitening that is tried."""
    return [
        replace(_DEFAULT, sets=sets, alpha=alpha, temperature=temperature, whiten=whiten)
        for whiten in WHITENINGS
        for temperature in TEMPERATURES
        for alpha in ALPHAS
    ]


def _by_labels(
    index: Index,
    every: tuple[str, ...],
    written: tuple[str, ...],
    labels: Dataset | str | os.PathLike[str],
    exclude: Sequence[str],
    progress: Progress | None,
) -> Choice:
    """Choose on labelled queries, among all sets, the generated ones, and each alone."""
    mixes = dict.fromkeys([every, written, *((name,) for name in every)])
    tried = [method for mix in mixes if mix for method in settings_grid(mix)]
    tried += [replace(method, feedback=FEEDBACK) for method in tried if method.whiten]
    if countable():
        whole = (every, written)
        tried += [replace(method, words=WORDS) for method in tried if method.sets in whole]
    default = tried.index(replace(_DEFAULT, sets=every))
    named = [replace(method, name=str(at)) for at, method in enumerate(tried)]
    report = evaluate(
        index, labels, named, measures=["nDCG@10"], exclude=exclude, progress=progress
    )
    values = np.array([list(report.per_query[m.name]["nDCG@10"].values()) for m in named])
    if values.shape[1] < _FEWEST:
        raise BadInput(f"{report.dataset} has {values.shape[1]} queries: too few to choose by")
    return _decided(values, values[default], tried, f"{report.dataset}'s labelled queries asked")


def _crossed(
    index: Index,
    written: tuple[str, ...],
    sentences: bool,
    queries: int,
    progress: Progress | None,
) -> Choice:
    """Choose by letting the queries of each generated set ask the others."""
    groups = [
        _Askers(*index.sample_queries(name, queries), tuple(s for s in written if s != name))
        for name in written
    ]
    also = ("sentences",) if sentences else ()
    usual = _values(index, groups, _DEFAULT, also)
    if len(usual) < _FEWEST:
        return _unasked(len(index), f"{len(usual)} stored queries are too few to choose by")
    tried = settings_grid(written)
    values = np.empty((len(tried), len(usual)))
    for at, method in enumerate(tried):
        values[at] = _values(index, groups, method)
        if progress is not None:
            progress("trying settings", at + 1, len(tried))
    choice = _decided(values, usual, tried, f"crossed queries of {' and '.join(written)} asked")
    # Fewer queries of each list, and words, only where that surely gains on top of what was chosen
    # or of the defaults. Sentences stay out of what was chosen: the crossed mixes lack a set that
    # the final one has, so that anything added looks too good.
    method, best = _DEFAULT, usual
    if choice.taken:
        method, best, also = choice.method, values[tried.index(choice.method)], ()
    why = choice.why
    further: list[tuple[int | None, float]] = [(n, 0.0) for n in LENGTHS]
    further += [(None, WORDS)] if countable() else []
    for n, words in further:
        other = replace(method, n=n or method.n, words=words or method.words)
        gains = _values(index, groups, other, also) - best
        if _interval(gains)[0] > 0:
            method, best = other, best + gains
            why += f"; {f'n={n}' if n else _WORDED} gains {100 * gains.mean():.2f} on top of that"
    if choice.taken:
        return replace(choice, method=method, why=why)
    if method == _DEFAULT:
        return choice
    low, high = _interval(best - usual)
    return Choice(method, True, why, len(usual), 100 * float((best - usual).mean()), low, high)


def _by_sentences(index: Index, asking: str, queries: int, progress: Progress | None) -> Choice:
    """Let one generated set ask the sentences: it can judge the space, not its own strength."""
    askers = [_Askers(*index.sample_queries(asking, queries), ("sentences",))]
    usual = _values(index, askers, _DEFAULT)
    if len(usual) < _FEWEST:
        return _unasked(len(index), f"{len(usual)} stored queries are too few to choose by")
    tried = [replace(_DEFAULT, whiten=WHITENINGS[-1])]
    if countable():
        tried += [replace(method, words=WORDS) for method in (_DEFAULT, *tried)]
    values = np.stack([_values(index, askers, method) for method in tried])
    asked_by = (
        f"{asking} queries asked the sentences, which judges whitening and words alone (strength "
        "and temperature need a second generated set, or --labels)"
    )
    return _decided(values, usual, tried, asked_by)


def _unasked(documents: int, reason: str = "one query set cannot judge itself") -> Choice:
    """Take what needs no asking: words gained wherever they were tried (docs/log.md)."""
    alone = (
        f"{reason}: to choose more, import a second set written apart from the first, or give some"
        " labelled queries with --labels"
    )
    dense = "sharp:whiten=0.5:feedback=0.2 is worth a try with these"
    if not countable():
        why = f"{alone}; {dense}. Words in the score ({_WORDED}) need: pip install 'strop[bm25]'"
        return Choice(_DEFAULT, False, why)
    if documents > WORDS_UP_TO:
        why = (
            f"{alone}; {dense}. Of {documents:,} documents words are not counted unasked, as each"
            f" process does so anew: try {_WORDED}"
        )
        return Choice(_DEFAULT, False, why)
    why = (
        "words count too: unasked, as that gained on every collection tried (on the documentation"
        f" of Python not significantly: +1.9, p = 0.5). Nothing else was chosen, as {alone}"
    )
    return Choice(replace(_DEFAULT, words=WORDS), True, why)


def _scanned(documents: int) -> str:
    """Say what words cost a large index."""
    return (
        f"With words each search of a text scans all {documents:,} documents, and no longer the"
        " candidates of two-stage search alone: sharp:words=0 leaves words out, strop tune --reset"
        " ends the choice"
    )


def _values(
    index: Index, groups: Sequence[_Askers], method: Method, also: tuple[str, ...] = ()
) -> Doubles:
    """Return each asked query's nDCG@10: its own document is the one that is right."""
    values = []
    for group in groups:
        mixed = replace(method, sets=(*group.mix, *also))
        hits = index.search(group.texts, 10, mixed, vectors=group.vectors)
        right = hits.ids == np.array(group.ids, dtype=object)[:, None]
        values.append(right @ _DISCOUNT[: right.shape[1]])
    return np.concatenate(values).astype(np.float64)


def _decided(values: Doubles, usual: Doubles, tried: Sequence[Method], asked_by: str) -> Choice:
    """Take the best of the settings if it surely gains on queries it was not chosen on.

    values (settings, queries); usual (queries,) is what the defaults reach.
    """
    fold = np.random.default_rng(0).permutation(len(usual)) % _FOLDS
    gains = np.empty(len(usual))
    for at in range(_FOLDS):
        best = int(values[:, fold != at].mean(axis=1).argmax())
        gains[fold == at] = values[best, fold == at] - usual[fold == at]
    low, high = _interval(gains)
    method, gain = tried[int(values.mean(axis=1).argmax())], 100 * float(gains.mean())
    why = f"{asked_by}, {len(tried)} settings tried"
    if low <= 0:
        why += "; none of them surely gains, so the defaults stay"
    return Choice(method, low > 0, why, len(usual), gain, low, high)


def _interval(gains: Doubles) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the mean, in percent."""
    draws = np.random.default_rng(0).integers(0, len(gains), (_DRAWS, len(gains)))
    low, high = np.percentile(100 * gains[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
