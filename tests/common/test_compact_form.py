"""The compact form: packed rows, and an index that stores its vectors so."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.fakes import DIM, Bag, all_scores, assert_close, create, reopen
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import Index
from strop.cli.main import main
from strop.common.arrays import as_floats, unit_rows
from strop.common.packed import LEVELS, pack, packed_type, unpack
from strop.errors import BadInput
from strop.storage import maintenance
from strop.storage.ledger import Ledger
from strop.types import Vectors

DOCUMENTS = [
    {"id": str(at), "title": f"word{at}", "text": f"some text of {at}. more text {at * 7 % 5}."}
    for at in range(40)
]
QUERIES = {str(at): [f"what of {at}", "some text", f"word{at}"] for at in range(20)}
ASKED = "text of word7"


def _rows(seed: int, n: int, dim: int) -> Vectors:
    return unit_rows(np.random.default_rng(seed).normal(size=(n, dim)))


def _made(path: Path, stored: str, bag: Bag | None = None) -> Index:
    index = Index.create(path, bag or Bag(), query_vectors=stored, name="bag", dim=DIM)
    index.sharpen()
    index.add(DOCUMENTS)
    index.import_queries(QUERIES, "simple")
    return index


# -- rows --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.sampled_from(sorted(LEVELS)), st.integers(1, 70), st.integers(0, 6), st.integers(0, 99))
def test_packed_rows_hold_levels_and_those_come_back_exactly(
    form: str, dim: int, n: int, seed: int
) -> None:
    most = LEVELS[form][0] // 2
    packed = pack(_rows(seed, n, dim), form)
    rows = unpack(packed)
    assert rows.shape == (n, dim)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), np.ones(n), atol=1e-6)
    # A row's largest value has the outermost level.
    levels = rows * most / np.abs(rows).max(axis=1, keepdims=True, initial=0)
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-5)
    # What was rounded needs no rounding.
    np.testing.assert_array_equal(pack(rows, form), packed)


@settings(deadline=None)
@given(st.sampled_from(sorted(LEVELS)), st.integers(0, 99))
def test_no_uniform_step_turns_a_row_less(form: str, seed: int) -> None:
    """Against a literal search over many steps; the few that are tried come close."""
    row, most = _rows(seed, 1, 48)[0].astype(np.float64), LEVELS[form][0] // 2
    found = 0.0
    for reach in np.linspace(0.12, 1.1, 400) * np.abs(row).max():
        levels = np.clip(np.rint(row * most / reach), -most, most)
        if levels.any():
            found = max(found, float(levels @ row / np.linalg.norm(levels)))
    ours = float(as_floats(pack(row[None].astype(np.float32), form))[0] @ row)
    assert found - 0.01 < ours <= found + 1e-3


@pytest.mark.parametrize("form", sorted(LEVELS))
def test_rows_keep_their_form_wherever_they_go(form: str) -> None:
    rows = pack(_rows(0, 9, 31), form)
    whole = as_floats(rows)
    for picked in (slice(2, 5), slice(None, None, 3), [7, 1, 1], np.arange(9) % 2 > 0, slice(0)):
        np.testing.assert_array_equal(as_floats(rows[picked]), whole[picked])
    np.testing.assert_array_equal(as_floats(np.concatenate([rows, rows[:2]])[9:]), whole[:2])
    assert rows.dtype == packed_type(form, 31)


def test_a_zero_row_stays_zero() -> None:
    for form in LEVELS:
        assert not as_floats(pack(np.zeros((2, 7), np.float32), form)).any()


def test_bytes_a_row_takes() -> None:
    assert packed_type("levels15", 384).itemsize == 192
    assert packed_type("levels5", 384).itemsize == 128
    assert packed_type("levels5", 256).itemsize == 86  # the last byte is not full


# -- indexes -----------------------------------------------------------------------------------


def test_an_index_that_is_compact(tmp_path: Path) -> None:
    with _made(tmp_path / "whole", "float32") as index:
        whole = all_scores(index, ASKED)
        plain = all_scores(index, ASKED, method="trad")
        times = index.info()["sizes"]["times_plain"]
    with _made(tmp_path / "index", "compact") as index:
        got = all_scores(index, ASKED)
        info = index.info()
        assert {name: of["vectors"] for name, of in info["sets"].items()} == {
            "sentences": "levels15",
            "simple": "levels5",
        }
        assert {file.name for file in (index.path / "vectors").iterdir()} == {
            "documents.f16", "queries-1.l15", "queries-2.l5",
        }  # fmt: skip
        sizes, sets = info["sizes"], info["sets"]
        assert sizes["plain"] == 4 * DIM * 40
        assert sizes["documents"] == 2 * DIM * 40
        assert sizes["sets"]["sentences"] == sets["sentences"]["queries"] * DIM // 2
        assert sizes["sets"]["simple"] == sets["simple"]["queries"] * 11
        used = sizes["documents"] + sum(sizes["sets"].values())
        assert sizes["times_plain"] == used / sizes["plain"] < times / 4
        assert not index.check()
        assert_close(all_scores(index, ASKED, method="trad"), plain, 1e-3)
        assert_close(got, whole, 0.1)
        assert got != whole
    with reopen(tmp_path / "index") as index:
        assert all_scores(index, ASKED) == got


def test_explanations_name_every_query(tmp_path: Path) -> None:
    with _made(tmp_path / "index", "compact") as index:
        for method in ("sharp", "maxsim", "sharp:whiten=0.5"):
            scores = all_scores(index, ASKED, method=method)
            said = index.explain(ASKED, "7", method)
            assert said.score == pytest.approx(scores["7"], abs=1e-4)
            texts = [text for texts in index.queries_of("7").values() for text in texts]
            assert sorted(one.text for one in said.queries) == sorted(texts)


def test_changes_are_followed(tmp_path: Path) -> None:
    with _made(tmp_path / "index", "compact") as index:
        all_scores(index, ASKED)
        index.add([{"id": "5", "text": "Quite another. It has a text."}, {"id": "n", "text": "A."}])
        index.remove(["3", "4"])
        index.import_queries({"6": ["a text"]}, "simple")
        got = all_scores(index, ASKED)
        assert index.compact() > 0
        assert all_scores(index, ASKED) == got
        assert not index.check()
    with reopen(tmp_path / "index") as index:
        assert all_scores(index, ASKED) == got


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    with _made(tmp_path / "index", "compact") as index:
        before = all_scores(index, ASKED)
    for name in ("documents.f16", "queries-1.l15", "queries-2.l5"):
        file = tmp_path / "index" / "vectors" / name
        data = bytearray(file.read_bytes())
        data[50] ^= 1
        file.write_bytes(data[:-9])
        bag = Bag()
        with reopen(tmp_path / "index", bag) as index:
            assert index.check(repair=True)
            assert 0 < bag.count < 20  # only what was lost
            assert not index.check()
            assert all_scores(index, ASKED) == before


def test_references_and_expanded_texts_of_half_the_digits(tmp_path: Path) -> None:
    found = []
    for stored in ("float32", "compact"):
        with _made(tmp_path / stored, stored) as index:
            index.select_references()
            index.expand("simple")
            found.append(all_scores(index, ASKED, method="doc2query"))
            references = index.info()["references"]
            assert references["documents"] == 40
            assert not references["out_of_date"]
    assert_close(found[1], found[0], 1e-3)


# -- from one form to another ------------------------------------------------------------------


def test_an_index_becomes_compact(tmp_path: Path) -> None:
    bag = Bag()
    with _made(tmp_path / "anew", "compact") as index:
        anew = all_scores(index, ASKED)
    with _made(tmp_path / "index", "float32", bag) as index, reopen(index.path) as reader:
        all_scores(index, ASKED)  # what is fixed for each document is known, and must be forgotten
        all_scores(reader, ASKED)
        before, asked = index.info()["sizes"]["times_plain"], bag.count
        assert index.compact(query_vectors="compact") > 0
        assert bag.count == asked
        assert all_scores(index, ASKED) == all_scores(reader, ASKED) == anew
        assert index.info()["sizes"]["times_plain"] < before / 4
        assert not index.check()
        index.import_queries({"3": ["a question"]}, "others")  # sets to come are compact too
        assert index.info()["sets"]["others"]["vectors"] == "levels5"
        files = sorted(file.name for file in (index.path / "vectors").iterdir())
        assert files == ["documents.2.f16", "queries-1.2.l15", "queries-2.2.l5", "queries-3.l5"]
        index.compact(query_vectors="compact")  # nothing is left to do
        assert sorted(file.name for file in (index.path / "vectors").iterdir()) == files


def test_and_back_but_for_the_digits_lost(tmp_path: Path) -> None:
    with _made(tmp_path / "index", "compact") as index:
        before = all_scores(index, ASKED)
        index.compact(query_vectors="float32")
        assert {of["vectors"] for of in index.info()["sets"].values()} == {"float32"}
        assert (index.path / "vectors" / "documents.2.f32").exists()
        assert_close(all_scores(index, ASKED), before, 1e-6)
        assert not index.check()


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("where", [(maintenance, "_copy"), (Ledger, "move")])
def test_stopped_in_between_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], step: int
) -> None:
    with _made(tmp_path / "anew", "compact") as index:
        anew = all_scores(index, ASKED)
    do, done = getattr(*where), count(1)

    def failing(*values: Any) -> Any:
        if next(done) == step:
            raise KeyboardInterrupt
        return do(*values)

    with _made(tmp_path / "index", "int8") as index:
        monkeypatch.setattr(*where, failing)
        with pytest.raises(KeyboardInterrupt):
            index.compact(query_vectors="compact")
        monkeypatch.undo()
        assert not index.check()
        # Some files are compact, others not yet.
        assert_close(all_scores(index, ASKED), anew, 0.1)
    with reopen(tmp_path / "index") as index:
        index.compact(query_vectors="compact")
        assert {of["vectors"] for of in index.info()["sets"].values()} == {"levels15", "levels5"}
        assert_close(all_scores(index, ASKED), anew, 0.03)  # by way of int8
        assert not index.check()


def test_a_form_there_is_not_changes_nothing(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        index.sharpen()
        index.add(DOCUMENTS)
        before = index.info()
        with pytest.raises(BadInput, match="'int2'"):
            index.compact(query_vectors="int2")
        assert index.info() == before


def test_on_the_command_line(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "text": "One sentence. Another one."}\n')
    path = str(tmp_path / "index")
    line = ["build", str(corpus), "-o", path, "--query-vectors", "compact"]
    assert CliRunner().invoke(main, line).exit_code == 0
    said = CliRunner().invoke(main, ["info", path]).output
    assert "compact (15 levels)" in said
    assert "times a plain float32 index" in said
    grown = CliRunner().invoke(main, ["compact", path, "--query-vectors", "int8"])
    assert grown.exit_code == 0
    assert "more than before" in grown.output
    assert (tmp_path / "index" / "vectors" / "queries-1.2.i8").exists()
    assert (tmp_path / "index" / "vectors" / "documents.2.f32").exists()
