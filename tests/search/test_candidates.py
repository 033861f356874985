"""Two-stage search: codes tell who can be near, and the best are among those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.candidates import few
from helpers.cases import Case, make_case, make_spans
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.common.arrays import unit_rows
from strop.common.threads import on_each_thread
from strop.methods import Method
from strop.search import candidates
from strop.search.codes import (
    as_bytes,
    as_signs,
    in_planes,
    leading,
    products_of_bytes,
    products_of_signs,
    rough_scores,
)
from strop.search.kernels import cosine_with_sharpened
from strop.search.layout import Layout
from strop.storage.snapshot import Spans


@pytest.mark.parametrize("kind", ["float32", "int8", "mixed"])
def test_candidates_are_scored_by_the_formula(kind: str) -> None:
    for seed in range(20):
        case = make_case(seed, (3, 12, 16, 2, 5), exact=seed % 2 == 0)
        kinds = ["int8", "float32"] if kind == "mixed" else [kind] * 2
        layout = stored_as(case, kinds)
        for alpha, temperature in ((1, 0.1), (2.5, 1), (-1, 0.3), (1, 0), (1e30, 1), (1, np.inf)):
            method = Method("m", alpha=alpha, temperature=temperature)
            places = np.array([11, 3, 4, 0, 7])
            for q in case.asked:
                expected = [
                    cosine_with_sharpened(
                        q, case.documents[p], layout.queries(p), alpha, temperature
                    )
                    for p in places
                ]
                if temperature or seed % 2 == 0:  # else the last bit of a product is a choice
                    got = layout.rescore(q, places, method)
                    np.testing.assert_allclose(got, expected, atol=1e-5)


def stored_as(case: Case, kinds: list[str]) -> Layout:
    """The case's layout with its sets' vectors stored in these kinds."""
    sets = []
    for lists, kind in zip(case.lists, kinds, strict=True):
        spans = make_spans(lists, case.documents.shape[1])
        rows = as_bytes(spans.vectors)[0] if kind == "int8" else spans.vectors
        sets.append(Spans(rows.astype(kind), spans.start, spans.count))
    ones = np.ones(len(case.documents), np.int64)
    return Layout(Spans(case.documents, np.arange(len(ones)), ones), sets, None)


def test_documents_are_taken_apart() -> None:
    case = make_case(3, (1, 30, 16, 2, 5), exact=False)
    whole, products, apart = [], [], []
    for j, d in enumerate(case.documents):
        own = case.queries(j)
        mean = own.mean(axis=0) if len(own) else np.zeros_like(d)
        whole.append(d + mean)
        apart += [(d - mean) / 2, *(own - mean)]
        gram = own @ own.T
        others = gram[~np.eye(len(own), dtype=bool)]
        products.append([d @ mean, others.mean() if len(others) else 0])
    found = candidates.taken_apart(case.layout(), 0)
    np.testing.assert_allclose(found[0], unit_rows(np.array(whole)), atol=1e-6)
    np.testing.assert_allclose(found[1], products, atol=1e-5)
    np.testing.assert_allclose(found[2], apart, atol=1e-6)


@pytest.mark.parametrize("dim", [3, 64, 65, 256, 384, 1000])
def test_products_with_signs(dim: int) -> None:
    """They are what the rounded vectors say, and near to what the vectors say."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((51, dim)).astype(np.float32)
    asked = unit_rows(rows[:8] + rng.standard_normal((8, dim)))
    signs, about = as_signs(rows)
    scaled = np.sign(rows) * ((rows**2).sum(axis=1) / np.abs(rows).sum(axis=1))[:, None]
    for q in asked:
        planes, factors = in_planes(q)
        found = np.empty(41, np.float32)
        products_of_signs(signs, about, planes, factors, 5, 45, found, 1)
        step = 0.586 * np.sqrt((q**2).mean())
        levels = np.clip(np.floor(q / step + 4), 0, 7) - 3.5
        rounded = levels * (q @ q) / (q @ levels)
        np.testing.assert_allclose(found[1:], scaled[5:45] @ rounded, atol=2e-4)
        if dim > 200:
            assert np.corrcoef(rows[5:45] @ q, found[1:])[0, 1] > 0.6
    assert not in_planes(np.zeros(dim, np.float32))[1].any()


