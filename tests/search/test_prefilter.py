"""The prefilter: score estimates from short codes, and the candidates it selects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cases import make_case

from strop.common.arrays import read_only, unit_rows
from strop.errors import IndexDamaged
from strop.methods import Method, parse_method
from strop.search.layout import Layout
from strop.search.prefilter import prefilter as prefilters
from strop.search.prefilter.codes import (
    estimated_scores,
    parts_of_documents,
    query_planes,
    sign_codes,
    sign_products,
)
from strop.search.prefilter.prefilter import Prefilter, suits
from strop.search.prefilter.table import CodeTable
from strop.storage.snapshot import Spans

SHARP = Method("m", temperature=0.1)


def codes_of(layout: Layout) -> CodeTable:
    """Return the codes of a layout whose document numbers are their places."""
    return CodeTable.of(layout, sources_of(layout, np.arange(layout.size)), ["simple"])


def sources_of(layout: Layout, numbers: Any) -> Any:
    """Return a row (number, version, count) for each document, all of version 1."""
    return np.stack([numbers, np.ones_like(numbers), np.diff(layout.offsets)], axis=1)


def prefilter_for(table: CodeTable, layout: Layout, numbers: Any = None) -> Prefilter:
    """Return a prefilter for documents whose vectors have not changed since the table was built."""
    numbers = np.arange(layout.size) if numbers is None else numbers
    return Prefilter.of(table, layout, sources_of(layout, numbers))


def layout_in_topics(size: int, topics: int = 40, each: int = 3, dim: int = 128) -> Layout:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((topics, dim))
    documents = centres[rng.integers(0, topics, size)] + rng.standard_normal((size, dim))
    queries = np.repeat(documents, each, axis=0)
    queries = queries + 1.2 * rng.standard_normal(queries.shape)
    return Layout(
        Spans(unit_rows(documents), np.arange(size), np.ones(size, np.int64)),
        [Spans(unit_rows(queries), np.arange(size) * each, np.full(size, each))],
        None,
    )


def overlaps(places: Any, expected: Any) -> Any:
    return np.array([np.isin(a, b).mean() for a, b in zip(expected, places, strict=True)])


def test_parts_of_documents() -> None:
    case = make_case(3, (1, 30, 16, 2, 5), exact=False)
    centroids, differences, products = [], [], []
    for j, d in enumerate(case.documents):
        own = case.queries(j)
        mean = own.mean(axis=0) if len(own) else np.zeros_like(d)
        centroids.append(d + mean)
        differences += [*(own - mean)]
        gram = own @ own.T
        others = gram[~np.eye(len(own), dtype=bool)]
        products.append([d @ mean, others.mean() if len(others) else 0])
    parts = parts_of_documents(case.layout().fetch(np.arange(len(case.documents))))
    np.testing.assert_allclose(parts[0], centroids, atol=1e-6)
    np.testing.assert_allclose(parts[1], differences, atol=1e-6)
    np.testing.assert_allclose(parts[2], products, atol=1e-5)


def columns_of(signs: Any, factors: Any) -> tuple[Any, Any]:
    """Return codes by column, as a table has them."""
    return read_only(signs.T.copy()), read_only(factors.T.copy())


@pytest.mark.parametrize("dim", [3, 64, 65, 256, 384, 1000])
def test_sign_products(dim: int) -> None:
    """They equal the products of rounded vectors and approximate those of the vectors."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((51, dim)).astype(np.float32)
    signs, factors = sign_codes(rows)
    scaled = np.sign(rows) * ((rows**2).sum(axis=1) / np.abs(rows).sum(axis=1))[:, None]
    for q in unit_rows(rows[:8] + rng.standard_normal((8, dim))):
        estimated = np.zeros(51, np.float32)
        sign_products(*columns_of(signs, factors), *query_planes(q), 5, 45, estimated)
        step = 0.996 * np.sqrt((q**2).mean())
        levels = np.clip(np.floor(q / step + 2), 0, 3) - 1.5
        rounded = levels * (q @ q) / (q @ levels)
        np.testing.assert_allclose(estimated[5:45], scaled[5:45] @ rounded, atol=2e-4)
        if dim > 200:
            assert np.corrcoef(rows[5:45] @ q, estimated[5:45])[0, 1] > 0.55
    assert not query_planes(np.zeros(dim, np.float32))[1].any()


