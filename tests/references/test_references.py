"""Neighbours against brute force, clustering against scikit-learn, updates against fresh runs."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from strop import Index
from strop.common import threads
from strop.common.arrays import unit_rows
from strop.errors import BadInput
from strop.references import neighbors, updates
from strop.references.clustering import kmeans, silhouette, squared_distances
from strop.references.neighbors import nearest_neighbors, neighbors_of, nonzero_rows
from strop.references.selection import select_references
from strop.references.settings import ReferenceSettings
from strop.storage.references import SelectedReferences
from strop.types import Vectors


@pytest.fixture(autouse=True)
def _one_thread_for_scikit_learn() -> Iterator[None]:
    """Its threads slow it down on a hundred points; results are the same."""
    with threadpool_limits(1):
        yield


def clustered(seed: int, n: int, dim: int, groups: int = 8, noise: float = 1.0) -> Vectors:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, dim))
    return unit_rows(centres[rng.integers(0, groups, n)] + noise * rng.normal(size=(n, dim)))


def clustered_with_twins_and_zeros(seed: int, n: int, dim: int) -> Vectors:
    rng = np.random.default_rng(seed)
    vectors = clustered(seed, n, dim)
    for _ in range(n // 5):
        vectors[rng.integers(n)] = vectors[rng.integers(n)]
    vectors[rng.random(n) < 0.05] = 0
    return vectors


def brute_force(vectors: Vectors, k: int) -> NDArray[np.int64]:
    """Sort all others by products in double precision, equal ones in document order."""
    rows = np.full((len(vectors), k), -1, np.int64)
    doubles = vectors.astype(np.float64)
    usable = np.flatnonzero((doubles != 0).any(axis=1))
    for i in usable:
        # Summed in order, so that twins have equal products to the last bit.
        products = [sum(a * b for a, b in zip(doubles[i], doubles[j], strict=True)) for j in usable]
        order = np.lexsort((usable, -np.array(products)))
        nearest = [int(usable[place]) for place in order if usable[place] != i][:k]
        rows[i, : len(nearest)] = nearest
    return rows


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 8), st.integers(1, 70))
def test_neighbours_equal_brute_force(seed: int, n: int, dim: int, k: int) -> None:
    vectors = clustered_with_twins_and_zeros(seed, n, dim)
    expected = brute_force(vectors, k)
    neighbours = nearest_neighbors(vectors, k)
    np.testing.assert_array_equal(neighbours.rows, expected)
    for i, (rows, similarities) in enumerate(zip(*neighbours, strict=True)):
        filled = rows >= 0
        np.testing.assert_allclose(
            similarities[filled], vectors[rows[filled]] @ vectors[i], atol=1e-6
        )
        assert (similarities[~filled] == 0).all()
    subset = np.arange(0, n, 2)
    subset_neighbours = neighbors_of(vectors, nonzero_rows(vectors), subset, k)
    np.testing.assert_array_equal(subset_neighbours.rows, expected[subset])


def test_neighbours_do_not_depend_on_blocks_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered_with_twins_and_zeros(3, 1500, 24)
    vectors[200:260] = vectors[200]  # more twins than spare candidates
    expected = nearest_neighbors(vectors, 20)
    for block in (64, 100, 700):
        monkeypatch.setattr(neighbors, "BLOCK", block)
        np.testing.assert_array_equal(nearest_neighbors(vectors, 20).rows, expected.rows)
    monkeypatch.setattr(threads, "thread_count", lambda: 1)
    single_thread = nearest_neighbors(vectors, 20)
    np.testing.assert_array_equal(single_thread.rows, expected.rows)
    np.testing.assert_array_equal(single_thread.similarities, expected.similarities)


def test_a_longer_list_starts_with_the_shorter() -> None:
    vectors = clustered_with_twins_and_zeros(5, 400, 16)
    np.testing.assert_array_equal(
        nearest_neighbors(vectors, 50).rows[:, :20], nearest_neighbors(vectors, 20).rows
    )


def test_cells_find_most_of_the_neighbours() -> None:
    vectors = clustered(7, 6000, 32, groups=100)
    exact = nearest_neighbors(vectors, 20)
    approximate = nearest_neighbors(vectors, 20, method="cells")
    shared = [len(set(a) & set(b)) / 20 for a, b in zip(exact.rows, approximate.rows, strict=True)]
    assert np.mean(shared) > 0.9
    assert all(i not in row for i, row in enumerate(approximate.rows.tolist()))


def test_large_corpora_use_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(8, 300, 8)
    cell_counts: list[int] = []
    rough_centres = neighbors.rough_centres

    def recording(points: Vectors, count: int) -> Vectors:
        cell_counts.append(count)
        return rough_centres(points, count)

    monkeypatch.setattr(neighbors, "rough_centres", recording)
    nearest_neighbors(vectors, 5)
    assert not cell_counts
    monkeypatch.setattr(neighbors, "APPROXIMATE_ABOVE", 200)
    nearest_neighbors(vectors, 5)
    assert cell_counts == [17]
    assert nearest_neighbors(vectors, 5, method="exact").rows.shape == (300, 5)
    assert cell_counts == [17]


def pairwise_distances(points: Vectors) -> Vectors:
    distances = np.empty((len(points), len(points)), np.float32)
    squared_distances(points, distances)
    return distances


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(3, 100), st.integers(2, 40), st.integers(2, 10))
def test_silhouette_equals_scikit_learn(seed: int, m: int, dim: int, k: int) -> None:
    from sklearn.metrics import silhouette_samples

    rng = np.random.default_rng(seed)
    points = clustered(seed, m, dim)
    k = min(k, m - 1)
    labels = np.concatenate([np.arange(k), rng.integers(0, k, m - k)]).astype(np.int32)
    values = np.empty(m, np.float32)
    mean = silhouette(np.sqrt(pairwise_distances(points)), labels, k, values)
    expected = silhouette_samples(points.astype(np.float64), labels)
    np.testing.assert_allclose(values, expected, atol=1e-4)
    assert mean == pytest.approx(expected.mean(), abs=1e-4)


def test_silhouette_of_one_cluster_is_minus_1() -> None:
    points = clustered(0, 10, 4)
    labels = np.zeros(10, np.int32)
    assert silhouette(pairwise_distances(points), labels, 3, np.empty(10, np.float32)) == -1


def test_squared_distances_are_exactly_zero_for_twins() -> None:
    points = clustered(1, 9, 37)
    points[4] = points[7]
    distances = pairwise_distances(points)
    assert distances[4, 7] == distances[7, 4] == 0
    expected = ((points[:, None].astype(np.float64) - points[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances, expected, atol=1e-6)


def test_kmeans_matches_scikit_learn() -> None:
    """Equal random numbers for the seeding give the same clusters."""
    from sklearn.cluster import KMeans

    draws = ReferenceSettings(seed=0).draws()
    expected_inertias, inertias = [], []
    for seed in range(12):
        points = clustered(seed, 100, 48)
        for k in (3, 6, 10):
            labels = np.empty(100, np.int32)
            inertia = kmeans(
                pairwise_distances(points), k, 2 + int(np.log(k)), draws[k - 3], labels
            )
            model = KMeans(k, n_init=10, random_state=0).fit(points)
            expected_inertias.append(model.inertia_)
            inertias.append(inertia)
            centroids = np.array([points[labels == c].mean(axis=0) for c in range(k)])
            assert inertia == pytest.approx(((points - centroids[labels]) ** 2).sum(), rel=1e-4)
    ratios = np.array(inertias) / np.array(expected_inertias)
    assert ratios.max() < 1.005
    assert np.mean(ratios < 1.0001) > 0.9


def select_with_scikit_learn(
    vectors: Vectors, document: int, neighbours: Sequence[int]
) -> tuple[int, set[int]]:
    """Return the k of the best silhouette and its selected points, with scikit-learn."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_samples

    points = vectors[list(neighbours)]
    best = (-2.0, 0, np.empty(0))
    for k in range(3, 11):
        model = KMeans(k, n_init=10, random_state=0).fit(points)
        value = float(silhouette_samples(points, model.labels_).mean())
        if value > best[0]:
            best = (value, k, model.labels_)
    _, k, labels = best
    chosen = set()
    for c in range(k):
        members = np.flatnonzero(labels == c)
        centroid = points[members].mean(axis=0)
        nearest = members[np.argmin(((points[members] - centroid) ** 2).sum(axis=1))]
        chosen.add(int(neighbours[nearest]))
    return k, chosen


