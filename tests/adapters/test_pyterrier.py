"""PyTerrier: its own test class, operators, an experiment, artifacts."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("pyterrier")

import pandas as pd
import pyterrier as pt
from helpers.animals import ANIMALS
from pyterrier.testing import transformer_test_class

from strop import Index, evaluate
from strop.adapters.pyterrier import StropIndex, StropRetriever, read_metadata
from strop.adapters.shared import open_collection
from strop.errors import BadIndex
from strop.io.datasets import read_dataset

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # PyTerrier's, of pandas


def _retriever() -> StropRetriever:
    index = open_collection(None, create=True)
    assert isinstance(index, Index)
    index.add(ANIMALS)
    return StropRetriever(index, "sharp", include_fields=["text"])


# mypy cannot follow a base class that a call returns.
class TestRetrieverSuite(
    transformer_test_class(_retriever)  # type: ignore[misc]
):
    """PyTerrier's own suite."""


@pytest.fixture
def animals(tmp_path: Path) -> StropIndex:
    records = [
        {
            "docno": document.id,
            "title": document.title,
            "text": document.text,
            "legs": 2 if document.title else 4,
        }
        for document in ANIMALS
    ]
    return StropIndex(tmp_path / "animals.index").index(records)


QUERIES = pd.DataFrame({"qid": ["a", "b"], "query": ["who do mice fear", "roots"]})


def test_the_retriever_ranks_as_search(animals: StropIndex) -> None:
    hits = animals.strop_index.search(QUERIES["query"].tolist(), 2, "sharp")
    results = animals.retriever("sharp", num_results=2).transform(QUERIES)
    assert list(results.columns) == ["qid", "query", "docno", "score", "rank"]
    assert results["qid"].tolist() == ["a", "a", "b", "b"]
    assert results["docno"].tolist() == hits.ids.ravel().tolist()
    assert results["score"].tolist() == pytest.approx(hits.scores.ravel().tolist())
    assert results["rank"].tolist() == [0, 1, 0, 1]
    full = animals.retriever("sharp", include_fields=["title", "text", "passage", "legs"])
    first = full.search("who do mice fear").iloc[0]
    assert (first["docno"], first["title"], first["legs"]) == ("owl", "Owls", 2)
    assert first["passage"] == "Mice fear the old owl."
    four = animals.retriever("trad", where={"legs": 4}).transform(QUERIES)
    assert four["docno"].tolist() == ["pig", "pig"]
    assert animals.retriever().transform(QUERIES.iloc[:0]).empty
    with pytest.raises(ValueError, match="query 1 is empty"):
        animals.retriever().search(" ")


def test_operators(animals: StropIndex) -> None:
    sharp, bm25 = animals.retriever("sharp"), animals.retriever("bm25")
    assert len((sharp % 1).transform(QUERIES)) == 2
    alone = sharp.search("old owl").set_index("docno")["score"]
    both = (sharp + bm25).search("old owl").set_index("docno")["score"]
    words = bm25.search("old owl").set_index("docno")["score"]
    assert both["owl"] == pytest.approx(alone["owl"] + words["owl"], abs=1e-6)
    with_text = animals.retriever("sharp", include_fields=["text"])
    longest = with_text >> pt.apply.doc_score(lambda row: len(row["text"]))
    texts = longest.search("old owl").sort_values("rank")["text"].tolist()
    assert texts == sorted(texts, key=len, reverse=True)


def test_an_experiment_gives_the_values_of_evaluate(index: Path, dataset: Path) -> None:
    judged = read_dataset(dataset)
    topics = pd.DataFrame(judged.queries.items(), columns=["qid", "query"])
    rows = [(q, d, grade) for q, grades in judged.qrels.items() for d, grade in grades.items()]
    qrels = pd.DataFrame(rows, columns=["qid", "docno", "label"])
    methods = ["trad", "bm25", "sharp"]
    artifact = StropIndex(index)
    reranker = pt.apply.doc_score(lambda row: -len(row["text"]))
    ndcg = pt.Experiment(
        [
            *(artifact.retriever(method, num_results=100) for method in methods),
            artifact.retriever("sharp", include_fields=["text"]) % 5 >> reranker,
        ],
        topics, qrels, ["ndcg_cut_10"], names=[*methods, "sharp >> reranker"],
        validate="ignore",  # PyTerrier cannot tell what a function returns
    ).set_index("name")["ndcg_cut_10"]  # fmt: skip
    with Index.open(index) as opened:
        expected = evaluate(opened, judged, methods).results
    for method in methods:
        assert ndcg[method] == pytest.approx(expected[method]["nDCG@10"], abs=1e-9)
    assert ndcg["sharp >> reranker"] != ndcg["sharp"]


def test_an_index_folder_is_an_artifact(
    animals: StropIndex, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one built by the command. The entry points are those of pyproject.toml."""
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    declared = re.findall(
        r'\[project\.entry-points\."(pyterrier[\w.]+)"\]\n"?([\w.]+)"? = "([^"]+)"', pyproject
    )
    points = [EntryPoint(name, value, group) for group, name, value in declared]
    assert len(points) == 2
    monkeypatch.setattr(
        pt.utils, "entry_points", lambda group: [point for point in points if point.group == group]
    )
    for path in (animals.path, index):
        loaded = pt.Artifact.load(str(path))
        assert isinstance(loaded, StropIndex)
        assert len(loaded.strop_index) > 2
    assert read_metadata(str(tmp_path), ["other.txt"]) is None
    package = animals.build_package(str(tmp_path / "index.tar.lz4"), verbose=False)
    assert Path(package).stat().st_size > 1000


def test_invalid_documents_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a document has no 'docno'"):
        StropIndex(tmp_path / "index").index([{"text": "x"}])
    with pytest.raises(BadIndex, match="does not exist"):
        StropIndex(tmp_path / "none").retriever()