def test_sign_products_do_not_depend_on_batching() -> None:
    """More rows than one batch, split as threads split them."""
    rng = np.random.default_rng(0)
    signs, factors = sign_codes(rng.standard_normal((5000, 96)).astype(np.float32))
    planes = query_planes(unit_rows(rng.standard_normal((1, 96)).astype(np.float32))[0])
    in_parts, row_by_row = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    for first, last in ((0, 1), (1, 1500), (1500, 5000)):
        sign_products(*columns_of(signs, factors), *planes, first, last, in_parts)
    for row in range(5000):
        columns = columns_of(signs[row : row + 1], factors[row : row + 1])
        sign_products(*columns, *planes, 0, 1, row_by_row[row : row + 1])
    np.testing.assert_allclose(in_parts, row_by_row, rtol=1e-6)


@pytest.mark.parametrize("dim", [195, 256])
def test_estimates_are_near_the_scores(dim: int, tmp_path: Path) -> None:
    """With two sets, codes from a file, and dimensions that do not fill the last word of a code."""
    rng = np.random.default_rng(1)
    documents = unit_rows(rng.standard_normal((300, dim)))
    queries = unit_rows(np.repeat(documents, 6, axis=0) + 0.07 * rng.standard_normal((1800, dim)))
    counts = np.stack([rng.integers(0, 4, 300), rng.integers(0, 4, 300)])
    counts[:, :20] = 0
    spans = [Spans(queries, np.arange(300) * 6 + 3 * i, counts[i]) for i in range(2)]
    layout = Layout(Spans(documents, np.arange(300), np.ones(300, np.int64)), spans, None)
    sources = np.column_stack([np.arange(300), np.ones(300, np.int64), counts.T])
    CodeTable.of(layout, sources, ["simple", "contrastive"]).write(tmp_path / "codes")
    table = CodeTable.open(tmp_path / "codes")
    rows = np.arange(300)
    settings = (1.0, 0.1), (0.5, 0.1), (3.0, 1.0), (1.0, 0.0), (-0.5, 0.2), (1.0, 0.002)
    for alpha, temperature in settings:
        method = Method("m", alpha=alpha, temperature=temperature)
        for q in unit_rows(documents[:12] + 0.05 * rng.standard_normal((12, dim))):
            estimates = np.empty(300, np.float32)
            planes, factors = query_planes(q)
            estimated_scores(
                q, planes, factors, rows, *table.of_rows, alpha, temperature, estimates
            )  # fmt: skip
            exact = layout.rescore(q, rows, method)
            assert np.abs(estimates - exact).max() < 0.2
            assert np.abs(estimates - exact).mean() < 0.04
            np.testing.assert_allclose(estimates[:20], exact[:20], atol=0.01)  # no queries


def test_threads_and_filtered_views_share_a_table() -> None:
    layout = layout_in_topics(6000)
    prefilter = prefilter_for(codes_of(layout), layout)
    places = np.arange(0, 6000, 2)
    filtered = prefilter.only(places, layout.only(places))
    query_vectors = np.array([layout.queries(at)[0] for at in range(0, 6000, 300)])
    jobs = [(it, q[None]) for q in query_vectors for it in (prefilter, filtered)] * 10
    sequential = [it.search(q, SHARP, 10)[1] for it, q in jobs[:40]] * 10
    with ThreadPoolExecutor(8) as threads:
        parallel = list(threads.map(lambda job: job[0].search(job[1], SHARP, 10)[1], jobs))
    np.testing.assert_array_equal(parallel, sequential)


@pytest.mark.parametrize("damage", ["signs", "records"])
def test_codes_with_nan_are_reported_as_damage(damage: str) -> None:
    """An index from outside may contain such codes."""
    layout = layout_in_topics(6000)
    table = codes_of(layout)
    if damage == "signs":
        table = replace(table, sign_factors=read_only(np.full_like(table.sign_factors, np.nan)))
    else:
        nan_records = np.full(2 * len(table.records), np.nan, np.float32)
        table = replace(table, records=read_only(nan_records.view(table.records.dtype)))
    with pytest.raises(IndexDamaged, match="--repair"):
        prefilter_for(table, layout).search(layout.queries(0)[:1], SHARP, 10)


@pytest.mark.parametrize("spec", ["sharp", "sharp:temperature=0.02", "sharp:alpha=3", "sharp:T=1"])
def test_recall_for_queries_near_and_far_from_the_documents(spec: str) -> None:
    layout, method = layout_in_topics(6000), parse_method(spec)
    prefilter = prefilter_for(codes_of(layout), layout)
    rng = np.random.default_rng(1)
    near = np.array([layout.queries(at)[0] for at in range(0, 6000, 60)])
    far = unit_rows(rng.standard_normal((100, 128)))  # far from every topic
    for query_vectors in (near, far):
        expected = layout.scan(query_vectors, method, 10)[1]
        recall = overlaps(prefilter.search(query_vectors, method, 10)[1], expected)
        assert recall.mean() >= 0.99
        assert recall.min() >= 0.8


