"""The mteb adapter: scores of mteb tasks equal strop's own evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import jsonl

from strop import Index, evaluate
from strop.errors import BadInput
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.types import Dataset, Document

pytest.importorskip("strop.adapters.mteb", exc_type=ImportError)  # importing mteb itself is slow

from strop.adapters.mteb import StropSearch, read_document, read_query

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of mteb's imports and models


def local_task(name: str, documents: list[Document], dataset: Dataset) -> Any:
    """Return an mteb retrieval task with local data."""
    import datasets
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    corpus = [{"id": d.id, "title": d.title, "text": d.text} for d in documents]
    queries = [{"id": id_, "text": text} for id_, text in dataset.queries.items()]

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name, description="local", dataset={"path": "local/local", "revision": "1"},
            type="Retrieval", category="t2t", modalities=["text"], eval_splits=["test"],
            eval_langs=["eng-Latn"], main_score="ndcg_at_10", date=None, domains=None,
            task_subtypes=None, license=None, annotations_creators=None, dialect=None,
            sample_creation=None, bibtex_citation="", reference=None,
        )  # fmt: skip

        def load_data(self, *_: Any, **__: Any) -> None:
            self.dataset = {"default": {"test": {
                "corpus": datasets.Dataset.from_list(corpus),
                "queries": datasets.Dataset.from_list(queries),
                "relevant_docs": {q: dict(grades) for q, grades in dataset.qrels.items()},
                "top_ranked": None,
            }}}  # fmt: skip
            self.data_loaded = True

    return LocalRetrieval()


def mteb_scores(model: StropSearch, task: Any) -> Mapping[str, float]:
    import mteb

    (result,) = mteb.evaluate(model, task, cache=None).task_results
    scores: Mapping[str, float] = result.scores["test"][0]
    return scores


def strop_ndcg(
    path: Path, documents: list[Document], dataset: Dataset, methods: list[str], embedder: str
) -> dict[str, float]:
    """Return nDCG@10 of each method."""
    with Index.create(path, embedder) as index:
        index.sharpen("sentences")
        index.add(documents)
        results = evaluate(index, dataset, methods).results
    return {method: scores["nDCG@10"] for method, scores in results.items()}


def test_signatures_follow_the_protocol() -> None:
    from mteb.models.models_protocols import SearchProtocol

    assert isinstance(StropSearch(), SearchProtocol)
    for name in ("index", "search"):
        theirs = inspect.signature(getattr(SearchProtocol, name)).parameters
        ours = inspect.signature(getattr(StropSearch, name)).parameters
        assert list(ours) == list(theirs)
        for parameter in theirs:
            assert ours[parameter].kind == theirs[parameter].kind
            assert ours[parameter].default == theirs[parameter].default


def test_part_of_scifact_scores_as_in_evaluate(collections: Path, tmp_path: Path) -> None:
    methods = ["trad", "sharp", "sharp:alpha=2:T=1", "doc2query:sets=sentences"]
    full = read_dataset(collections / "scifact")
    queries = dict(list(full.queries.items())[:40])
    judged = {id_ for query in queries for id_ in full.qrels[query]}
    corpus = list(read_corpus(collections / "scifact"))
    documents = [d for at, d in enumerate(corpus) if d.id in judged or at % 20 == 0]
    part = Dataset("part", queries, {query: full.qrels[query] for query in queries})
    task = local_task("SciFactPart", documents, part)
    expected = strop_ndcg(tmp_path / "index", documents, part, methods, "wordllama")
    for method in methods:
        model = StropSearch(method=method, folder=tmp_path / "kept")
        score = mteb_scores(model, task)["ndcg_at_10"]
        assert score == pytest.approx(expected[method], abs=5e-5)
        assert 0.3 < score < 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("embedder", ["wordllama", "minilm"])
def test_scifact_scores_as_in_evaluate(collections: Path, tmp_path: Path, embedder: str) -> None:
    documents = list(read_corpus(collections / "scifact"))
    dataset = read_dataset(collections / "scifact")
    task = local_task("SciFactLocal", documents, dataset)
    for method, expected in strop_ndcg(
        tmp_path / "index", documents, dataset, ["trad", "sharp"], embedder
    ).items():
        scores = mteb_scores(StropSearch(embedder, method, folder=tmp_path / "kept"), task)
        assert round(scores["ndcg_at_10"], 4) == pytest.approx(expected, abs=5e-5)


def test_indexes_are_reused_and_top_ranked_limits_the_search(
    documents: list[Document], dataset: Path, tmp_path: Path
) -> None:
    import datasets

    task = local_task("Docs", documents, read_dataset(dataset))
    file = tmp_path / "simple.jsonl"
    file.write_text('{"id": "os.path.abspath", "queries": ["whole path"]}\n')
    sizes: list[int] = []
    model = StropSearch(
        method="simsharp", sentences=False, files={"simple": file}, folder=tmp_path / "kept",
        prepare=lambda index: sizes.append(len(index)), version="counts",
    )  # fmt: skip
    first = mteb_scores(model, task)
    assert mteb_scores(model, task) == first
    assert sizes == [60, 60]
    model.close()
    (path,) = (tmp_path / "kept").glob("Docs-default-test-*")
    with Index.open(path) as index:
        assert index.queries_of("os.path.abspath") == {"simple": ["whole path"]}
    arguments: Any = {
        "task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default",
        "encode_kwargs": {}, "num_proc": None,
    }  # fmt: skip
    corpus = datasets.Dataset.from_list([{"id": d.id, "text": d.text} for d in documents])
    model.index(corpus, **arguments)
    queries = datasets.Dataset.from_list([{"id": "q", "text": "join two paths"}])
    all_hits = model.search(queries, top_k=60, **arguments)["q"]
    hits = model.search(
        queries, top_k=2, top_ranked={"q": list(all_hits)[3:8]}, **arguments
    )["q"]  # fmt: skip
    assert list(hits.items()) == list(all_hits.items())[3:5]


def test_the_revision_depends_on_all_settings_and_files(tmp_path: Path) -> None:
    """mteb caches scores by name and revision, so each configuration needs its own revision."""
    file = tmp_path / "simple.jsonl"

    def revision(**arguments: Any) -> str:
        return str(StropSearch(**arguments).mteb_model_meta.revision)

    def prepare(index: Index) -> None:
        index.sharpen("sentences")

    file.write_text('{"id": "a", "queries": ["one"]}\n')
    before = revision(files={"simple": file})
    assert revision(files={"simple": file}) == before
    file.write_text('{"id": "a", "queries": ["two"]}\n')
    versions = [
        before,
        revision(files={"simple": file}),
        revision(files={"other": file}),
        revision(),
        revision(sentences=False),
        revision(method="trad"),
        revision(dim=64),
        revision(prepare=prepare),
        revision(prepare=prepare),
        revision(prepare=prepare, version="1"),
        revision(prepare=prepare, version="2"),
    ]
    assert len(set(versions)) == len(versions)
    assert revision(prepare=prepare, version="1") == versions[-2]
    with pytest.raises(BadInput, match="there is no prepare"):
        StropSearch(version="1")


def test_a_reused_folder_does_not_add_sets_of_an_earlier_run(
    documents: list[Document], dataset: Path, tmp_path: Path
) -> None:
    data = read_dataset(dataset)
    task = local_task("Docs", documents, data)
    file = tmp_path / "leak.jsonl"
    lists = [
        {"id": id_, "queries": [data.queries[q]]}
        for q, grades in data.qrels.items()
        for id_ in grades
    ]
    file.write_text(jsonl(*lists))
    leaking = StropSearch(files={"leak": file}, folder=tmp_path / "kept")
    assert mteb_scores(leaking, task)["ndcg_at_10"] > 0.95
    leaking.close()
    scores = mteb_scores(StropSearch(folder=tmp_path / "kept"), task)
    expected = strop_ndcg(tmp_path / "index", documents, data, ["sharp"], "wordllama")
    assert scores["ndcg_at_10"] == pytest.approx(expected["sharp"], abs=5e-5)
    # Methods with equal contents share an index.
    mteb_scores(StropSearch(method="trad", folder=tmp_path / "kept"), task)
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_ties_are_ranked_as_in_evaluate(tmp_path: Path) -> None:
    """Pairs of equal documents: the smaller id is ranked first."""
    documents = [Document(f"d{at:02}", f"stone number {at // 2 % 9}") for at in range(60)]
    queries = {f"q{at}": f"stone {at}" for at in range(9)}
    qrels = {f"q{at}": {f"d{at + 11 * n:02}": 1 + n % 2 for n in range(4)} for at in range(9)}
    dataset = Dataset("ties", queries, qrels)
    scores = mteb_scores(StropSearch(method="trad"), local_task("Ties", documents, dataset))
    expected = strop_ndcg(tmp_path / "index", documents, dataset, ["trad"], "wordllama")
    assert scores["ndcg_at_10"] == pytest.approx(expected["trad"], abs=5e-5)


def test_rows_of_every_form_are_read() -> None:
    assert read_document({"id": 1, "title": "T", "text": "x"}).content == "T x"
    assert read_document({"id": 1, "title": "T", "text": "T x", "body": "x"}).content == "T x"
    assert read_document({"id": 1, "title": None, "text": "x"}).content == "x"
    assert read_query({"text": "a", "instruction": "b"}) == "a b"
    assert read_query({"text": [{"role": "user", "content": "a"}, "b"]}) == "user: a; b"