def test_references_match_the_selection_of_the_paper() -> None:
    vectors = clustered(11, 400, 32, groups=30, noise=0.7)
    selected = select_references(vectors)
    neighbours = nearest_neighbors(vectors, 100).rows
    n_same_k, n_same = 0, 0
    for document in range(0, 400, 40):
        k, chosen = select_with_scikit_learn(vectors, document, neighbours[document].tolist())
        rows = selected.rows[document][selected.rows[document] >= 0]
        n_same_k += len(rows) == k
        n_same += set(rows.tolist()) == chosen
        assert selected.cluster_sizes[document].sum() == 100
        assert (np.diff(selected.similarities[document][: len(rows)]) <= 0).all()
    assert n_same_k >= 9
    assert n_same >= 9


def test_references_do_not_depend_on_threads_or_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(12, 300, 16)
    expected = select_references(vectors)
    monkeypatch.setattr(threads, "thread_count", lambda: 1)
    monkeypatch.setattr(neighbors, "BLOCK", 100)
    single_thread = select_references(vectors)
    for expected_array, array in zip(expected, single_thread, strict=True):
        np.testing.assert_array_equal(expected_array, array)
    other_seed = select_references(vectors, ReferenceSettings(seed=1))
    assert (other_seed.silhouettes != expected.silhouettes).any()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 12])
