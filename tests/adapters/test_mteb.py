"""The adapter for mteb: its tasks give the figures that strop's own evaluation gives."""

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

pytest.importorskip("strop.adapters.mteb", exc_type=ImportError)  # mteb itself is slow to import

from strop.adapters.mteb import StropSearch, read_document, read_query

pytestmark = pytest.mark.filterwarnings("ignore")  # what mteb's own imports and models warn of


def local_task(name: str, documents: list[Document], dataset: Dataset) -> Any:
    """Return a retrieval task of mteb whose data are at hand."""
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
                "relevant_docs": {q: dict(of) for q, of in dataset.qrels.items()},
                "top_ranked": None,
            }}}  # fmt: skip
            self.data_loaded = True

    return LocalRetrieval()


def scored(model: StropSearch, task: Any) -> Mapping[str, float]:
    import mteb

    (result,) = mteb.evaluate(model, task, cache=None).task_results
    scores: Mapping[str, float] = result.scores["test"][0]
    return scores


def ours(
    path: Path, documents: list[Document], dataset: Dataset, methods: list[str], embedder: str
) -> dict[str, float]:
    """Return nDCG@10 of each method."""
    with Index.create(path, embedder) as index:
        index.sharpen("sentences")
        index.add(documents)
        measured = evaluate(index, dataset, methods).results
    return {method: of["nDCG@10"] for method, of in measured.items()}


def test_signatures_are_those_of_the_protocol() -> None:
    from mteb.models.models_protocols import SearchProtocol

    assert isinstance(StropSearch(), SearchProtocol)
    for name in ("index", "search"):
        theirs = inspect.signature(getattr(SearchProtocol, name)).parameters
        mine = inspect.signature(getattr(StropSearch, name)).parameters
        assert list(mine) == list(theirs)
        for parameter in theirs:
            assert mine[parameter].kind == theirs[parameter].kind
            assert mine[parameter].default == theirs[parameter].default


def test_part_of_scifact_scores_as_with_evaluate(collections: Path, tmp_path: Path) -> None:
    methods = ["trad", "sharp", "sharp:alpha=2:T=1", "doc2query:sets=sentences"]
    whole = read_dataset(collections / "scifact")
    queries = dict(list(whole.queries.items())[:40])
    judged = {id_ for query in queries for id_ in whole.qrels[query]}
    read = list(read_corpus(collections / "scifact"))
    documents = [d for at, d in enumerate(read) if d.id in judged or at % 20 == 0]
    part = Dataset("part", queries, {query: whole.qrels[query] for query in queries})
    task = local_task("SciFactPart", documents, part)
    expected = ours(tmp_path / "index", documents, part, methods, "wordllama")
    for method in methods:
        found = scored(StropSearch(method=method, folder=tmp_path / "kept"), task)["ndcg_at_10"]
        assert found == pytest.approx(expected[method], abs=5e-5)
        assert 0.3 < found < 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("embedder", ["wordllama", "minilm"])
def test_scifact_scores_as_with_evaluate(collections: Path, tmp_path: Path, embedder: str) -> None:
    documents = list(read_corpus(collections / "scifact"))
    dataset = read_dataset(collections / "scifact")
    task = local_task("SciFactLocal", documents, dataset)
    for method, expected in ours(
        tmp_path / "index", documents, dataset, ["trad", "sharp"], embedder
    ).items():
        found = scored(StropSearch(embedder, method, folder=tmp_path / "kept"), task)
        assert round(found["ndcg_at_10"], 4) == pytest.approx(expected, abs=5e-5)


def test_kept_indexes_sets_from_files_and_given_documents(
    documents: list[Document], dataset: Path, tmp_path: Path
) -> None:
    import datasets

    task = local_task("Docs", documents, read_dataset(dataset))
    file = tmp_path / "simple.jsonl"
    file.write_text('{"id": "os.path.abspath", "queries": ["whole path"]}\n')
    seen: list[int] = []
    model = StropSearch(
        method="simsharp", sentences=False, files={"simple": file}, folder=tmp_path / "kept",
        prepare=lambda index: seen.append(len(index)), version="counts",
    )  # fmt: skip
    first = scored(model, task)
    assert scored(model, task) == first
    assert seen == [60, 60]
    model.close()
    (kept,) = (tmp_path / "kept").glob("Docs-default-test-*")
    with Index.open(kept) as index:
        assert index.queries_of("os.path.abspath") == {"simple": ["whole path"]}
    arguments: Any = {
        "task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default",
        "encode_kwargs": {}, "num_proc": None,
    }  # fmt: skip
    corpus = datasets.Dataset.from_list([{"id": d.id, "text": d.text} for d in documents])
    model.index(corpus, **arguments)
    queries = datasets.Dataset.from_list([{"id": "q", "text": "join two paths"}])
    every = model.search(queries, top_k=60, **arguments)["q"]
    some = model.search(
        queries, top_k=2, top_ranked={"q": list(every)[3:8]}, **arguments
    )["q"]  # fmt: skip
    assert list(some.items()) == list(every.items())[3:5]


def test_the_revision_is_of_contents(tmp_path: Path) -> None:
    """mteb returns stored scores for a name and revision: no two ways to score may share one."""
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


def test_a_kept_folder_does_not_mix_in_the_sets_of_an_earlier_run(
    documents: list[Document], dataset: Path, tmp_path: Path
) -> None:
    data = read_dataset(dataset)
    task = local_task("Docs", documents, data)
    file = tmp_path / "leak.jsonl"
    lists = [
        {"id": id_, "queries": [data.queries[q]]} for q, of in data.qrels.items() for id_ in of
    ]
    file.write_text(jsonl(*lists))
    leaking = StropSearch(files={"leak": file}, folder=tmp_path / "kept")
    assert scored(leaking, task)["ndcg_at_10"] > 0.95
    leaking.close()
    found = scored(StropSearch(folder=tmp_path / "kept"), task)
    expected = ours(tmp_path / "index", documents, data, ["sharp"], "wordllama")
    assert found["ndcg_at_10"] == pytest.approx(expected["sharp"], abs=5e-5)
    # Methods share an index of the same contents.
    scored(StropSearch(method="trad", folder=tmp_path / "kept"), task)
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_ties_are_ranked_as_by_evaluate(tmp_path: Path) -> None:
    """Documents alike in pairs, of which the one with the smaller id comes first."""
    documents = [Document(f"d{at:02}", f"stone number {at // 2 % 9}") for at in range(60)]
    queries = {f"q{at}": f"stone {at}" for at in range(9)}
    qrels = {f"q{at}": {f"d{at + 11 * n:02}": 1 + n % 2 for n in range(4)} for at in range(9)}
    dataset = Dataset("ties", queries, qrels)
    found = scored(StropSearch(method="trad"), local_task("Ties", documents, dataset))
    expected = ours(tmp_path / "index", documents, dataset, ["trad"], "wordllama")
    assert found["ndcg_at_10"] == pytest.approx(expected["trad"], abs=5e-5)


def test_rows_in_every_form() -> None:
    assert read_document({"id": 1, "title": "T", "text": "x"}).content == "T x"
    assert read_document({"id": 1, "title": "T", "text": "T x", "body": "x"}).content == "T x"
    assert read_document({"id": 1, "title": None, "text": "x"}).content == "x"
    assert read_query({"text": "a", "instruction": "b"}) == "a b"
    assert read_query({"text": [{"role": "user", "content": "a"}, "b"]}) == "user: a; b"
