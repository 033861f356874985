"""Query vectors stored in fewer bytes: files, searches, later changes and repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.cases import Case, literal, make_case, make_spans
from helpers.fakes import DIM, Bag, all_scores, create, reopen
from numpy.typing import NDArray

from strop import Index
from strop.cli.main import main
from strop.common.arrays import as_floats, unit_rows
from strop.errors import BadInput
from strop.methods import METHODS
from strop.search import kernels
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.snapshot import Spans
from strop.storage.vectors import append_rows, file_name, map_rows, row_type, stored_rows

DOCUMENTS = [
    {"id": str(at), "title": f"word{at}", "text": f"some text of {at}. more text {at * 7 % 5}."}
    for at in range(40)
]


def store_rows(folder: Path, rows: NDArray[np.float32], stored: str) -> NDArray[np.float32]:
    file = folder / file_name(1, stored)
    append_rows(file, 0, stored_rows(rows, stored))
    return map_rows(file, len(rows), row_type(stored, rows.shape[1]))


@pytest.mark.parametrize(
    ("stored", "max_error"),
    [("float32", 0), ("int8", 8e-3)],
)
def test_loaded_rows_are_close_to_the_originals(
    tmp_path: Path, stored: str, max_error: float
) -> None:
    rng = np.random.default_rng(0)
    rows = unit_rows(rng.normal(size=(300, 96)))
    rows[7] = 0
    loaded = as_floats(store_rows(tmp_path, rows, stored))
    assert loaded.dtype == np.float32
    assert not loaded[7].any()
    lengths = np.linalg.norm(loaded, axis=1)
    np.testing.assert_allclose(np.delete(lengths, 7), 1, atol=1e-6)
    assert (np.delete((loaded * rows).sum(axis=1), 7) >= 1 - max_error**2 - 1e-6).all()


@pytest.mark.parametrize("stored", ["int8"])
@pytest.mark.parametrize("n_queries", [1, 8, 70])
@pytest.mark.parametrize("scattered", [False, True])
def test_scan_of_stored_rows_equals_the_formula_on_decoded_rows(
    tmp_path: Path, stored: str, n_queries: int, scattered: bool
) -> None:
    case = make_case(n_queries, (n_queries, 60, 24, 2, 6), exact=False)
    mixed, lists = [], []
    for at, ragged in enumerate(case.lists):
        spans = make_spans(ragged, 24)
        folder = tmp_path / str(at)
        folder.mkdir()
        if scattered:  # unused rows before each list
            gap = np.zeros((200, 24), np.float32)
            rows = np.concatenate([part for queries in ragged for part in (gap, queries)])
            spans = Spans(rows, spans.start + 200 * np.arange(1, 61), spans.count)
        mapped = store_rows(folder, spans.vectors, stored)
        mixed.append(Spans(mapped, spans.start, spans.count))
        lists.append(
            [
                as_floats(mapped[start : start + count])
                for start, count in zip(spans.start, spans.count, strict=True)
            ]
        )
    documents = Spans(case.documents, np.arange(60), np.ones(60, np.int64))
    decoded = Case(case.query_vectors, case.documents, lists)
    for name in ("sharp", "maxsim"):
        scores, places = Layout(documents, mixed, None).scan(case.query_vectors, METHODS[name], 10)
        for q, row, row_places in zip(case.query_vectors, scores, places, strict=True):
            expected = [
                literal(q, d, decoded.queries(j), METHODS[name])
                for j, d in enumerate(case.documents)
            ]
            np.testing.assert_allclose(row, np.sort(expected)[::-1][:10], atol=1e-5)
            np.testing.assert_allclose(row, np.array(expected)[row_places], atol=1e-5)


@pytest.mark.parametrize(("stored", "bytes_per_value"), [("float32", 4), ("int8", 1)])
def test_index_keeps_its_storage_form(tmp_path: Path, stored: str, bytes_per_value: int) -> None:
    path = tmp_path / "index"
    with Index.create(path, Bag(), query_vectors=stored, name="bag", dim=DIM) as index:
        index.sharpen()
        index.add(DOCUMENTS[:30])
        index.import_queries({"3": ["a question", "another"]}, "simple")
    with reopen(path) as index:
        index.add(DOCUMENTS[30:])
        info = index.info()
        assert {set_["vectors"] for set_ in info["sets"].values()} == {stored}
        for name, set_ in info["sets"].items():
            assert info["sizes"]["sets"][name] == set_["queries"] * DIM * bytes_per_value
        assert not index.check()
        scores = all_scores(index, "text of word7", words=0)
    with create(tmp_path / "float32") as index:
        index.sharpen()
        index.add(DOCUMENTS)
        index.import_queries({"3": ["a question", "another"]}, "simple")
        expected = all_scores(index, "text of word7", words=0)
    assert max(abs(scores[id_] - expected[id_]) for id_ in expected) < 5e-3


@pytest.mark.parametrize("stored", ["float32", "int8"])
def test_gram_matrices_are_computed_for_changed_documents_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    computed: list[int] = []
    gram = kernels.gram_of_documents

    def counting_gram(rows: Any, own: Any, *options: Any) -> Any:
        computed.append(len(own))
        return gram(rows, own, *options)

    monkeypatch.setattr(kernels, "gram_of_documents", counting_gram)
    monkeypatch.setattr("strop.search.layout.NUMPY_UP_TO", 0)  # compiled, as for a large index
    path = tmp_path / "index"

    def scores_of(index: Index) -> list[dict[str, float]]:
        # Two queries: a single one would build d* itself.
        hits = index.search(["text of word7", "of a word"], k=10**6)
        return [{hit.id: hit.score for hit in row} for row in hits]

    def assert_same_as_reopened(n_changed: int) -> None:
        computed.clear()
        scores = scores_of(index)
        assert sum(computed) == n_changed
        with reopen(path) as reopened:
            assert scores_of(reopened) == scores

    with Index.create(path, Bag(), query_vectors=stored, name="bag", dim=DIM) as index:
        index.sharpen()
        index.add(DOCUMENTS[:30])
        assert_same_as_reopened(30)
        index.add(DOCUMENTS[30:])
        assert_same_as_reopened(10)
        index.remove(["0", "7", "8", "39"])
        assert_same_as_reopened(0)
        index.add([{"id": "5", "text": "Quite another. It has a text. And another text."}])
        index.add([{"id": "new", "text": "The last text. Of a word."}])
        index.remove(["20"])
        assert_same_as_reopened(2)
        index.compact()
        assert_same_as_reopened(0)
        index.import_queries({"3": ["a question", "another"]}, "simple")
        assert_same_as_reopened(36)  # another mix of sets
        index.import_queries({"3": ["a text"], "4": ["some text"]}, "simple")
        assert_same_as_reopened(2)


def test_changing_the_storage_form_makes_no_list_stale(tmp_path: Path) -> None:
    path, bag = tmp_path / "index", Bag()
    with create(path, bag) as index:
        index.sharpen()
        index.add(DOCUMENTS)
    Catalog(path).settings.put(query_vectors="int8")
    with reopen(path, bag) as index:
        n_embedded = bag.count
        index.sharpen()
        index.import_queries({"3": ["a question"]}, "simple")
        index.augment("simple")
        assert bag.count == n_embedded + 1 + len(DOCUMENTS)
        forms = {name: set_["vectors"] for name, set_ in index.info()["sets"].items()}
        assert forms == {"sentences": "float32", "simple": "int8", "augmented:simple": "float32"}
        assert not index.check()
        before = all_scores(index, "text of word7", words=0)
        index.remove(["9"])
        index.compact()
        names = {file.name for file in (path / "vectors").iterdir()}
        assert {"queries-1.2.f32", "queries-2.i8", "queries-3.2.f32"} <= names
        before.pop("9")
        assert all_scores(index, "text of word7", words=0) == before


def test_truncated_vectors_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index.create(path, Bag(), name="bag", dim=DIM) as index:
        index.sharpen()
        index.add(DOCUMENTS)
        before = all_scores(index, "text of word7", words=0)
    file = path / "vectors" / "queries-1.i8"
    file.write_bytes(file.read_bytes()[:-40])
    with reopen(path) as index:
        assert index.check(repair=True)
        assert all_scores(index, "text of word7", words=0) == before


def test_unknown_storage_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'int4' is not one of: int8, float32"):
        Index.create(tmp_path / "index", Bag(), query_vectors="int4", name="bag", dim=DIM)
    assert not (tmp_path / "index").exists()


def test_build_sets_the_storage_form_of_new_indexes_only(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "text": "One sentence. Another one."}\n')
    path = str(tmp_path / "index")
    args = ["build", str(corpus), "-o", path, "--query-vectors", "float32"]
    assert CliRunner().invoke(main, args).exit_code == 0
    assert (tmp_path / "index" / "vectors" / "queries-1.f32").exists()
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert "keeps the form of its vectors" in result.output
