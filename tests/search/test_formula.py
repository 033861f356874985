"""Every form of the score against the equations written out term by term."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from helpers.cases import MORE, Case, literal, make_case, make_spans
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.common.arrays import unit_rows
from strop.methods import METHODS, Method, Weighting, parse_method
from strop.search import formula, scoring
from strop.search import layout as search
from strop.search.feedback import FEEDBACK_DEPTH
from strop.search.formula import reference
from strop.search.layout import Layout
from strop.search.ranking import rank
from strop.search.scoring import best_of
from strop.search.words import Words
from strop.storage.snapshot import Spans
from strop.storage.vectors import stored_rows

SIZES = st.tuples(
    st.integers(1, 70),
    st.integers(1, 40),
    st.integers(4, 40),
    st.integers(1, 3),
    st.integers(0, 12),
)
TEMPERATURES = st.one_of(
    st.tuples(st.sampled_from([1.0, 0.1, math.inf]) | st.floats(0.03, 50), st.just(False)),
    st.tuples(
        st.sampled_from([0.0, 1e-300, 1e-30, 1e-12, 1e-6, 1e-3, 1.0, 1e30, math.inf]), st.just(True)
    ),
)
"""Temperature, and whether products must be exact: the last bit matters at low ones."""
ALPHAS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e-9, 1e6, 1e30]), st.floats(-3, 3))


@contextmanager
def scan_settings(block_rows: int, in_numpy: bool = False) -> Iterator[None]:
    """Scan small layouts with the compiled kernels, in blocks, or with numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BLOCK_ROWS", block_rows)
        if not in_numpy:
            patch.setattr(search, "NUMPY_UP_TO", 0)
        yield


def check_scan(case: Case, method: Method, k: int, block_rows: int) -> None:
    """Compare a scan with the formula; ``block_rows`` 0 scans with numpy."""
    with scan_settings(block_rows or 64, in_numpy=not block_rows):
        scores, places = case.layout(method.n).scan(case.query_vectors, method, k)
    k = min(k, len(case.documents))
    assert scores.shape == places.shape == (len(case.query_vectors), k)
    expected = np.array(
        [
            [literal(q, d, case.queries(j), method) for j, d in enumerate(case.documents)]
            for q in case.query_vectors
        ]
    )
    for row, row_scores, row_places in zip(expected, scores, places, strict=True):
        assert len(set(row_places.tolist())) == k
        np.testing.assert_allclose(row_scores, row[row_places], atol=1e-5)
        np.testing.assert_allclose(row_scores, np.sort(row)[::-1][:k], atol=1e-5)
        assert (np.diff(row_scores) <= 0).all()


@settings(max_examples=100 * MORE)
@given(
    st.integers(0, 10**6), SIZES, ALPHAS, TEMPERATURES, st.integers(1, 50),
    st.sampled_from([0, 1, 7, 64, 8192]),
)  # fmt: skip
def test_the_scan_equals_the_formula(
    seed: int,
    sizes: tuple[int, int, int, int, int],
    alpha: float,
    temperature: tuple[float, bool],
    k: int,
    block_rows: int,
) -> None:
    method = Method("sharp", alpha=alpha, temperature=temperature[0])
    check_scan(make_case(seed, sizes, exact=temperature[1]), method, k, block_rows)


@settings(max_examples=20 * MORE)
@given(
    st.integers(0, 10**6), SIZES, st.sampled_from(["none", "max", "equal"]), st.integers(1, 50),
    st.sampled_from([0, 64]),
)  # fmt: skip
def test_the_scan_equals_the_formula_for_other_weightings(
    seed: int, sizes: tuple[int, int, int, int, int], weighting: Any, k: int, block_rows: int
) -> None:
    method = Method("m", weighting=weighting)
    check_scan(make_case(seed, sizes, exact=False), method, k, block_rows)


@settings(max_examples=60 * MORE)
@given(st.integers(0, 10**6), SIZES, ALPHAS, st.floats(0.05, 5))
def test_the_reference_equals_the_formula(
    seed: int, sizes: tuple[int, int, int, int, int], alpha: float, temperature: float
) -> None:
    case = make_case(seed, sizes, exact=False)
    for weighting in get_args(Weighting):
        method = Method("m", weighting=weighting, alpha=alpha, temperature=temperature)
        for j, document in enumerate(case.documents):
            own = case.query_vectors[0], document, case.queries(j)
            assert reference(*own, method) == pytest.approx(literal(*own, method), abs=1e-9)


