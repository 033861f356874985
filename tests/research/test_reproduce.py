"""The paper's tables: complete as data, reproduced where possible, the rest marked as such."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import beir, jsonl, strop
from helpers.scripted_server import ScriptedServer

from strop import Index, evaluate
from strop.research.benchmark_data import collection
from strop.research.paper import chosen_tables, figures_of, read_tables
from strop.research.perplexity import PerplexitySettings
from strop.research.reproduce import ALPHAS
from strop.research.reproduce_plan import Setup, plan
from strop.types import Document

TABLES = {
    "beir_ndcg10": "beir", "beir_recall50": "beir-recall", "beir_map50": "beir-map",
    "query_side_ndcg10_qwen3": "query-side", "index_time_ndcg10_qwen3": "index-time",
    "bright_ndcg10": "bright", "miracl_ndcg10": "miracl", "perplexity_boost_pearson": "perplexity",
}  # fmt: skip


def leaves(value: Any) -> Iterator[tuple[str, float]]:
    """Yield the dataset and value of every figure of a table, in order."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item)
        else:
            yield key.lower().replace("_", "-"), item


def test_every_figure_of_the_paper_is_in_the_tables(collections: Path) -> None:
    published = collections.parent / "paper" / "results.json"
    if not published.exists():
        pytest.skip("the paper's figures are not here")
    results = json.loads(published.read_text("utf-8"))
    tables = {table.name: table for table in read_tables()}
    assert sorted(tables) == sorted(TABLES.values())
    for key, name in TABLES.items():
        ours = []
        for row in tables[name].rows:
            ours += [(d.removeprefix("miracl-").removeprefix("bright-"), f)
                     for d, f in row.figures.items()]  # fmt: skip
            ours += [("avg", row.average)] if row.average is not None else []
        assert ours == list(leaves(results[key])), key


def test_averages_equal_the_means_of_their_rows() -> None:
    for table in read_tables():
        for row in table.rows:
            if row.average is not None:
                assert row.average == pytest.approx(sum(row.figures.values()) / 6, abs=0.02)


def test_list_names_every_row_and_missing_files(tmp_path: Path) -> None:
    result = strop("reproduce", "--list", "--data", tmp_path / "data", "-o", tmp_path / "out")
    assert result.code == 0
    for table in read_tables():
        assert f"\n{table.name}  " in result.stdout
        for row in table.rows:
            assert row.label in result.stdout
    data = tmp_path / "data"
    assert "put corpus.jsonl, queries.jsonl, qrels/test.tsv of https://" in result.stdout
    assert f"/scifact.zip into {data / 'scifact'}  (" in result.stdout
    weights = tmp_path / "out" / "models" / "facebook" / "contriever"
    assert f"hf download facebook/contriever, or put its weights into {weights}" in result.stdout
    passages = "hf download miracl/miracl-corpus --repo-type dataset --include"
    assert (
        f"{passages} 'miracl-corpus-v1.0-ko/docs-*.jsonl.gz' --local-dir {data / 'miracl'}"
        in result.stdout
    )
    files = "--include 'documents/biology-*.parquet' --include 'examples/biology-*.parquet'"
    assert f"hf download xlangai/BRIGHT --repo-type dataset {files}" in result.stdout
    as_json = strop("reproduce", "--list", "--json", "-o", tmp_path / "out").json
    assert len(as_json) == len(list(figures_of(read_tables()))) == 404
    assert {figure["verdict"] for figure in as_json} == {"not run"}
    assert not (tmp_path / "out").exists()


