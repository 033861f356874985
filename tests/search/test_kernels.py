"""The compiled scan against the equations written out in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.cases import Case, literal, make_case, make_spans
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from strop.common.arrays import unit_rows
from strop.methods import METHODS, Method, parse_method
from strop.search import layout as search
from strop.search.kernels import cosine_with_sharpened
from strop.search.layout import Layout
from strop.storage.snapshot import Spans

Doubles = NDArray[np.float64]


SIZES = st.tuples(
    st.integers(1, 70),
    st.integers(1, 40),
    st.integers(4, 40),
    st.integers(1, 3),
    st.integers(0, 12),
)
ALPHAS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e-9, 1e6, 1e30]), st.floats(-3, 3))


def _check(case: Case, method: Method, k: int, monkey_rows: int) -> None:
    before = search._BLOCK_ROWS
    search._BLOCK_ROWS = monkey_rows
    try:
        best, places = case.layout(method.n).scan(case.asked, method, k)
    finally:
        search._BLOCK_ROWS = before
    k = min(k, len(case.documents))
    assert best.shape == places.shape == (len(case.asked), k)
    expected = np.array(
        [
            [literal(q, d, case.queries(j), method) for j, d in enumerate(case.documents)]
            for q in case.asked
        ]
    )
    for row, scores, found in zip(expected, best, places, strict=True):
        assert len(set(found.tolist())) == k
        np.testing.assert_allclose(scores, row[found], atol=1e-5)
        np.testing.assert_allclose(scores, np.sort(row)[::-1][:k], atol=1e-5)
        assert (np.diff(scores) <= 0).all()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6), SIZES, ALPHAS,
    st.one_of(st.sampled_from([1.0, 0.1, math.inf]), st.floats(0.03, 50)),
    st.integers(1, 50), st.sampled_from([1, 7, 64, 8192]),
)  # fmt: skip
def test_scan_is_the_formula(
    seed: int,
    sizes: tuple[int, int, int, int, int],
    alpha: float,
    temperature: float,
    k: int,
    block_rows: int,
) -> None:
    method = Method("sharp", alpha=alpha, temperature=temperature)
    _check(make_case(seed, sizes, exact=False), method, k, block_rows)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6), SIZES, ALPHAS,
    st.sampled_from([0.0, 1e-300, 1e-30, 1e-12, 1e-6, 1e-3, 1.0, 1e30, math.inf]),
    st.integers(1, 50), st.sampled_from([1, 7, 8192]),
)  # fmt: skip
def test_scan_is_the_formula_at_extreme_temperatures(
    seed: int,
    sizes: tuple[int, int, int, int, int],
    alpha: float,
    temperature: float,
    k: int,
    block_rows: int,
) -> None:
    method = Method("sharp", alpha=alpha, temperature=temperature)
    _check(make_case(seed, sizes, exact=True), method, k, block_rows)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), SIZES, st.sampled_from(["none", "max"]), st.integers(1, 50))
def test_other_weightings(
    seed: int, sizes: tuple[int, int, int, int, int], weighting: str, k: int
) -> None:
    method = Method("m", weighting="none" if weighting == "none" else "max")
    _check(make_case(seed, sizes, exact=False), method, k, 64)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), SIZES, ALPHAS, st.floats(0.05, 5))
def test_the_long_way_is_the_formula(
    seed: int, sizes: tuple[int, int, int, int, int], alpha: float, temperature: float
) -> None:
    case = make_case(seed, sizes, exact=False)
    method = Method("sharp", alpha=alpha, temperature=temperature)
    for j, document in enumerate(case.documents):
        queries = case.queries(j)
        built = cosine_with_sharpened(case.asked[0], document, queries, alpha, temperature)
        assert built == pytest.approx(literal(case.asked[0], document, queries, method), abs=1e-9)


def test_alpha_zero_is_trad() -> None:
    case = make_case(1, (20, 30, 16, 2, 5), exact=False)
    plain, _ = case.layout().scan(case.asked, METHODS["trad"], 30)
    sharp, _ = case.layout().scan(case.asked, parse_method("sharp:alpha=0"), 30)
    np.testing.assert_allclose(plain, sharp, atol=1e-6)


def test_an_infinite_temperature_is_one_fixed_vector_per_document() -> None:
    case = make_case(2, (20, 30, 16, 1, 5), exact=False)
    means = [rows.mean(axis=0) if len(rows) else rows.sum(axis=0) for rows in case.lists[0]]
    fixed = unit_rows(case.documents + np.array(means))
    expected = np.sort(case.asked @ fixed.T, axis=1)[:, ::-1]
    method = Method("indexsharp", temperature=math.inf)
    np.testing.assert_allclose(case.layout().scan(case.asked, method, 30)[0], expected, atol=1e-5)


def test_the_order_of_queries_changes_nothing() -> None:
    case = make_case(3, (10, 25, 16, 1, 9), exact=False)
    turned = case._replace(lists=[[rows[::-1].copy() for rows in case.lists[0]]])
    for method in (METHODS["sharp"], METHODS["maxsim"]):
        first, second = (c.layout().scan(c.asked, method, 25) for c in (case, turned))
        np.testing.assert_allclose(first[0], second[0], atol=1e-6)


def test_only_the_first_n_of_each_list() -> None:
    case = make_case(4, (10, 25, 16, 2, 9), exact=False)
    cut = case._replace(lists=[[rows[:3] for rows in of] for of in case.lists])
    method = METHODS["sharp"]
    limited, whole = case.layout(3), cut.layout()
    np.testing.assert_allclose(
        limited.scan(case.asked, method, 25)[0], whole.scan(case.asked, method, 25)[0], atol=1e-6
    )


def test_rows_scattered_over_a_file_score_the_same() -> None:
    """Updated documents have their vectors at the end of the files."""
    case = make_case(5, (10, 40, 16, 1, 6), exact=False)
    rng = np.random.default_rng(0)
    (spans,) = (make_spans(lists, 16) for lists in case.lists)
    room = rng.normal(size=(len(spans.vectors) * 30, 16)).astype(np.float32)
    starts = rng.permutation(len(spans.start)) * 100  # lists stay together, far from each other
    for start, begin, count in zip(starts, spans.start, spans.count, strict=True):
        room = np.concatenate([room, np.zeros((max(0, start + count - len(room)), 16), np.float32)])
        room[start : start + count] = spans.vectors[begin : begin + count]
    places = rng.permutation(40)
    documents = np.empty_like(case.documents)
    documents[places] = case.documents
    scattered = Layout(
        Spans(documents, places, np.ones(40, np.int64)), [Spans(room, starts, spans.count)], None
    )
    for name in ("trad", "sharp", "maxsim"):
        np.testing.assert_allclose(
            scattered.scan(case.asked, METHODS[name], 40)[0],
            case.layout().scan(case.asked, METHODS[name], 40)[0],
            atol=1e-6,
        )


def test_of_equal_scores_the_earlier_document_comes_first() -> None:
    documents = np.tile(np.eye(1, 8, dtype=np.float32), (50, 1))
    layout = Layout(Spans(documents, np.arange(50), np.ones(50, np.int64)), [], None)
    _, places = layout.scan(documents[:3], METHODS["trad"], 10)
    assert places.tolist() == [list(range(10))] * 3


def test_unit_rows() -> None:
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0], [1e20, 1e20]]))
    assert rows.dtype == np.float32
    expected = np.array([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0], [0.5**0.5, 0.5**0.5]])
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