@pytest.mark.parametrize("dtypes", [["float32"] * 2, ["int8"] * 2, ["int8", "float32"]])
def test_rescoring_equals_the_formula(dtypes: list[str]) -> None:
    places = np.array([11, 3, 4, 0, 7])
    for seed in range(20):
        case = make_case(seed, (3, 12, 16, 2, 5), exact=seed % 2 == 0)
        layout = layout_with_types(case, dtypes)
        for alpha, temperature in ((1, 0.1), (2.5, 1), (-1, 0.3), (1, 0), (1e30, 1), (1, np.inf)):
            if not temperature and seed % 2:  # the last bit of a product decides
                continue
            method = Method("m", alpha=alpha, temperature=temperature)
            for q in case.query_vectors:
                expected = [
                    reference(q, case.documents[p], layout.queries(p), method) for p in places
                ]
                for in_numpy in (False, True):
                    with scan_settings(64, in_numpy):
                        scores = layout.rescore(q, places, method)
                    np.testing.assert_allclose(scores, expected, atol=1e-5)
                (scores,) = scoring.score(q[None], layout.fetch(places), method, once=True)
                np.testing.assert_allclose(scores, expected, atol=1e-5)


def layout_with_types(case: Case, dtypes: list[str]) -> Layout:
    """Return the case's layout with its sets' vectors stored in these types."""
    sets = []
    for lists, dtype in zip(case.lists, dtypes, strict=True):
        spans = make_spans(lists, case.documents.shape[1])
        sets.append(Spans(stored_rows(spans.vectors, dtype), spans.start, spans.count))
    ones = np.ones(len(case.documents), np.int64)
    return Layout(Spans(case.documents, np.arange(len(ones)), ones), sets, None)


def test_rank_works_with_any_store() -> None:
    """A store needs only candidates and vectors; feedback is added to its scores."""
    case = make_case(7, (3, 60, 16, 2, 5), exact=False)
    layout, sharp = case.layout(), Method("m", temperature=0.1, feedback=2.0)

    @dataclass
    class Store:
        method: Method = sharp
        size: int = 60
        words: Words | None = None

        def best(self, query_vectors: Any, texts: Any, k: int, depth: int) -> tuple[Any, Any]:
            assert (k, depth, len(texts)) == (4, FEEDBACK_DEPTH, 0)
            scores = scoring.score(query_vectors, layout.fetched, sharp)
            return best_of(scores, np.broadcast_to(np.arange(60), scores.shape), depth)

        def documents(self, places: Any) -> Any:
            return layout.documents(places)

    scores, places = rank(Store(), case.query_vectors, ["a"] * 3, 4)
    for at, q in enumerate(case.query_vectors):
        plain = np.array([literal(q, case.documents[p], case.queries(p), sharp) for p in range(60)])
        top = np.argsort(-plain)[:FEEDBACK_DEPTH]
        expected = plain[top] + 2.0 * formula.feedback_scores(plain[top], case.documents[top])
        np.testing.assert_allclose(scores[at], np.sort(expected)[::-1][:4], atol=1e-5)
        by_place = dict(zip(top.tolist(), expected, strict=True))
        np.testing.assert_allclose(
            scores[at], [by_place[p] for p in places[at].tolist()], atol=1e-5
        )


def test_every_kernel_is_in_the_table() -> None:
    """The table in formula.py names existing functions, and every compiled one."""
    root = Path(formula.__file__).parent
    compiled = set()
    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                "compiled" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                compiled.add(f"{module}.{node.name}")
    helpers = {"query_planes", "differences_below", "_most_queries", "count_term"}
    scoring_kernels = {name for name in compiled if name.rpartition(".")[2] not in helpers}
    assert scoring_kernels <= set(formula.KERNELS)
    for name in formula.KERNELS:
        module, _, function = name.rpartition(".")
        assert hasattr(import_module(f"strop.search.{module}"), function), name


@pytest.mark.parametrize("name", ["trad", "sharp", "indexsharp", "maxsim"])
@pytest.mark.parametrize("in_numpy", [True, False])
def test_documents_without_text_rank_last(name: str, in_numpy: bool) -> None:
    """They rank below documents with a negative cosine."""
    rng = np.random.default_rng(0)
    documents = unit_rows(rng.standard_normal((40, 16)))
    documents[::5] = 0
    counts = np.where(np.arange(40) % 5, 2, 0)
    queries = unit_rows(rng.standard_normal((80, 16)))
    layout = Layout(
        Spans(documents, np.arange(40), np.ones(40, np.int64)),
        [Spans(queries, np.arange(40) * 2, counts)],
        None,
    )
    with scan_settings(64, in_numpy):
        scores, places = layout.scan(documents[1:4], METHODS[name], 40)
    assert (scores[:, 31] < 0).all()
    assert (places[:, 32:] % 5 == 0).all()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_alpha_zero_is_trad() -> None:
    case = make_case(1, (20, 30, 16, 2, 5), exact=False)
    plain, _ = case.layout().scan(case.query_vectors, METHODS["trad"], 30)
    sharp, _ = case.layout().scan(case.query_vectors, parse_method("sharp:alpha=0"), 30)
    np.testing.assert_allclose(plain, sharp, atol=1e-6)