@pytest.fixture
def data(documents: list[Document], dataset: Path, tmp_path: Path) -> Path:
    """A small collection named scifact, with queries that are not in its qrels."""
    folder = tmp_path / "data" / "scifact"
    queries = [json.loads(line) for line in (dataset / "queries.jsonl").read_text().splitlines()]
    qrels: dict[str, dict[str, int]] = {}
    for line in (dataset / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    texts = {query["_id"]: query["text"] for query in queries}
    beir(folder, texts | {f"spare{i}": f"spare query {i}" for i in range(6)}, qrels)
    lines = [{"_id": d.id, "title": d.title, "text": d.text} for d in documents]
    (folder / "corpus.jsonl").write_text(jsonl(*lines), "utf-8")
    return tmp_path / "data"


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    def run(*args: str | Path) -> list[dict[str, Any]]:
        outcomes: list[dict[str, Any]] = strop(
            "reproduce", *args, "--embedder", "wordllama", "--datasets", "scifact", "--data", data,
            "-o", tmp_path / "out", "--json",
        ).json  # fmt: skip
        return outcomes

    return run


def test_another_embedder_is_measured_and_not_comparable(
    run: Callable[..., list[dict[str, Any]]], data: Path, tmp_path: Path
) -> None:
    outcomes = run("beir", "beir-recall", "--embedders", "contriever")
    by_method = {(outcome["method"], outcome["measure"]): outcome for outcome in outcomes}
    trad = by_method["trad", "nDCG@10"]
    with Index.open(tmp_path / "out" / "indexes" / "scifact--wordllama") as index:
        report = evaluate(index, data / "scifact", ["trad"])
    assert trad["measured"] == pytest.approx(100 * report.results["trad"]["nDCG@10"])
    assert by_method["trad", "R@50"]["measured"] == pytest.approx(
        100 * report.results["trad"]["R@50"]
    )
    assert trad["verdict"] == "not comparable"
    assert trad["why"] == ["the figure is of embedder contriever, not wordllama"]
    sharp = by_method["consharp:alpha=1:temperature=1", "nDCG@10"]
    assert sharp["verdict"] == "not run"
    place = tmp_path / "out" / "queries" / "scifact" / "wordllama" / "contrastive.jsonl"
    assert str(place) in sharp["why"][0]


def test_a_second_run_reuses_results(
    run: Callable[..., list[dict[str, Any]]], documents: list[Document], tmp_path: Path
) -> None:
    first = run("beir", "--methods", "trad")
    # Stored results are not measured again: the changed index would give other values.
    with Index.open(tmp_path / "out" / "indexes" / "scifact--wordllama") as index:
        index.remove([document.id for document in documents[::2]])
    assert run("beir", "--methods", "trad") == first
    # Queries from another file are measured anew.
    queries = tmp_path / "out" / "queries" / "scifact"
    queries.mkdir(parents=True)
    lists = [{"id": d.id, "queries": [d.id, "something"]} for d in documents[1:11:2]]
    (queries / "simple.jsonl").write_text(jsonl(*lists), "utf-8")
    longer = run("beir", "--methods", "simsharp", "--embedders", "contriever")[0]
    (queries / "simple.jsonl").write_text(jsonl(*lists[:1]), "utf-8")
    shorter = run("beir", "--methods", "simsharp", "--embedders", "contriever")[0]
    assert longer["measured"] is not None
    assert shorter["measured"] is not None
    with Index.open(tmp_path / "out" / "indexes" / "scifact--wordllama") as index:
        sets = index.info()["sets"]
    assert sorted(query_set["documents"] for query_set in sets.values()) == [1, 5]
    runs = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert len(runs) == 3


def test_verdicts(
    run: Callable[..., list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strop.research import reproduce
    from strop.research.paper import Figure, Row, Table
    from strop.research.reproduce_plan import Setup

    measured = run("beir", "--methods", "trad")[0]["measured"]

    def judge(expected: float, **more: Any) -> str:
        row = Row("x", "wordllama", "trad", {"scifact": expected}, average=expected, **more)
        table = Table("t", "", "nDCG@10", (row,))
        setup = Setup(tmp_path / "out", tmp_path / "data")
        figure = Figure(table, row, "scifact", expected)
        outcomes = list(reproduce.reproduce([figure], setup, run=False))
        mean = list(reproduce.averages(outcomes))
        assert [outcome.verdict for outcome in mean] == [outcomes[0].verdict]
        assert mean[0].measured == pytest.approx(measured)
        return outcomes[0].verdict

    assert judge(measured + 0.29) == "within"
    assert judge(measured - 0.31) == "differs"
    assert judge(measured - 0.99, generator="Claude 3.5 Sonnet") == "within"
    assert judge(measured + 1.01, generator="Claude 3.5 Sonnet") == "differs"


def test_sentences_can_replace_queries(
    run: Callable[..., list[dict[str, Any]]], data: Path, tmp_path: Path
) -> None:
    outcomes = run("beir", "index-time", "--sentences", "--embedders", "qwen3-embedding-0.6b")
    assert all(outcome["measured"] is not None for outcome in outcomes)
    by_method = {outcome["method"]: outcome for outcome in outcomes}
    with Index.open(tmp_path / "out" / "indexes" / "scifact--wordllama") as index:
        spec = "consharp:sets=sentences"
        report = evaluate(index, data / "scifact", [spec])
    sharp = by_method["consharp:alpha=1:temperature=1"]
    assert sharp["measured"] == pytest.approx(100 * report.results[spec]["nDCG@10"])
    assert "not of sentences" in sharp["why"][1]


def test_a_model_writes_the_queries(
    run: Callable[..., list[dict[str, Any]]], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROP_API_KEY", "key")
    with ScriptedServer() as server:
        server.text = lambda prompt: f"<QUERY>{' '.join(prompt.split()[-30:-20])}</QUERY>"
        options = ("--lm", "openai:m", "--lm-option", f"base_url={server.url}")
        (outcome,) = run("beir", "--methods", "simsharp", "--embedders", "contriever", *options)
        n_requests = len(server.bodies)
        assert n_requests == 60
        assert "spare query 0" in json.dumps(server.bodies[0])
        assert outcome["measured"] is not None
        assert "the figure is of texts by Claude 3.5 Sonnet, not by openai:m" in outcome["why"]
        run("beir", "--methods", "simsharp", "--embedders", "contriever", *options)
        assert len(server.bodies) == n_requests


def differences(table: str, embedder: str, method: str, **settings: Any) -> str:
    """Return why a figure of SciFact, or of the first dataset, is not comparable."""
    figures = [
        figure for figure in figures_of(chosen_tables([table]))
        if (figure.row.embedder, figure.row.method) == (embedder, method)
        and not figure.row.query_side
    ]  # fmt: skip
    first = next((figure for figure in figures if figure.dataset == "scifact"), figures[0])
    return "; ".join(plan(first, Setup(Path("nowhere"), **settings)).differs)


def test_runs_unlike_the_papers_are_not_comparable(tmp_path: Path) -> None:
    folder = tmp_path / "queries" / "scifact"
    folder.mkdir(parents=True)
    (folder / "simple.jsonl").write_text('{"id": "1", "queries": ["x"]}\n')
    files = {"queries": tmp_path / "queries"}
    sonnet = "anthropic:claude-3-5-sonnet-20241022"
    assert differences("beir", "contriever", "trad") == ""
    assert differences("beir", "contriever", "simsharp", lm=sonnet) == ""
    assert "not by openai:x" in differences("beir", "contriever", "simsharp", lm="openai:x")
    by_file = differences("beir", "contriever", "simsharp", **files)
    assert "the file's are by an unknown author" in by_file
    assert "by me" in differences("beir", "contriever", "simsharp", queries_by="me", **files)
    assert differences("beir", "contriever", "simsharp", queries_by=sonnet, **files) == ""
    assert "other options than by default: max_length" in differences(
        "beir", "contriever", "trad", options={"max_length": 64}
    )
    assert "used with an instruction" in differences("beir", "e5-mistral", "trad")
    assert "used with an instruction" in differences(
        "miracl", "multilingual-e5-large-instruct", "trad"
    )
    assert differences("beir", "e5-mistral", "trad", options={"prompts": {"query": ""}}) == ""
    assert differences("bright", "reasonir-8b", "trad") == ""
    reader = PerplexitySettings("hf:gpt2")
    assert "does not name the model" in differences(
        "perplexity", "contriever", "consharp", lm=sonnet, perplexity=reader
    )


def test_the_list_says_what_is_not_comparable(tmp_path: Path) -> None:
    result = strop("reproduce", "perplexity", "miracl", "--list", "-o", tmp_path / "out")
    assert "the paper does not name the model that measured perplexity" in result.stdout
    assert "is used with an instruction" in result.stdout


def test_alpha_is_tuned_on_the_other_subsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    root, queries = tmp_path / "data", tmp_path / "queries"
    for part in ("pony", "theoremqa_questions"):
        texts = {f"d{i}": f"{word} was seen in the {part}" for i, word in enumerate(
            ["harbour", "violin", "engine", "forest", "glacier", "lantern"])}  # fmt: skip
        tables = {
            "documents": [{"id": id_, "content": text} for id_, text in texts.items()],
            "examples": [{"id": f"q{i}", "query": f"thing {i} of the sea",
                          "gold_ids": [f"d{i}"], "excluded_ids": ["N/A"]} for i in range(6)],
        }  # fmt: skip
        for kind, rows in tables.items():
            file = root / "bright" / kind / f"{part}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), file)
        folder = queries / f"bright-{part.replace('_', '-')}"
        folder.mkdir(parents=True)
        lists = [{"id": f"d{i}", "queries": [f"thing {i} of the sea"]} for i in range(6)]
        (folder / "contrastive.jsonl").write_text(jsonl(*lists))
    (outcome,) = strop(
        "reproduce", "bright", "--datasets", "bright-pony", "--methods", "consharp", "--embedder",
        "wordllama", "--data", root, "--queries", queries, "-o", tmp_path / "out", "--json",
    ).json  # fmt: skip
    assert outcome["measured"] is not None
    (run,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"].values()
    assert {float(alpha) for alpha in run["alphas"]} == set(ALPHAS)
    best = max(run["alphas"], key=run["alphas"].__getitem__)
    assert f"alpha={float(best):g}" in run["method"]
    # Stored queries that equal the test queries need a large alpha.
    assert run["alphas"]["0.05"] < run["alphas"][best]


def test_errors_name_the_valid_arguments(tmp_path: Path) -> None:
    result = strop("reproduce", "bier", "-o", tmp_path)
    assert result.code == 1
    assert "no table 'bier' here: choose from beir, beir-recall" in result.stderr
    result = strop("reproduce", "beir", "--datasets", "miracl-ko", "-o", tmp_path)
    assert result.code == 2
    (tmp_path / "results.json").write_text("{}")
    assert "is not a file of results" in strop("reproduce", "beir", "-o", tmp_path).stderr


# -- collections ------------------------------------------------------------------------------


def test_bright_in_its_publishers_layout(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    data = collection("bright-earth-science")
    assert "earth_science-*.parquet" in data.missing(tmp_path)
    for kind, rows in {
        "documents": [{"id": f"d/{i}.txt", "content": f"text of stone {i}"} for i in range(4)],
        "examples": [
            {"id": "0", "query": "stone 1", "gold_ids": ["d/1.txt"], "excluded_ids": ["N/A"]},
            {"id": "1", "query": "stone 2", "gold_ids": ["d/2.txt", "d/3.txt"],
             "excluded_ids": ["d/1.txt", "d/0.txt"]},
        ],
    }.items():  # fmt: skip
        file = tmp_path / "bright" / kind / "earth_science-00000-of-00001.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), file)
    assert data.missing(tmp_path) == ""
    documents = [sourced.document for sourced in data.documents(tmp_path)]
    assert [(d.id, d.text) for d in documents][:1] == [("d/0.txt", "text of stone 0")]
    dataset = data.dataset(tmp_path)
    assert dataset.queries == {"0": "stone 1", "1": "stone 2"}
    assert dataset.qrels["1"] == {"d/2.txt": 1, "d/3.txt": 1}
    assert dataset.excluded == {"0": [], "1": ["d/1.txt", "d/0.txt"]}
    # Documents excluded for a query are not ranked and take no rank from others.
    with Index.create(tmp_path / "index") as index:
        index.add(documents)
        run = evaluate(index, dataset, ["trad"], measures=["nDCG@2"]).runs["trad"]
    assert {id_ for id_, _ in run["1"]} == {"d/2.txt", "d/3.txt"}
    assert len(run["0"]) == 2


def write_miracl(root: Path) -> None:
    corpus = root / "miracl" / "miracl-corpus-v1.0-sw"
    corpus.mkdir(parents=True)
    for part in (10, 2):
        with gzip.open(corpus / f"docs-{part}.jsonl.gz", "wt") as file:
            file.write(jsonl({"docid": f"{part}#0", "title": "Jina", "text": f"maandishi {part}"}))
    for kind, name, text in (
        ("topics", "topics.miracl-v1.0-sw-dev.tsv", "1#0\tswali\n9#0\thalihukumiwa\n"),
        ("qrels", "qrels.miracl-v1.0-sw-dev.tsv", "1#0\tQ0\t2#0\t1\n1#0\tQ0\t10#0\t0\n"),
    ):
        folder = root / "miracl" / "miracl-v1.0-sw" / kind
        folder.mkdir(parents=True)
        (folder / name).write_text(text)


def test_miracl_in_its_publishers_layout(tmp_path: Path) -> None:
    data = collection("miracl-sw")
    assert "miracl-corpus-v1.0-sw/docs-*.jsonl.gz" in data.missing(tmp_path)
    write_miracl(tmp_path)
    assert data.missing(tmp_path) == ""
    assert [sourced.document.id for sourced in data.documents(tmp_path)] == ["2#0", "10#0"]
    dataset = data.dataset(tmp_path)
    assert (dataset.queries, dataset.qrels) == ({"1#0": "swali"}, {"1#0": {"2#0": 1, "10#0": 0}})


# -- whole collections ------------------------------------------------------------------------


@pytest.mark.slow
def test_packaged_embedder_on_scifact_and_nfcorpus(collections: Path, tmp_path: Path) -> None:
    outcomes = strop(
        "reproduce", "beir", "index-time", "--embedders", "qwen3-embedding-0.6b", "--embedder",
        "wordllama", "--datasets", "scifact,nfcorpus", "--sentences", "--data", collections,
        "-o", tmp_path, "--json",
    ).json  # fmt: skip
    measured = {
        (outcome["dataset"], outcome["method"]): outcome["measured"] for outcome in outcomes
    }
    sharp = "consharp:alpha=1:temperature=1"
    assert measured["scifact", "trad"] == pytest.approx(51.34, abs=0.05)
    assert measured["nfcorpus", "trad"] == pytest.approx(24.50, abs=0.05)
    assert measured["scifact", sharp] == pytest.approx(52.19, abs=0.1)
    assert measured["nfcorpus", sharp] == pytest.approx(25.31, abs=0.1)


def test_the_list_gives_the_needs_of_each_row(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = strop("reproduce", "beir", "query-side", "--list", "-o", out)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "Contriever Trad trad contriever 0 of 6 yes" in lines
    simple = "simsharp:alpha=1:temperature=1 contriever, simple queries"
    assert f"Contriever SimSharp {simple} 0 of 6 if by Claude 3.5 Sonnet" in lines
    (row,) = (line for line in lines if line.startswith("HyDE ConSharp consharp"))
    assert "qwen3-embedding-0.6b, contrastive queries, hyde 0 of 6 no: note " in row
    number = row.rpartition(" ")[2]
    assert any(line.startswith(f"{number}. qwen3-embedding-0.6b is used with") for line in lines)
    (figure,) = strop(
        "reproduce", "beir", "--list", "--json", "-o", out, "--datasets", "fiqa", "--methods",
        "consharp", "--embedders", "contriever",
    ).json  # fmt: skip
    assert figure["needs"] == ["contriever", "contrastive queries"]
