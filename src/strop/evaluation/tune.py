"""Chooses how to sharpen an index: without labels, or on labelled queries.

Without labels, stored queries are used as test queries: each should find the document that it was
written for. They must not be of a set that is mixed, or the best setting is one that finds copies.
So generated sets cross-validate each other: the queries of each search an index sharpened by the
others only. One generated set together with sentences can judge words, not alpha. Sentences alone
judge nothing. If they are held out, they favour a lower alpha, because the document's own vector
still contains them, and a higher weight of words than users' queries need (docs/log.md).
Feedback is tried only with labels: it finds further relevant documents, and a stored query has only
one.

A gain is measured with a bootstrap interval, on queries that had no part in the choice (folds);
after cross-validation, that of n or another weight of words on the queries that decided. Settings
that were not measured, or may lose, are not taken: the index keeps its defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.text import counted
from strop.errors import BadInput
from strop.evaluation.estimate import HeldOut, held_out, written_sets
from strop.evaluation.scoring import Report, bootstrap_interval, evaluate
from strop.index import Index
from strop.methods import Method
from strop.types import Dataset, Progress

Doubles = NDArray[np.float64]

ALPHAS = (0.5, 1.0, 2.0, 4.0, 8.0)
TEMPERATURES = (0.05, 0.1, 0.2, 1.0)
WORDS = (0.0, 0.5, 1.0, 2.0)
"""Weights of words to try, as factors of the default weight."""
LENGTHS = (3, 5)
"""Values of ``n`` to try: only the first n queries of each list."""
_FOLDS = 5
_FEWEST = 20
_REMEDY = "To choose alpha and temperature, generate or import {}, or give labels with --labels"
_DISCOUNT = 1 / np.log2(np.arange(2, 12))


@dataclass(frozen=True)
class Choice:
    """The best settings tried for ``sharp``, whether they are taken, and the expected gain.

    ``gain`` is in percentage points of nDCG@10 against the defaults, ``low`` to ``high`` its 95%
    interval over ``queries`` queries; None if nothing was measured. If ``held_out``, these queries
    had no part in the choice; otherwise they decided, and the gain is optimistic. Gains that
    ``why`` names as "more" are not in a held-out gain. Without labels a query has one relevant
    document, the one it was written for: gains are larger or smaller than users will see, but the
    order of settings is usually the same.
    """

    method: Method
    taken: bool
    why: str
    queries: int = 0
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    held_out: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        settings = asdict(self.method)
        names = ("sets", "alpha", "temperature", "n", "feedback", "words")
        return {**asdict(self), "method": {name: settings[name] for name in names}}


def tune(
    index: Index,
    labels: Dataset | str | os.PathLike[str] | None = None,
    *,
    exclude: Sequence[str] = (),
    ignore_same_id: bool = False,
    queries: int = 1000,
    progress: Progress | None = None,
) -> Choice:
    """Choose alpha, temperature, sets and words for ``sharp``, and store the choice.

    With ``labels`` on that dataset's queries (``exclude`` and ``ignore_same_id`` as in
    ``evaluate``), also whether to use feedback. Without labels on at most ``queries`` stored ones
    of each set, also n. The index uses the choice for every ``sharp`` until
    ``index.keep_tuned(None)`` or until it gets another query set. If nothing is taken, an earlier
    choice is removed.
    """
    if queries < _FEWEST:
        raise BadInput(f"{queries} queries decide nothing: take {_FEWEST} or more")
    every = tuple(index.query_sets())
    if not every:
        raise BadInput(
            f"{index.path} has no query set to sharpen with: strop queries {index.path} "
            "--style sentences"
        )
    default, written = default_sharp(index), written_sets(index)
    with index.searcher.views.caching_word_scores():  # every setting searches the same queries
        if labels is not None:
            tried = _labelled_grid(default, every, written)
            report = evaluate(
                index, labels, tried, measures=["nDCG@10"], exclude=exclude,
                ignore_same_id=ignore_same_id, progress=progress,
            )  # fmt: skip
            choice = _by_labels(report, replace(default, sets=every))
        elif len(written) > 1:
            choice = _cross_validated(index, written, "sentences" in every, queries, progress)
        elif written and "sentences" in every:
            choice = _by_sentences(index, written[0], queries)
        elif written:
            why = f"one generated set cannot judge itself. {_REMEDY.format('a second one')}"
            choice = Choice(default, False, why)
        else:
            why = f"sentences alone cannot judge settings. {_REMEDY.format('two query sets')}"
            choice = Choice(default, False, why)
    index.keep_tuned(choice.to_json() if choice.taken else None)
    return choice


def default_sharp(index: Index) -> Method:
    """Return ``sharp`` with the defaults of an index that was not tuned."""
    return index.searcher.untuned_methods()["sharp"]


def settings_grid(default: Method, sets: tuple[str, ...] | None) -> list[Method]:
    """Return the settings of alpha and temperature to try, without words."""
    dense = replace(default, sets=sets, words=0.0)
    return [
        replace(dense, alpha=alpha, temperature=temperature)
        for temperature in TEMPERATURES
        for alpha in ALPHAS
    ]


def _labelled_grid(
    default: Method, every: tuple[str, ...], written: tuple[str, ...]
) -> list[Method]:
    """Return the settings to try on labels: for all sets, the generated ones, and each alone.

    The methods are named by their numbers.
    """
    mixes = dict.fromkeys([every, written, *((name,) for name in every)])
    tried = [method for mix in mixes if mix for method in settings_grid(default, mix)]
    tried += [replace(method, feedback=0.0) for method in tried]
    full_mixes = [method for method in tried if method.sets in (every, written)]
    tried += [replace(one, words=f * default.words) for one in full_mixes for f in WORDS if f]
    return [replace(method, name=str(at)) for at, method in enumerate(tried)]


def _by_labels(report: Report, default: Method) -> Choice:
    tried = [replace(method, name=default.name) for method in report.settings.values()]
    values = np.array([list(one["nDCG@10"].values()) for one in report.per_query.values()])
    if values.shape[1] < _FEWEST:
        size = counted(values.shape[1], "query")
        raise BadInput(
            f"{report.dataset} has {size}, too few to choose by: give at least {_FEWEST}"
        )
    default_values = values[tried.index(default)]
    return decide(values, default_values, tried, f"labelled queries of {report.dataset}")


def _cross_validated(
    index: Index,
    written: tuple[str, ...],
    sentences: bool,
    queries: int,
    progress: Progress | None,
) -> Choice:
    """Choose by cross-validating the generated query sets."""
    groups = held_out(index, written, written, queries)
    default, extra_sets = default_sharp(index), ("sentences",) if sentences else ()
    default_values = _values(index, groups, default, extra_sets)
    if len(default_values) < _FEWEST:
        return _too_few(default, len(default_values))
    # Words take most of the time of a search: the settings are compared without them, and only
    # those that are best in a fold are measured with them.
    tried = settings_grid(default, written)
    values = np.empty((len(tried), len(default_values)))
    for at, method in enumerate(tried):
        values[at] = _values(index, groups, method)
        if progress is not None:
            progress("trying settings", at + 1, len(tried))
    tried = [replace(method, words=default.words) for method in tried]
    with_words = cache(lambda at: _values(index, groups, tried[at]))
    measured = f"cross-validated queries of {' and '.join(written)}"
    choice = decide(values, default_values, tried, measured, with_words)
    # Fewer queries of each list, or another weight of words, are taken only if they surely gain on
    # top of the chosen settings, or of the defaults. With chosen settings, sentences are left out:
    # the mixes lack a set that the final one has, so that anything added looks too good.
    method, best, more = default, default_values, ""
    if choice.taken:
        method, extra_sets = choice.method, ()
        best = with_words(tried.index(method))
    changes: list[dict[str, Any]] = [{"n": n} for n in LENGTHS]
    changes += [{"words": factor * default.words} for factor in WORDS if factor != 1]
    for change in changes:
        other = replace(method, **change)
        gains = _values(index, groups, other, extra_sets) - best
        if bootstrap_interval(gains)[0] > 0:
            method, best = other, best + gains
            ((setting, value),) = change.items()
            more += f"; {setting}={value:g} gains {100 * gains.mean():.2f} more"
    if choice.taken:
        return replace(choice, method=method, why=choice.why + more)
    if not more:
        return choice
    why = f"measured on {measured}; alpha and temperature keep their defaults{more}"
    return _gained(method, best - default_values, why, held_out=False)


def _by_sentences(index: Index, written: str, queries: int) -> Choice:
    """Let one generated set search the sentences: it judges words, not alpha."""
    groups = held_out(index, [written], ["sentences"], queries)
    default = default_sharp(index)
    default_values = _values(index, groups, default)
    if len(default_values) < _FEWEST:
        return _too_few(default, len(default_values))
    tried = [replace(default, words=factor * default.words) for factor in WORDS]
    values = np.stack([_values(index, groups, method) for method in tried])
    measured = (
        f"{written} queries over sentences, which can choose words only (alpha and "
        "temperature need a second generated set, or --labels)"
    )
    return decide(values, default_values, tried, measured)


def _gained(method: Method, gains: Doubles, why: str, *, held_out: bool = True) -> Choice:
    """Return the choice of a method, taken only if it surely gains."""
    low, high = bootstrap_interval(gains)
    mean = 100 * float(gains.mean())
    return Choice(method, low > 0, why, len(gains), mean, low, high, held_out)


def _too_few(default: Method, queries: int) -> Choice:
    why = (
        f"{queries} stored queries are too few to choose by: generate or import at least {_FEWEST},"
        " or give labelled ones with --labels"
    )
    return Choice(default, False, why)


def _values(
    index: Index, groups: Sequence[HeldOut], method: Method, extra_sets: tuple[str, ...] = ()
) -> Doubles:
    """Return each query's nDCG@10: only its own document is relevant."""
    values = []
    for group in groups:
        mixed = replace(method, sets=(*group.mix, *extra_sets))
        hits = index.search(group.texts, 10, mixed, vectors=group.vectors, fields=())
        relevant = hits.ids == np.array(group.ids, dtype=object)[:, None]
        values.append(relevant @ _DISCOUNT[: relevant.shape[1]])
    return np.concatenate(values).astype(np.float64)


def decide(
    values: Doubles,
    default_values: Doubles,
    tried: Sequence[Method],
    measured: str,
    final_values: Callable[[int], Doubles] | None = None,
) -> Choice:
    """Take the best of the settings if it surely gains on queries it was not chosen on.

    ``values`` (settings, queries) choose; ``final_values`` (queries,) of a setting, by default the
    same, are compared with those of the defaults.
    """
    final_values = final_values or values.__getitem__
    fold = np.random.default_rng(0).permutation(len(default_values)) % _FOLDS
    gains = np.empty(len(default_values))
    for at in range(_FOLDS):
        best = int(values[:, fold != at].mean(axis=1).argmax())
        gains[fold == at] = (final_values(best) - default_values)[fold == at]
    why = f"measured on {measured}; {len(tried)} settings tried"
    choice = _gained(tried[int(values.mean(axis=1).argmax())], gains, why)
    if choice.taken:
        return choice
    return replace(choice, why=f"{why}; no significant gain, so the defaults stay")