def test_rough_scores_are_near_the_right_ones() -> None:
    rng = np.random.default_rng(1)
    documents = unit_rows(rng.standard_normal((300, 256)))
    queries = unit_rows(np.repeat(documents, 6, axis=0) + 0.07 * rng.standard_normal((1800, 256)))
    counts = np.full(300, 6)
    counts[:20] = 0
    layout = Layout(
        Spans(documents, np.arange(300), np.ones(300, np.int64)),
        [Spans(queries, np.arange(300) * 6, counts)],
        None,
    )
    made = candidates.Candidates.make(layout, np.arange(300)[:, None], [])
    asked = unit_rows(documents[:12] + 0.05 * rng.standard_normal((12, 256)))
    everyone = np.arange(300)
    for alpha, temperature in ((1, 0.1), (0.5, 0.1), (3, 1), (1, 0), (-0.5, 0.2), (1, 0.002)):
        method = Method("m", alpha=alpha, temperature=temperature)
        for q in asked:
            near, rough = np.empty(300, np.float32), np.empty(300, np.float32)
            products_of_bytes(made.codes, made.scales, everyone, q, near)
            rough_scores(
                *in_planes(q), everyone, near, made.means, made.apart, made.about_apart,
                made.begin, alpha, temperature, rough,
            )  # fmt: skip
            right = layout.rescore(q, everyone, method)
            assert np.abs(rough - right).max() < 0.2
            assert np.abs(rough - right).mean() < 0.04
            np.testing.assert_allclose(rough[:20], right[:20], atol=0.01)  # no queries: its vector


@settings(deadline=None)
@given(
    st.lists(st.floats(-2, 2, width=32), max_size=60),
    st.integers(1, 12),
    st.integers(12, 70),
    st.floats(0, 3, width=32),
)
def test_the_leading_are_within_the_margin(
    values: list[float], k: int, most: int, margin: float
) -> None:
    given_ = np.array(values, np.float32)
    found = leading(given_, k, most, margin)
    assert len(found) <= most
    assert (np.diff(found) > 0).all()
    if len(values) < k:
        assert len(found) == len(values)
    else:
        least = np.sort(given_)[-k] - np.float32(margin)
        inside = int((given_ >= least).sum())
        assert len(found) == min(inside, most)
        assert (given_[found] >= least).all()
        others = np.delete(given_, found)
        if len(found) == most and len(others):  # those left out are no better, up to a step
            assert given_[found].min() >= others.max() - np.ptp(given_) / 500


