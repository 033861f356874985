from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.files import read_run
from hypothesis import given
from hypothesis import strategies as st

from strop import METHODS, Dataset, Index, Method, evaluate
from strop.errors import BadInput
from strop.evaluation.scoring import Report, decreasing, holm
from strop.io.datasets import write_run

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lamda mu".split()


def count_words(texts: Sequence[str]) -> list[list[float]]:
    """Embed texts as word counts, one dimension per word."""
    return [[float(text.split().count(word)) for word in WORDS] for text in texts]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.create(tmp_path_factory.mktemp("scoring") / "index", count_words) as index:
        rng = np.random.default_rng(0)
        index.add({"id": f"d{i}", "text": " ".join(rng.choice(WORDS, 6))} for i in range(40))
        index.import_queries(
            {f"d{i}": [" ".join(rng.choice(WORDS, 2)) for _ in range(3)] for i in range(40)},
            "simple",
        )
        yield index


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(1)
    queries = {f"q{i}": " ".join(rng.choice(WORDS, 2)) for i in range(25)}
    qrels = {
        query: {f"d{j}": int(rng.integers(0, 3)) for j in rng.choice(40, 6, replace=False)}
        for query in queries
    }
    return Dataset("words", queries, qrels)


def dcg(grades: Sequence[int]) -> float:
    return sum(grade / math.log2(rank + 2) for rank, grade in enumerate(grades))


def test_measures_equal_their_definitions(index: Index, dataset: Dataset) -> None:
    report = evaluate(index, dataset, ["trad", "simsharp"])
    assert (report.dataset, report.queries, report.baseline) == ("words", 25, "trad")
    for method, run in report.runs.items():
        for query, ranked in run.items():
            grades = dataset.qrels[query]
            hit_grades = [grades.get(id_, 0) for id_, _ in ranked]
            ideal = dcg(sorted(grades.values(), reverse=True)[:10])
            assert report.per_query[method]["nDCG@10"][query] == pytest.approx(
                dcg(hit_grades[:10]) / ideal if ideal else 0
            )
            relevant = sum(grade > 0 for grade in grades.values())
            n_found = sum(grade > 0 for grade in hit_grades[:50])
            assert report.per_query[method]["R@50"][query] == pytest.approx(
                n_found / relevant if relevant else 0
            )
        values = list(report.per_query[method]["nDCG@10"].values())
        assert report.results[method]["nDCG@10"] == pytest.approx(np.mean(values))


def test_measures_by_name(index: Index, dataset: Dataset) -> None:
    names = ["P@5", "RR@10", "Success@1", "AP", "nDCG@3"]
    report = evaluate(index, dataset, ["trad"], measures=names)
    assert list(report.results["trad"]) == names
    assert all(0 <= value <= 1 for value in report.results["trad"].values())
    assert all(len(ranked) == 40 for ranked in report.runs["trad"].values())


def test_p_values_are_corrected_paired_t_tests(index: Index, dataset: Dataset) -> None:
    from scipy.stats import ttest_rel

    methods = ["trad", "simsharp", "simsharp:alpha=3"]
    report = evaluate(index, dataset, methods, measures=["nDCG@10"])

    def values(name: str) -> list[float]:
        return list(report.per_query[name]["nDCG@10"].values())

    raw = {name: ttest_rel(values(name), values("trad")).pvalue for name in methods[1:]}
    small, large = sorted(raw, key=lambda name: raw[name])
    assert report.p_values[small]["nDCG@10"] == pytest.approx(min(1, 2 * raw[small]))
    assert report.p_values[large]["nDCG@10"] == pytest.approx(
        max(min(1, 2 * raw[small]), raw[large])
    )
    other = evaluate(index, dataset, methods, measures=["nDCG@10"], baseline="simsharp")
    assert set(other.p_values) == {"trad", "simsharp:alpha=3"}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_correction(values: list[float]) -> None:
    raw = {str(i): value for i, value in enumerate(values)}
    corrected = holm(raw)
    assert list(corrected) == list(raw)
    for name, value in raw.items():
        # By definition: the largest (m - j + 1) p_j over all p_j up to this one.
        order = sorted(raw.values())
        bound = max((len(order) - i) * p for i, p in enumerate(order) if p <= value)
        assert corrected[name] == pytest.approx(min(1.0, bound))