def test_a_query_far_from_all_documents_has_more_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = layout_in_topics(6000)
    full = prefilter_for(codes_of(layout), layout)
    n_estimated: list[int] = []

    def counting(query_vector: Any, planes: Any, factors: Any, rows: Any, *more: Any) -> None:
        n_estimated.append(len(rows))
        estimated_scores(query_vector, planes, factors, rows, *more)

    monkeypatch.setattr(prefilters, "estimated_scores", counting)
    rng = np.random.default_rng(1)
    means = []
    for query_vectors in (
        unit_rows(np.array([layout.queries(at)[0] for at in range(0, 6000, 300)])),
        unit_rows(rng.standard_normal((20, 128))),
    ):
        n_estimated.clear()
        for q in query_vectors:
            full.candidates(q, SHARP, 10)
        means.append(sum(n_estimated) / 20)
    assert means[1] > 1.3 * means[0]


def test_removed_and_new_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed documents are no candidates; new ones are scanned."""
    monkeypatch.setattr(prefilters, "THREADS_FROM", 100)  # with threads, too
    layout = layout_in_topics(6000)
    table = codes_of(layout.only(np.arange(5900)))
    query_vectors = np.array([layout.queries(at)[0] for at in range(0, 6000, 80)])
    ranking = layout.scan(query_vectors, SHARP, 10)[1]
    removed = np.unique(ranking[:, :5])
    remaining = np.setdiff1d(np.arange(6000), removed)
    new = np.arange(5900, 6000)
    prefilter = prefilter_for(table, layout.only(remaining), remaining)
    assert len(prefilter.without_row) == np.isin(new, remaining).sum()
    places = prefilter.search(query_vectors, SHARP, 10)[1]
    expected = layout.only(remaining).scan(query_vectors, SHARP, 10)[1]
    assert overlaps(places, expected).mean() >= 0.99
    for q in range(0, 75, 10):
        single = prefilter.search(query_vectors[q : q + 1], SHARP, 10)[1][0]
        np.testing.assert_array_equal(single, places[q])


def test_outdated_rows_are_not_used() -> None:
    """Rows of a newer version, or with the counts of two sets exchanged."""
    layout = layout_in_topics(30)
    sources = np.insert(sources_of(layout, np.arange(30)), 3, 0, axis=1)  # a second set, empty
    table = CodeTable.of(layout, sources, ["simple", "contrastive"])
    current = sources.copy()
    current[3, 1] += 1
    current[5, 2:] = current[5, :1:-1]
    place_of = Prefilter.of(table, layout, current).place_of
    assert np.flatnonzero(place_of < 0).tolist() == [3, 5]


def test_filtered_out_documents_are_no_candidates() -> None:
    """Also if a sample of the rows in equal steps contains only other documents."""
    layout = layout_in_topics(6000)
    prefilter = prefilter_for(codes_of(layout.only(np.arange(5900))), layout)
    query_vectors = np.array([layout.queries(at)[0] for at in range(0, 6000, 80)])
    for places in (np.arange(1, 6000, 2), np.arange(4000, 6000), np.arange(7, 6000, 64)):
        part = layout.only(places)
        filtered = prefilter.only(places, part)
        assert filtered.usable == (places < 5900).sum()
        assert filtered.without_row.tolist() == np.flatnonzero(places >= 5900).tolist()
        scores, found = filtered.search(query_vectors, SHARP, 2)
        expected = part.scan(query_vectors, SHARP, 2)
        assert found.min() >= 0
        assert overlaps(found, expected[1]).mean() >= 0.99
        for q in range(0, 75, 10):
            exact = part.rescore(query_vectors[q], found[q], SHARP)
            np.testing.assert_allclose(scores[q], exact, atol=1e-6)


def test_thousands_of_equal_documents() -> None:
    rng = np.random.default_rng(0)
    q = unit_rows(rng.standard_normal((1, 64)))
    copies = np.repeat(unit_rows(q + 0.1 * unit_rows(rng.standard_normal((1, 64)))), 5000, axis=0)
    documents = np.concatenate([unit_rows(rng.standard_normal((1000, 64))), copies])
    spans = Spans(documents, np.arange(6000), np.ones(6000, np.int64))
    layout = Layout(spans, [spans], None)
    prefilter = prefilter_for(codes_of(layout), layout)
    # Equal scores rank by document order.
    assert prefilter.search(q, SHARP, 3)[1][0].tolist() == [1000, 1001, 1002]


@pytest.mark.parametrize("spec", ["trad", "maxsim", "sharp:alpha=-1", "sharp:n=2"])
def test_other_methods_do_not_use_the_prefilter(spec: str) -> None:
    assert suits(SHARP, 10_000, 10)
    assert not suits(parse_method(spec), 10_000, 10)
    assert not suits(SHARP, 10_000, 1000)