def test_infinite_temperature_gives_one_fixed_vector_per_document() -> None:
    case = make_case(2, (20, 30, 16, 1, 5), exact=False)
    means = [rows.mean(axis=0) if len(rows) else rows.sum(axis=0) for rows in case.lists[0]]
    fixed = unit_rows(case.documents + np.array(means))
    expected = np.sort(case.query_vectors @ fixed.T, axis=1)[:, ::-1]
    method = Method("indexsharp", temperature=math.inf)
    np.testing.assert_allclose(
        case.layout().scan(case.query_vectors, method, 30)[0], expected, atol=1e-5
    )


def test_the_order_of_stored_queries_does_not_matter() -> None:
    case = make_case(3, (10, 25, 16, 1, 9), exact=False)
    reversed_case = case._replace(lists=[[rows[::-1].copy() for rows in case.lists[0]]])
    for method in (METHODS["sharp"], METHODS["maxsim"]):
        first, second = (
            it.layout().scan(it.query_vectors, method, 25) for it in (case, reversed_case)
        )
        np.testing.assert_allclose(first[0], second[0], atol=1e-6)


def test_n_uses_the_first_n_queries_of_each_list() -> None:
    case = make_case(4, (10, 25, 16, 2, 9), exact=False)
    shortened = case._replace(lists=[[rows[:3] for rows in lists] for lists in case.lists])
    method = METHODS["sharp"]
    limited, whole = case.layout(3), shortened.layout()
    np.testing.assert_allclose(
        limited.scan(case.query_vectors, method, 25)[0],
        whole.scan(case.query_vectors, method, 25)[0],
        atol=1e-6,
    )


def test_scattered_rows_have_the_same_scores() -> None:
    """Updates append vectors at the end of the files."""
    case = make_case(5, (10, 40, 16, 1, 6), exact=False)
    rng = np.random.default_rng(0)
    (spans,) = (make_spans(lists, 16) for lists in case.lists)
    file = rng.normal(size=(len(spans.vectors) * 30, 16)).astype(np.float32)
    starts = rng.permutation(len(spans.start)) * 100  # each list is contiguous, far from the others
    for start, begin, count in zip(starts, spans.start, spans.count, strict=True):
        file = np.concatenate([file, np.zeros((max(0, start + count - len(file)), 16), np.float32)])
        file[start : start + count] = spans.vectors[begin : begin + count]
    places = rng.permutation(40)
    documents = np.empty_like(case.documents)
    documents[places] = case.documents
    scattered = Layout(
        Spans(documents, places, np.ones(40, np.int64)), [Spans(file, starts, spans.count)], None
    )
    for name in ("trad", "sharp", "maxsim"):
        np.testing.assert_allclose(
            scattered.scan(case.query_vectors, METHODS[name], 40)[0],
            case.layout().scan(case.query_vectors, METHODS[name], 40)[0],
            atol=1e-6,
        )


def test_equal_scores_rank_by_document_order() -> None:
    documents = np.tile(np.eye(1, 8, dtype=np.float32), (50, 1))
    layout = Layout(Spans(documents, np.arange(50), np.ones(50, np.int64)), [], None)
    _, places = layout.scan(documents[:3], METHODS["trad"], 10)
    assert places.tolist() == [list(range(10))] * 3


@pytest.mark.parametrize("in_numpy", [False, True])
def test_equal_documents_rank_in_order_across_blocks(in_numpy: bool) -> None:
    """Copies are in different blocks, where products are summed in another order."""
    single = make_case(3, (9, 40, 24, 2, 5), exact=False)
    case = Case(
        single.query_vectors,
        np.concatenate([single.documents] * 3),
        [queries * 3 for queries in single.lists],
    )
    with scan_settings(7, in_numpy):
        layout = case.layout()
        for queries in (case.query_vectors[:1], case.query_vectors):
            scores, places = layout.scan(queries, METHODS["sharp"], 60)
            assert (places % 40 == np.repeat(places[:, ::3] % 40, 3, axis=1)).all()
            assert (places // 40 == np.tile([0, 1, 2], 20)).all()
            assert (np.diff(scores) <= 0).all()


def test_scores_that_differ_by_rounding_are_ties() -> None:
    scores = np.array([[0.5, 0.5 + 6e-8, 0.7, -np.inf, -np.inf], [1, 2, 3, 4, 5]], np.float32)
    best, places = best_of(scores, np.array([[1, 4, 9, 3, 2], [1, 2, 3, 4, 5]]), 4)
    assert places.tolist() == [[9, 1, 4, 2], [5, 4, 3, 2]]
    assert best[0].tolist() == [scores[0, 2], scores[0, 1], scores[0, 0], -np.inf]


def test_unit_rows() -> None:
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0], [1e20, 1e20]]))
    assert rows.dtype == np.float32
    expected = np.array([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0], [0.5**0.5, 0.5**0.5]])
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