def test_references_of_few_documents(n: int) -> None:
    vectors = clustered(13, 12, 8)[:n]
    selected = select_references(vectors)
    counts = (selected.rows >= 0).sum(axis=1)
    assert selected.rows.shape == (n, 10)
    if n <= 4:  # at most as many neighbours as the smallest k: all are selected
        assert (counts == max(0, n - 1)).all()
    else:
        assert ((counts >= 3) & (counts <= n - 2)).all()
    for document, row in enumerate(selected.rows.tolist()):
        assert document not in row


def test_equal_documents_have_the_first_as_references() -> None:
    vectors = np.tile(clustered(14, 1, 8), (30, 1))
    selected = select_references(vectors)
    assert selected.rows[0].tolist() == [1, 2, 3] + [-1] * 7
    assert selected.rows[9].tolist() == [0, 1, 2] + [-1] * 7
    assert (selected.silhouettes == 0).all()


def test_fewer_distinct_neighbours_than_clusters() -> None:
    distinct = clustered(15, 2, 8)
    vectors = np.concatenate([np.tile(distinct[:1], (20, 1)), np.tile(distinct[1:], (20, 1))])
    selected = select_references(vectors)
    assert ((selected.rows >= 0).sum(axis=1) == 2).all()  # one for each distinct vector
    assert selected.silhouettes == pytest.approx(1.0)


def test_empty_documents_have_no_references_and_are_none() -> None:
    vectors = clustered(16, 60, 8)
    vectors[[3, 17]] = 0
    selected = select_references(vectors)
    assert (selected.rows[[3, 17]] == -1).all()
    assert not np.isin(selected.rows, [3, 17]).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"smallest": 1}, "such as 3:10, not 1:10"),
        ({"smallest": 5, "largest": 4}, "not 5:4"),
        ({"neighbors": 0}, "1 or more"),
        ({"n_init": 0}, "1 or more"),
    ],
)
def test_invalid_settings_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ReferenceSettings(**arguments)
    with pytest.raises(BadInput, match="no method 'best'"):
        nearest_neighbors(clustered(0, 5, 4), method="best")


# -- in an index ----------------------------------------------------------------------------


def embed(texts: Sequence[str]) -> Vectors:
    """Embed texts "group word" near their group; equal texts have equal vectors."""
    rows = []
    for text in texts:
        group = np.random.default_rng(zlib.crc32(text.split()[0].encode())).normal(size=12)
        own = np.random.default_rng(zlib.crc32(text.encode())).normal(size=12)
        rows.append(group + 0.7 * own)
    return unit_rows(np.array(rows))


SMALL = ReferenceSettings(neighbors=12, smallest=2, largest=4, n_init=2)


def all_references(index: Index) -> dict[str, SelectedReferences | None]:
    return {id_: index.references_of(id_) for id_ in index.ids()}