@pytest.mark.parametrize("many", [10_000, 1000])
def test_threads_find_the_same_and_what_is_gone_stays_away(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Above ``many`` rows there are cells, and most rows are left out by how many bits differ."""
    monkeypatch.setattr(candidates, "_MANY", many)
    monkeypatch.setattr(candidates, "_PIECE", 50)
    monkeypatch.setattr(candidates.Effort, "of", few)
    pieces = []

    def noted(work: Callable[[], None], most: int) -> None:
        pieces.append(most)
        on_each_thread(work, most)

    monkeypatch.setattr(candidates, "on_each_thread", noted)
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((40, 64))
    documents = unit_rows(topics[rng.integers(0, 40, 3000)] + 0.6 * rng.standard_normal((3000, 64)))
    queries = unit_rows(np.repeat(documents, 3, axis=0) + 0.1 * rng.standard_normal((9000, 64)))
    layout = Layout(
        Spans(documents, np.arange(3000), np.ones(3000, np.int64)),
        [Spans(queries, np.arange(3000) * 3, np.full(3000, 3))],
        None,
    )
    numbers = np.arange(3000)[:, None]
    asked = unit_rows(documents[::40] + 0.1 * rng.standard_normal((75, 64)))
    method = Method("m", temperature=0.1)

    def shared(found: Any, right: Any) -> float:
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(right, found, strict=True)]))

    exact = layout.scan(asked, method, 10)[1]
    first = np.arange(2500)
    made = candidates.Candidates.make(layout.only(first), numbers[first], [])
    assert len(made.cells) == (1 if many == 10_000 else 150)
    late = np.arange(2500, 3000)
    made = made.and_more(candidates.Candidates.make(layout.only(late), numbers[late], [], made))
    two = candidates.TwoStage(made, layout, numbers)
    together = two.search(asked, method, 10)[1]
    assert shared(together, exact) > 0.97
    pieces.clear()
    for q in range(0, 75, 10):
        np.testing.assert_array_equal(two.search(asked[q : q + 1], method, 10)[1][0], together[q])
    assert max(pieces, default=0) > 1 or many == 10_000  # threads shared what there was to read
    cold = Method("m", temperature=0.02)  # for which nobody knows the margins
    assert shared(two.search(asked, cold, 10)[1], layout.scan(asked, cold, 10)[1]) > 0.95
    gone = np.unique(exact[:, :5])
    left = np.setdiff1d(np.arange(3000), gone)
    two = candidates.TwoStage(made, layout.only(left), numbers[left])
    found = left[two.search(asked, method, 10)[1]]
    assert not np.isin(found, gone).any()
    assert shared(found, left[layout.only(left).scan(asked, method, 10)[1]]) > 0.96


def test_a_share_of_the_cells_is_read_where_that_was_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "_MANY", 1000)
    layout = many_documents(0.2)
    numbers = np.arange(layout.size)[:, None]
    made = candidates.Candidates.make(layout, numbers, [])
    share = float(made.measured[8])
    assert 0 < share < 1  # nothing is in clusters here, yet the last cells have none of the best
    asked = unit_rows(np.random.default_rng(1).standard_normal((20, 128)))
    # With neither margins nor numbers all rows of the cells that are read are there.
    for wanted in (share, 0.25):
        measured = np.array([np.inf] * 4 + [4] * 4 + [wanted, 1], np.float32)
        effort = candidates.Effort.of(10, measured)
        two = candidates.TwoStage(replace(made, measured=measured), layout, numbers)
        for q in asked:
            by_cell = made.cells @ q
            cells = np.argsort(-by_cell)[: round(len(by_cell) * wanted)]
            inside = np.concatenate(
                [made.order[made.edges[0, cell] : made.edges[0, cell + 1]] for cell in cells]
            )
            rows, _ = two.nearest(q, in_planes(q), effort, True)
            np.testing.assert_array_equal(np.sort(rows), np.sort(inside))


def in_topics(size: int, topics: int) -> tuple[Layout, Any, Any]:
    """Return documents of topics with two queries each, their topics, and a query for each."""
    rng = np.random.default_rng(0)
    centres = unit_rows(rng.standard_normal((topics, 64)))
    topic = np.sort(rng.integers(0, topics, size))
    documents = unit_rows(centres[topic] + 0.5 * unit_rows(rng.standard_normal((size, 64))))
    queries = unit_rows(
        np.repeat(documents, 2, axis=0) + 0.3 * unit_rows(rng.standard_normal((2 * size, 64)))
    )
    layout = Layout(
        Spans(documents, np.arange(size), np.ones(size, np.int64)),
        [Spans(queries, np.arange(size) * 2, np.full(size, 2))],
        None,
    )
    asked = unit_rows(centres + 0.3 * unit_rows(rng.standard_normal((topics, 64))))
    return layout, topic, asked


@pytest.mark.parametrize("tail", [0, 50])
@pytest.mark.parametrize("many", [10_000, 1000])
def test_nobody_who_is_gone_stands_in_for_others(
    monkeypatch: pytest.MonkeyPatch, many: int, tail: int
) -> None:
    """A topic is removed, and others are added: who asks for it finds the next best."""
    monkeypatch.setattr(candidates, "_MANY", many)
    monkeypatch.setattr(candidates.Effort, "of", few)
    layout, topic, asked = in_topics(3000, 20)
    numbers, method = np.arange(3000)[:, None], Method("m", temperature=0.1)
    first = np.arange(3000 - tail)
    made = candidates.Candidates.make(layout.only(first), numbers[first], [])
    assert (len(made.cells) > 1) == (many == 1000)
    shared = []
    for gone in range(0, 19, 2):
        left = np.flatnonzero(topic != gone)
        now = layout.only(left)
        two = candidates.TwoStage(made, now, numbers[left])
        assert len(two.tail) == tail
        q = asked[gone : gone + 1]
        exact = now.scan(q, method, 10)[1][0]
        fresh = candidates.Candidates.make(now, numbers[left], [])
        anew = candidates.TwoStage(fresh, now, numbers[left])
        found = [one.search(q, method, 10)[1][0] for one in (two, anew)]
        shared.append([np.isin(exact, one).mean() for one in found])
    old, new = np.mean(shared, axis=0)
    assert old >= new - 0.1  # sixty-four signs do not tell much of who is far from all


def test_copies_do_not_hide_behind_cells_without_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "_MANY", 1000)
    layout, _, asked = in_topics(3000, 20)
    documents = layout._files[0].vectors.copy()
    queries = layout._files[1].vectors.copy()
    documents[::3] = documents[0]
    for one in (0, 1):
        queries.reshape(3000, 2, 64)[::3, one] = queries[one]
    spans = [
        Spans(rows, of.start, of.count)
        for rows, of in zip((documents, queries), layout._files, strict=True)
    ]
    layout = Layout(spans[0], spans[1:], None)
    numbers, method = np.arange(3000)[:, None], Method("m", temperature=0.1)
    made = candidates.Candidates.make(layout, numbers, [])
    assert (np.diff(made.edges[0]) == 0).any()  # else this shows nothing
    two = candidates.TwoStage(made, layout, numbers)
    near = unit_rows(documents[:1] + 0.3 * unit_rows(asked))
    for q in near:
        right = layout.scan(q[None], method, 10)[0][0]
        found = two.search(q[None], method, 10)[0][0]
        assert (found >= right[-1] - 1e-5).mean() >= 0.9


def test_more_that_differ_in_as_few_bits_than_there_is_room_for() -> None:
    """Each of them is as good as the others, and none that is better is lost."""
    rng = np.random.default_rng(0)
    q = unit_rows(rng.standard_normal((1, 64)))
    copies = np.repeat(unit_rows(q + 0.1 * unit_rows(rng.standard_normal((1, 64)))), 5000, axis=0)
    documents = np.concatenate([copies, unit_rows(rng.standard_normal((1000, 64)))])
    layout = Layout(
        Spans(documents, np.arange(6000), np.ones(6000, np.int64)),
        [Spans(documents, np.arange(6000), np.ones(6000, np.int64))],
        None,
    )
    numbers, method = np.arange(6000)[:, None], Method("m", temperature=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_MANY", 1000)
        patch.setattr(candidates.Effort, "of", lambda k, *_: few(k, candidates._USUAL))
        made = candidates.Candidates.make(layout, numbers, [])
        two = candidates.TwoStage(made, layout, numbers)
        found = two.search(q, method, 3)[1][0]
    assert (found < 5000).all()


def many_documents(near: float) -> Layout:
    """Return a layout of 4,000 documents, each with four queries about as far from it."""
    rng = np.random.default_rng(0)
    documents = unit_rows(rng.standard_normal((4000, 128)))
    queries = np.repeat(documents, 4, axis=0) + near * unit_rows(rng.standard_normal((16000, 128)))
    return Layout(
        Spans(documents, np.arange(4000), np.ones(4000, np.int64)),
        [Spans(unit_rows(queries), np.arange(4000) * 4, np.full(4000, 4))],
        None,
    )


def test_the_effort_is_what_stored_queries_need() -> None:
    numbers = np.arange(4000)[:, None]
    easy, hard = (
        candidates.Candidates.make(many_documents(near), numbers, []).measured
        for near in (0.1, 2.0)
    )
    assert (easy >= 0).all()
    assert easy[2] < hard[2] / 2  # the margin by bytes: near queries are as good as their mean
    assert easy[6] < hard[6]
    effort = candidates.Effort.of(10, easy)
    assert effort.margins == tuple(easy[:4].tolist())
    assert candidates.Effort.of(3, easy) == effort
    for more in (candidates.Effort.of(100, easy), candidates.Effort.of(10, easy, known=False)):
        assert more.margins == (np.inf,) * 4
        assert more.most[1] >= 1400 + 20 * more.k


def test_few_stored_queries_tell_nothing() -> None:
    layout = many_documents(1.0)
    counts = np.zeros(4000, np.int64)
    counts[:3] = 4
    spans = [Spans(file.vectors, file.start, file.count) for file in layout._files]
    layout = Layout(spans[0], [Spans(spans[1].vectors, spans[1].start, counts)], None)
    made = candidates.Candidates.make(layout, np.arange(4000)[:, None], [])
    assert made.measured.tolist() == [np.inf] * 4 + [1] * 6
