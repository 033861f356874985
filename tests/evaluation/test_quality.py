"""The published figures, on real collections; skipped without the collections."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.minilm import original_minilm

from strop import Index, evaluate
from strop.evaluation.tune import default_sharp, settings_grid, tune
from strop.io.corpora import read_corpus
from strop.io.datasets import read_query_lists
from strop.storage.vectors import DEFAULT_STORED

DATA = Path(os.environ.get("STROP_DATA") or Path(__file__).parents[3] / "shared" / "data")

needs_collections = pytest.mark.skipif(
    not (DATA / "scifact").is_dir(), reason=f"no collections in {DATA}; set STROP_DATA"
)


def build(folder: Path, name: str, embedder: str, stored: str = DEFAULT_STORED) -> Index:
    index = Index.create(folder / f"{name}-{stored}", embedder, stored)
    index.sharpen("sentences")
    index.add(read_corpus(DATA / name))
    return index


def ndcg_percent(
    index: Index, name: str, methods: list[str], **arguments: object
) -> dict[str, float]:
    report = evaluate(index, DATA / name, methods, **arguments)  # type: ignore[arg-type]
    return {method: 100 * values["nDCG@10"] for method, values in report.results.items()}


@needs_collections
@pytest.mark.parametrize(
    ("name", "trad", "dense", "sharp"),
    [
        pytest.param("scifact", 51.3, 57.5, 70.6, marks=pytest.mark.slow),
        pytest.param("nfcorpus", 24.5, 28.3, 33.8, marks=pytest.mark.slow),
        ("cranfield", 42.07, 46.2, 53.0),
        ("time", 64.4, 70.2, 78.4),
    ],
)
def test_wordllama_sharpened_by_sentences(
    tmp_path: Path, name: str, trad: float, dense: float, sharp: float
) -> None:
    with build(tmp_path, name, "wordllama", "float32") as index:
        ndcg = ndcg_percent(index, name, ["trad", "sharp:words=0:feedback=0", "sharp"])
        assert ndcg["trad"] == pytest.approx(trad, abs=0.2)
        assert ndcg["sharp:words=0:feedback=0"] >= dense
        assert ndcg["sharp"] >= sharp
        index.compact(query_vectors=DEFAULT_STORED)  # a quarter of the bytes
        assert ndcg_percent(index, name, ["sharp"])["sharp"] >= ndcg["sharp"] - 0.1


def add_generated(index: Index) -> None:
    """Add Cranfield and its generated queries to an index."""
    index.add(read_corpus(DATA / "cranfield"))
    for style in ("simple", "contrastive"):
        lists = read_query_lists(DATA / "cranfield" / "generated" / f"{style}.jsonl")
        index.import_queries(lists, style)


EXAMPLE_QUERIES = ["1", "3", "9", "11", "12"]  # the generator was given these queries


@needs_collections
def test_wordllama_with_generated_queries(tmp_path: Path) -> None:
    expected = {"trad": 41.70, "consharp": 49.07, "indexsharp": 48.31, "simsharp": 50.51,
                "consharp:T=0.1": 51.84, "simsharp:T=0.1": 52.78}  # fmt: skip
    with Index.create(tmp_path / "index", "wordllama") as index:
        add_generated(index)
        ndcg = ndcg_percent(index, "cranfield", list(expected), exclude=EXAMPLE_QUERIES)
    assert ndcg == pytest.approx(expected, abs=0.05)


@needs_collections
@pytest.mark.slow
def test_minilm_with_generated_queries(tmp_path: Path) -> None:
    expected = {"trad": 50.49, "consharp": 54.33, "indexsharp": 53.99, "simsharp": 55.26,
                "docexp": 53.29, "doc2query": 53.71}  # fmt: skip
    with Index.create(tmp_path / "index", original_minilm()) as index:
        add_generated(index)
        ndcg = ndcg_percent(index, "cranfield", list(expected), exclude=EXAMPLE_QUERIES)
    assert ndcg == pytest.approx(expected, abs=0.15)


@needs_collections
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "trad", "tolerance", "sharp"),
    [("scifact", 64.51, 0.05, 70.0), ("nfcorpus", 31.6, 0.1, 34.2)],
)
def test_minilm_sharpened_by_sentences(
    tmp_path: Path, name: str, trad: float, tolerance: float, sharp: float
) -> None:
    with build(tmp_path, name, original_minilm()) as index:
        ndcg = ndcg_percent(index, name, ["trad", "sharp:words=0:feedback=0"])
    assert ndcg["trad"] == pytest.approx(trad, abs=tolerance)
    assert ndcg["sharp:words=0:feedback=0"] >= sharp


@needs_collections
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("embedder", "tolerance"), [("wordllama", 1.0), ("minilm", 0.7)])
def test_tuning_without_labels_is_close_to_the_best_grid_setting(
    tmp_path: Path, embedder: str, tolerance: float
) -> None:
    with build(tmp_path, "cranfield", embedder) as index:
        for style in ("simple", "contrastive"):
            lists = read_query_lists(DATA / "cranfield" / "generated" / f"{style}.jsonl")
            index.import_queries(lists, style)
        default = default_sharp(index)
        grid = [
            replace(method, name=str(i), words=default.words)
            for i, method in enumerate(settings_grid(default, ("simple", "contrastive")))
        ]
        choice = tune(index)
        # What a search uses now: the choice, or the defaults without a significant gain.
        used = replace(index.method("sharp"), name="used")
        report = evaluate(
            index,
            DATA / "cranfield",
            [default, *grid, used],
            exclude=EXAMPLE_QUERIES,
            measures=["nDCG@10"],
        )
    ndcg = {name: 100 * values["nDCG@10"] for name, values in report.results.items()}
    best = max(ndcg[method.name] for method in grid)
    print(f"{embedder}: used {ndcg['used']:.2f}, best of the grid {best:.2f}, {choice}")
    assert ndcg["used"] >= best - tolerance
    assert ndcg["used"] >= ndcg["sharp"]


@needs_collections
@pytest.mark.parametrize(("name", "gain"), [("xquad-hi", 40), ("xquad-th", 40)])
def test_words_gain_in_languages_without_a_stemmer(tmp_path: Path, name: str, gain: float) -> None:
    with build(tmp_path, name, "wordllama") as index:
        ndcg = ndcg_percent(index, name, ["sharp:words=0:feedback=0", "sharp"])
        assert ndcg["sharp"] >= ndcg["sharp:words=0:feedback=0"] + gain


@needs_collections
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_references_of_scifact_match_scikit_learn(tmp_path: Path) -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    from strop.references.clustering import kmeans, silhouette, squared_distances
    from strop.references.neighbors import nearest_neighbors
    from strop.references.selection import select_references
    from strop.references.settings import ReferenceSettings

    with Index.create(tmp_path / "index", "minilm") as index, threadpool_limits(1):
        texts = [document.content for document in read_corpus(DATA / "scifact")]
        vectors = index.embedder.embed(texts, "document")
        selected = select_references(vectors)
        neighbors = nearest_neighbors(vectors, 100).rows
        draws = ReferenceSettings().draws()
        n_equal, worst_inertia, largest_difference = 0, 0.0, 0.0
        for document in range(0, 300 * 17, 17):
            points = np.ascontiguousarray(vectors[neighbors[document]])
            squared = np.empty((100, 100), np.float32)
            squared_distances(points, squared)
            silhouettes = []
            for k in range(3, 11):
                model = KMeans(k, n_init=10, random_state=0).fit(points)
                silhouettes.append(silhouette_score(points, model.labels_))
                labels = np.empty(100, np.int32)
                inertia = kmeans(squared, k, 2 + int(np.log(k)), draws[k - 3], labels)
                worst_inertia = max(worst_inertia, inertia / model.inertia_ - 1)
                value = silhouette(
                    np.sqrt(squared), model.labels_.astype(np.int32), k, np.empty(100, np.float32)
                )
                largest_difference = max(largest_difference, abs(value - silhouettes[-1]))
            n_equal += (selected.rows[document] >= 0).sum() == 3 + int(np.argmax(silhouettes))
    print(f"same k* {n_equal / 3:.2f}%, worst inertia +{worst_inertia:.2%}")
    print(f"silhouette within {largest_difference:.1e}")
    assert n_equal >= 291
    assert worst_inertia <= 0.005
    assert largest_difference <= 1e-4