def fresh_references(index: Index) -> dict[str, SelectedReferences | None]:
    """Return the references of the same documents in a new index."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Index.create(Path(folder) / "index", embed) as fresh,
    ):
        fresh.add(index.get(id_) for id_ in index.ids())
        fresh.select_references(SMALL)
        return all_references(fresh)


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add many", "change", "remove", "empty", "twin", "run"]),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25)
@given(EDITS, st.integers(0, 60))
def test_updates_equal_a_fresh_run(edits: list[tuple[str, int]], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "i", embed) as index:
        texts = {f"d{i}": f"g{i % 6} w{i}" for i in range(size)}
        index.add({"id": id_, "text": text} for id_, text in texts.items())
        index.select_references(SMALL)
        for edit, number in edits:
            ids = list(texts)
            edited = ids[number % len(ids)] if ids else None
            changes: dict[str, str] = {}
            if edit in ("add", "add many"):
                for i in range(1 if edit == "add" else 25):
                    changes[f"n{number}-{i}"] = f"g{(number + i) % 7} n{number}{i}"
            elif edit == "run":
                index.select_references(SMALL)
            elif edited is not None and edit == "remove":
                index.remove([edited])
                del texts[edited]
            elif edited is not None:
                twin = texts[ids[(number // 7) % len(ids)]]
                changes[edited] = {"change": f"g1 c{number}", "empty": "", "twin": twin}[edit]
            if changes:
                texts |= changes
                index.add({"id": id_, "text": text} for id_, text in changes.items())
        index.select_references(SMALL)
        updated = all_references(index)
        assert set(updated) == set(texts)
        assert updated == fresh_references(index)
        counts = index.info()["references"]
        assert counts is None or (counts["documents"], counts["out_of_date"]) == (len(texts), 0)


def test_only_changed_neighbourhoods_are_selected_again(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", embed) as index:
        index.add({"id": f"d{i}", "text": f"g{i % 20} w{i}"} for i in range(400))
        assert index.select_references(SMALL) == 400
        assert index.select_references(SMALL) == 0
        index.add([{"id": "new", "text": "g3 something"}])
        assert index.info()["references"]["out_of_date"] == 1
        n_updated = index.select_references(SMALL)
        assert 2 <= n_updated < 100
        index.remove(["new"])
        assert index.select_references(SMALL) == n_updated - 1


def test_longer_neighbour_lists_are_reused_for_fewer_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Index.create(tmp_path / "i", embed) as index:
        index.add({"id": f"d{i}", "text": f"g{i % 5} w{i}"} for i in range(100))
        index.select_references(ReferenceSettings(neighbors=40))
        with monkeypatch.context() as patch:
            for name in ("nearest_neighbors", "neighbors_of"):
                patch.setattr(updates, name, None)
            assert index.select_references(SMALL) == 100
        assert all_references(index) == fresh_references(index)


def test_an_interrupted_run_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "PART", 32)
    monkeypatch.setattr(updates, "ALL_AT_ONCE", 50)
    with Index.create(tmp_path / "i", embed) as index:
        index.add({"id": f"d{i}", "text": f"g{i % 5} w{i}"} for i in range(200))
        calls = 0

        def stop(label: str, done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            if calls in (3, 8):
                raise KeyboardInterrupt

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                index.select_references(SMALL, progress=stop)
        assert 0 < index.select_references(SMALL) < 200
        updated = all_references(index)
        assert all(selected is not None for selected in updated.values())
        assert updated == fresh_references(index)


def test_references_of_repaired_vectors_are_selected_again(tmp_path: Path) -> None:
    """Repair reuses the rows of lost vectors; lists of neighbours must notice this."""

    def embed_or_fail(texts: Sequence[str]) -> Vectors:
        if working:
            return embed(texts)
        raise ValueError("not now")

    working = True
    with Index.create(tmp_path / "i", embed_or_fail) as index:
        index.add({"id": f"d{i}", "text": f"g{i % 5} w{i}"} for i in range(60))
        index.select_references(SMALL)
        file = tmp_path / "i" / "vectors" / "documents.f32"
        file.write_bytes(file.read_bytes()[:-48])
        working = False
        with pytest.raises(ValueError, match="not now"):
            index.add([{"id": "d59", "text": "g1 another text"}])
        working = True
        assert index.check(repair=True)
        assert index.select_references(SMALL) > 0
        assert all_references(index) == fresh_references(index)


def test_an_index_uses_cells_above_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "APPROXIMATE_ABOVE", 50)
    with Index.create(tmp_path / "i", embed) as index:
        index.add({"id": f"d{i}", "text": f"g{i % 5} w{i}"} for i in range(60))
        index.select_references(SMALL)
        assert index.info()["references"]["method"] == "cells"
        index.select_references(SMALL, method="exact")
        assert index.info()["references"]["method"] == "exact"


def test_select_references_takes_any_arrays() -> None:
    vectors = clustered(20, 50, 8)
    scaled = vectors.astype(np.float64) * np.arange(1, 51)[:, None]
    np.testing.assert_array_equal(select_references(scaled).rows, select_references(vectors).rows)
    from_lists = select_references(vectors.tolist())
    np.testing.assert_array_equal(from_lists.rows, select_references(vectors).rows)