def test_a_method_against_itself_is_not_significant(index: Index, dataset: Dataset) -> None:
    report = evaluate(index, dataset, ["trad", "sharp:alpha=0:words=0"])
    assert report.p_values["sharp:alpha=0:words=0"] == {"nDCG@10": 1.0, "R@50": 1.0, "AP@50": 1.0}


@given(st.lists(st.floats(-4, 4, width=32) | st.sampled_from([0.0, -0.0, 1e-45, 0.5]), max_size=30))
def test_decreasing_scores_have_no_ties_and_stay_close(values: list[float]) -> None:
    scores = sorted(values, reverse=True)
    lowered = decreasing(scores)
    assert lowered == [float(np.float32(score)) for score in lowered]
    assert all(a > b for a, b in pairwise(lowered))
    np.testing.assert_allclose(lowered, scores, atol=4 * 2**-23 * 31)


@pytest.mark.parametrize("method", ["trad", "bm25"])
def test_a_written_run_has_the_same_values_in_trec_eval(
    method: str, index: Index, tmp_path: Path
) -> None:
    """Most documents tie: queries have one word, documents few different counts."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    queries = {f"q{i}": word for i, word in enumerate(WORDS)}
    rng = np.random.default_rng(2)
    qrels = {
        query: {f"d{j}": int(rng.integers(0, 3)) for j in rng.choice(40, 12, replace=False)}
        for query in queries
    }
    report = evaluate(index, Dataset("ties", queries, qrels), [method])
    scores = index.search(list(queries.values()), 10, method, exact=True).scores
    assert (np.diff(scores, axis=1) == 0).sum() > 20
    write_run(tmp_path / "run.trec", report.runs[method], "strop")
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map_cut.50", "recall.50"})
    values = evaluator.evaluate(read_run(tmp_path / "run.trec"))
    names = {"nDCG@10": "ndcg_cut_10", "AP@50": "map_cut_50", "R@50": "recall_50"}
    for measure, name in names.items():
        from_trec_eval = {query: query_values[name] for query, query_values in values.items()}
        assert from_trec_eval == pytest.approx(report.per_query[method][measure])
    ids = index.search(queries["q0"], 10, method, exact=True).ids[0].tolist()
    assert [id_ for id_, _ in report.runs[method]["q0"][:10]] == ids


def test_queries_can_be_excluded(index: Index, dataset: Dataset) -> None:
    full = evaluate(index, dataset, ["trad"])
    partial = evaluate(index, dataset, ["trad"], exclude=["q0", "q7"])
    assert partial.queries == 23
    expected = [v for q, v in full.per_query["trad"]["nDCG@10"].items() if q not in ("q0", "q7")]
    assert partial.results["trad"]["nDCG@10"] == pytest.approx(np.mean(expected))
    with pytest.raises(BadInput, match=r"'q99'.*words has no such query"):
        evaluate(index, dataset, ["trad"], exclude=["q99"])
    with pytest.raises(BadInput, match="no test queries left"):
        evaluate(index, dataset, ["trad"], exclude=list(dataset.queries))


def test_the_document_with_the_id_of_the_query_can_be_ignored(index: Index) -> None:
    text = index.get("d3").text
    same = Dataset("self", {"d3": text}, {"d3": {"d5": 1}})
    plain = evaluate(index, same, ["trad"], measures=["RR@5"])
    assert plain.runs["trad"]["d3"][0][0] == "d3"
    without = evaluate(index, same, ["trad"], measures=["RR@5"], ignore_same_id=True)
    ids = [id_ for id_, _ in without.runs["trad"]["d3"]]
    assert len(ids) == 5
    assert ids[:4] == [id_ for id_, _ in plain.runs["trad"]["d3"]][1:]


def test_methods_can_be_objects(index: Index, dataset: Dataset) -> None:
    mine = Method("mine", sets=("simple",), alpha=2, temperature=0.1)
    report = evaluate(index, dataset, ["trad", mine, "simsharp:alpha=2:T=0.1"])
    assert report.results["mine"] == report.results["simsharp:alpha=2:T=0.1"]


def test_doc2query_embeds_the_augmented_texts(index: Index, dataset: Dataset) -> None:
    report = evaluate(index, dataset, ["trad", "doc2query"])
    texts = [
        " ".join([index.get(f"d{i}").text, *index.queries_of(f"d{i}")["simple"]]) for i in range(40)
    ]
    vectors = np.array(count_words(texts))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for query, text in dataset.queries.items():
        query_vector = np.array(count_words([text])[0])
        expected = np.sort(vectors @ query_vector / np.linalg.norm(query_vector))[::-1][:10]
        scores = [score for _, score in report.runs["doc2query"][query][:10]]
        np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["best"]}, "no method 'best': choose from trad, sharp"),
        ({"methods": ["sharp:alpha=big"]}, "'big' is no value for alpha"),
        (
            {"methods": ["sharp:beta=1"]},
            "'beta' is not one of: alpha, temperature .T., sets, n, feedback, words",
        ),
        ({"methods": ["sharp:alpha=nan"]}, "alpha must be a finite number"),
        ({"methods": ["sharp:T=-1"]}, "temperature must be 0"),
        ({"methods": ["sharp:n=0"]}, "n must be 1 or more"),
        ({"methods": ["consharp"]}, "no query set 'contrastive' .it has: simple"),
        ({"methods": ["docexp"]}, "no query set 'contrastive'"),
        ({"methods": []}, "no method to evaluate"),
        ({"measures": ["nDGC@10"]}, "no measure 'nDGC@10'"),
        ({"measures": []}, "no measure"),
        ({"measures": ["P@0"]}, "cut-off must be 1 or more"),
        ({"methods": ["trad:alpha=2"]}, "trad has no alpha"),
        ({"methods": ["trad:sets=simple"]}, "trad has no sets"),
        ({"methods": ["maxsim:T=1"]}, "maxsim has no temperature"),
        ({"methods": ["doc2query:n=1"]}, "doc2query has no n"),
        ({"methods": [METHODS["trad"], METHODS["trad"]]}, "two methods have the same name"),
        ({"baseline": "sharp"}, "baseline 'sharp' is not one of: trad"),
    ],
)
def test_invalid_arguments_are_refused(
    index: Index, dataset: Dataset, arguments: dict[str, list[str | Method]], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        evaluate(index, dataset, **{"methods": ["trad"], **arguments})  # type: ignore[arg-type]


def test_a_dataset_of_another_corpus_is_refused(index: Index, dataset: Dataset) -> None:
    qrels = {query: {f"other{id_}": 1 for id_ in grades} for query, grades in dataset.qrels.items()}
    with pytest.raises(BadInput, match="index of another corpus"):
        evaluate(index, Dataset("other", dataset.queries, qrels), ["trad"])
    partly_known = {**qrels, "q0": {"d1": 1, "gone": 1}}
    report = evaluate(index, Dataset("other", dataset.queries, partly_known), ["trad"])
    relevant = {id_ for grades in partly_known.values() for id_ in grades}
    assert report.missing == len(relevant) - 1


def test_report_as_json(index: Index, dataset: Dataset, tmp_path: Path) -> None:
    report: Report = evaluate(index, dataset, ["trad", "simsharp:T=inf"])
    output = report.to_json(per_query=True)
    assert output["results"]["trad"].keys() == {"nDCG@10", "R@50", "AP@50"}
    assert output["settings"]["simsharp:T=inf"]["temperature"] == "inf"
    assert len(output["per_query"]["trad"]["AP@50"]) == 25
