"""Two-stage search: it finds what the scan finds, follows changes, and can be done without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fakes import Bag, Failure, create, reopen
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import Case, _case, _spans

from strop import Index, candidates
from strop.cli import main
from strop.codes import (
    as_bytes,
    as_signs,
    in_planes,
    leading,
    products_of_bytes,
    products_of_signs,
    rough_scores,
)
from strop.kernels import cosine_with_sharpened, unit_rows
from strop.methods import Method
from strop.search import Layout
from strop.sidecar import read_arrays, write_arrays
from strop.snapshot import Spans
from strop.threads import on_each_thread

ASKED = ["word7 text of", "more text 3", "some word31 word32"]


def documents(first: int, last: int) -> list[dict[str, str]]:
    return [
        {
            "id": str(at),
            "title": f"word{at}",
            "text": f"text of {at % 17}. more text {at % 5} {at}.",
        }
        for at in range(first, last)
    ]


def few(k: int, measured: Any, known: bool = True) -> candidates.Effort:
    """As ``Effort.of``, for a small index."""
    first, second, third, fourth = measured.tolist()[:4]
    most = 40 * k, 10 * k, 9 * k, 8 * k
    if measured[4] == 4:  # much, to measure with
        most = 400 * k, 40 * k, 36 * k, 32 * k
    return candidates.Effort(k, most, (first, second, third, fourth), 1.0)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(candidates, "TWO_STAGE_FROM", 50)
    monkeypatch.setattr(candidates.Effort, "of", few)
    with create(tmp_path / "index") as index:
        index.sharpen()
        index.add(documents(0, 300))
        yield index


def two_stage(index: Index, k: int = 5) -> candidates.TwoStage | None:
    with index._catalog.reading():
        method = index.method("sharp")
        return index._two(*index._layout(method), method, k)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "mixed"])
def test_candidates_are_scored_by_the_formula(kind: str) -> None:
    for seed in range(20):
        case = _case(seed, (3, 12, 16, 2, 5), exact=seed % 2 == 0)
        kinds = ["int8", "float32"] if kind == "mixed" else [kind] * 2
        layout = stored_as(case, kinds)
        for alpha, temperature in ((1, 0.1), (2.5, 1), (-1, 0.3), (1, 0), (1e30, 1), (1, np.inf)):
            method = Method("m", alpha=alpha, temperature=temperature)
            places = np.array([11, 3, 4, 0, 7])
            for q in case.asked:
                expected = [
                    cosine_with_sharpened(
                        q, case.documents[p], layout.queries(p), alpha, temperature
                    )
                    for p in places
                ]
                if temperature or seed % 2 == 0:  # else the last bit of a product is a choice
                    got = layout.rescore(q, places, method)
                    np.testing.assert_allclose(got, expected, atol=1e-5)


def stored_as(case: Case, kinds: list[str]) -> Layout:
    """The case's layout with its sets' vectors stored in these kinds."""
    sets = []
    for lists, kind in zip(case.lists, kinds, strict=True):
        spans = _spans(lists, case.documents.shape[1])
        rows = as_bytes(spans.vectors)[0] if kind == "int8" else spans.vectors
        sets.append(Spans(rows.astype(kind), spans.start, spans.count))
    ones = np.ones(len(case.documents), np.int64)
    return Layout(Spans(case.documents, np.arange(len(ones)), ones), sets, None)


def test_documents_are_taken_apart() -> None:
    case = _case(3, (1, 30, 16, 2, 5), exact=False)
    whole, products, apart = [], [], []
    for j, d in enumerate(case.documents):
        own = case.queries(j)
        mean = own.mean(axis=0) if len(own) else np.zeros_like(d)
        whole.append(d + mean)
        apart += [(d - mean) / 2, *(own - mean)]
        gram = own @ own.T
        others = gram[~np.eye(len(own), dtype=bool)]
        products.append([d @ mean, others.mean() if len(others) else 0])
    found = candidates.taken_apart(case.layout(), 0)
    np.testing.assert_allclose(found[0], unit_rows(np.array(whole)), atol=1e-6)
    np.testing.assert_allclose(found[1], products, atol=1e-5)
    np.testing.assert_allclose(found[2], apart, atol=1e-6)


@pytest.mark.parametrize("dim", [3, 64, 65, 256, 384, 1000])
def test_products_with_signs(dim: int) -> None:
    """They are what the rounded vectors say, and near to what the vectors say."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((51, dim)).astype(np.float32)
    asked = unit_rows(rows[:8] + rng.standard_normal((8, dim)))
    signs, about = as_signs(rows)
    scaled = np.sign(rows) * ((rows**2).sum(axis=1) / np.abs(rows).sum(axis=1))[:, None]
    for q in asked:
        planes, factors = in_planes(q)
        found = np.empty(41, np.float32)
        products_of_signs(signs, about, planes, factors, 5, 45, found, 1)
        step = 0.586 * np.sqrt((q**2).mean())
        levels = np.clip(np.floor(q / step + 4), 0, 7) - 3.5
        rounded = levels * (q @ q) / (q @ levels)
        np.testing.assert_allclose(found[1:], scaled[5:45] @ rounded, atol=2e-4)
        if dim > 200:
            assert np.corrcoef(rows[5:45] @ q, found[1:])[0, 1] > 0.6
    assert not in_planes(np.zeros(dim, np.float32))[1].any()


def test_rough_scores_are_near_the_right_ones() -> None:
    rng = np.random.default_rng(1)
    documents = unit_rows(rng.standard_normal((300, 256)))
    queries = unit_rows(np.repeat(documents, 6, axis=0) + 0.07 * rng.standard_normal((1800, 256)))
    counts = np.full(300, 6)
    counts[:20] = 0
    layout = Layout(
        Spans(documents, np.arange(300), np.ones(300, np.int64)),
        [Spans(queries, np.arange(300) * 6, counts)],
        None,
    )
    made = candidates.Candidates.make(layout, np.arange(300)[:, None], [])
    asked = unit_rows(documents[:12] + 0.05 * rng.standard_normal((12, 256)))
    everyone = np.arange(300)
    for alpha, temperature in ((1, 0.1), (0.5, 0.1), (3, 1), (1, 0), (-0.5, 0.2), (1, 0.002)):
        method = Method("m", alpha=alpha, temperature=temperature)
        for q in asked:
            near, rough = np.empty(300, np.float32), np.empty(300, np.float32)
            products_of_bytes(made.codes, made.scales, everyone, q, near)
            rough_scores(
                *in_planes(q), everyone, near, made.means, made.apart, made.about_apart,
                made.begin, alpha, temperature, rough,
            )  # fmt: skip
            right = layout.rescore(q, everyone, method)
            assert np.abs(rough - right).max() < 0.2
            assert np.abs(rough - right).mean() < 0.04
            np.testing.assert_allclose(rough[:20], right[:20], atol=0.01)  # no queries: its vector


@settings(deadline=None)
@given(
    st.lists(st.floats(-2, 2, width=32), max_size=60),
    st.integers(1, 12),
    st.integers(12, 70),
    st.floats(0, 3, width=32),
)
def test_the_leading_are_within_the_margin(
    values: list[float], k: int, most: int, margin: float
) -> None:
    given_ = np.array(values, np.float32)
    found = leading(given_, k, most, margin)
    assert len(found) <= most
    assert (np.diff(found) > 0).all()
    if len(values) < k:
        assert len(found) == len(values)
    else:
        least = np.sort(given_)[-k] - np.float32(margin)
        inside = int((given_ >= least).sum())
        assert len(found) == min(inside, most)
        assert (given_[found] >= least).all()
        others = np.delete(given_, found)
        if len(found) == most and len(others):  # those left out are no better, up to a step
            assert given_[found].min() >= others.max() - np.ptp(given_) / 500


@pytest.mark.parametrize("many", [10_000, 1000])
def test_threads_find_the_same_and_what_is_gone_stays_away(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Above ``many`` rows there are cells, and most rows are left out by how many bits differ."""
    monkeypatch.setattr(candidates, "_MANY", many)
    monkeypatch.setattr(candidates, "_PIECE", 50)
    monkeypatch.setattr(candidates.Effort, "of", few)
    pieces = []

    def noted(work: Callable[[], None], most: int) -> None:
        pieces.append(most)
        on_each_thread(work, most)

    monkeypatch.setattr(candidates, "on_each_thread", noted)
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((40, 64))
    documents = unit_rows(topics[rng.integers(0, 40, 3000)] + 0.6 * rng.standard_normal((3000, 64)))
    queries = unit_rows(np.repeat(documents, 3, axis=0) + 0.1 * rng.standard_normal((9000, 64)))
    layout = Layout(
        Spans(documents, np.arange(3000), np.ones(3000, np.int64)),
        [Spans(queries, np.arange(3000) * 3, np.full(3000, 3))],
        None,
    )
    numbers = np.arange(3000)[:, None]
    asked = unit_rows(documents[::40] + 0.1 * rng.standard_normal((75, 64)))
    method = Method("m", temperature=0.1)

    def shared(found: Any, right: Any) -> float:
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(right, found, strict=True)]))

    exact = layout.scan(asked, method, 10)[1]
    first = np.arange(2500)
    made = candidates.Candidates.make(layout.only(first), numbers[first], [])
    assert len(made.cells) == (1 if many == 10_000 else 150)
    late = np.arange(2500, 3000)
    made = made.and_more(candidates.Candidates.make(layout.only(late), numbers[late], [], made))
    two = candidates.TwoStage(made, layout, numbers)
    together = two.search(asked, method, 10)[1]
    assert shared(together, exact) > 0.97
    pieces.clear()
    for q in range(0, 75, 10):
        np.testing.assert_array_equal(two.search(asked[q : q + 1], method, 10)[1][0], together[q])
    assert max(pieces, default=0) > 1 or many == 10_000  # threads shared what there was to read
    cold = Method("m", temperature=0.02)  # for which nobody knows the margins
    assert shared(two.search(asked, cold, 10)[1], layout.scan(asked, cold, 10)[1]) > 0.95
    gone = np.unique(exact[:, :5])
    left = np.setdiff1d(np.arange(3000), gone)
    two = candidates.TwoStage(made, layout.only(left), numbers[left])
    found = left[two.search(asked, method, 10)[1]]
    assert not np.isin(found, gone).any()
    assert shared(found, left[layout.only(left).scan(asked, method, 10)[1]]) > 0.96


def test_a_share_of_the_cells_is_read_where_that_was_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "_MANY", 1000)
    layout = many_documents(0.2)
    numbers = np.arange(layout.size)[:, None]
    made = candidates.Candidates.make(layout, numbers, [])
    share = float(made.measured[8])
    assert 0 < share < 1  # nothing is in clusters here, yet the last cells have none of the best
    asked = unit_rows(np.random.default_rng(1).standard_normal((20, 128)))
    # With neither margins nor numbers all rows of the cells that are read are there.
    for wanted in (share, 0.25):
        measured = np.array([np.inf] * 4 + [4] * 4 + [wanted], np.float32)
        effort = candidates.Effort.of(10, measured)
        two = candidates.TwoStage(replace(made, measured=measured), layout, numbers)
        for q in asked:
            by_cell = made.cells @ q
            cells = np.argsort(-by_cell)[: round(len(by_cell) * wanted)]
            inside = np.concatenate(
                [made.order[made.edges[0, cell] : made.edges[0, cell + 1]] for cell in cells]
            )
            rows, _ = two.nearest(q, in_planes(q), effort, True)
            assert np.isin(rows, inside).all()


def many_documents(near: float) -> Layout:
    """Return a layout of 4,000 documents, each with four queries about as far from it."""
    rng = np.random.default_rng(0)
    documents = unit_rows(rng.standard_normal((4000, 128)))
    queries = np.repeat(documents, 4, axis=0) + near * unit_rows(rng.standard_normal((16000, 128)))
    return Layout(
        Spans(documents, np.arange(4000), np.ones(4000, np.int64)),
        [Spans(unit_rows(queries), np.arange(4000) * 4, np.full(4000, 4))],
        None,
    )


def test_the_effort_is_what_stored_queries_need() -> None:
    numbers = np.arange(4000)[:, None]
    easy, hard = (
        candidates.Candidates.make(many_documents(near), numbers, []).measured
        for near in (0.1, 2.0)
    )
    assert (easy >= 0).all()
    assert easy[2] < hard[2] / 2  # the margin by bytes: near queries are as good as their mean
    assert easy[6] < hard[6]
    effort = candidates.Effort.of(10, easy)
    assert effort.margins == tuple(easy[:4].tolist())
    assert candidates.Effort.of(3, easy) == effort
    for more in (candidates.Effort.of(100, easy), candidates.Effort.of(10, easy, known=False)):
        assert more.margins == (np.inf,) * 4
        assert more.most[1] >= 1400 + 20 * more.k


def test_few_stored_queries_tell_nothing() -> None:
    layout = many_documents(1.0)
    counts = np.zeros(4000, np.int64)
    counts[:3] = 4
    spans = [Spans(file.vectors, file.start, file.count) for file in layout._files]
    layout = Layout(spans[0], [Spans(spans[1].vectors, spans[1].start, counts)], None)
    made = candidates.Candidates.make(layout, np.arange(4000)[:, None], [])
    assert made.measured.tolist() == [np.inf] * 4 + [1] * 5


def test_documents_without_vectors_have_no_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "TWO_STAGE_FROM", 50)
    bag = Bag()
    with create(tmp_path / "index", bag) as index:
        index.sharpen()
        bag.fail_after = 0
        with pytest.raises(Failure):
            index.add(documents(0, 100))
        index.remove(["7"])
        assert index._catalog.meta("candidates") is None


def test_it_finds_what_the_scan_finds(index: Index) -> None:
    assert two_stage(index) is not None
    quick, exact = (index.search(ASKED, 5, exact=one) for one in (False, True))
    shared = [len(set(a) & set(b)) for a, b in zip(quick.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # thirty-two signs do not tell much
    for ids, scores, right, best in zip(*quick, *exact, strict=True):
        known = dict(zip(right.tolist(), best.tolist(), strict=True))
        for id_, score in zip(ids.tolist(), scores.tolist(), strict=True):
            assert id_ not in known or abs(known[id_] - score) < 1e-5
    assert index.recall(40)["overlap"] > 0.9


def test_it_looks_at_candidates_only(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    score = Layout.rescore

    def note(self: Layout, asked: Any, places: Any, method: Method) -> Any:
        seen.append(len(places))
        return score(self, asked, places, method)

    monkeypatch.setattr(Layout, "rescore", note)
    index.search(ASKED, 5)
    assert len(seen) == 3
    assert all(5 <= looked <= 40 for looked in seen)
    index.search(ASKED, 5, exact=True)
    index.search(ASKED, 5, "trad")
    index.search(ASKED, 5, "sharp", n=1)
    index.search(ASKED, 200)  # most of them are asked for
    assert len(seen) == 3


def test_new_changed_and_removed_documents(index: Index) -> None:
    before = index._catalog.meta("candidates")
    index.remove(["7"])
    index.add([{"id": "9", "title": "zebra", "text": "a zebra stands here."}])
    index.add([{"id": "new", "title": "quagga", "text": "a quagga stands here."}])
    assert index._catalog.meta("candidates") == before  # little changed
    two = two_stage(index)
    assert two is not None
    assert len(two.tail) == 2
    assert int((two.place_of < 0).sum()) == 2
    hits = index.search(["zebra", "quagga", "word7 text of 7"], 5)
    assert hits.ids[0][0] == "9"
    assert hits.ids[1][0] == "new"
    assert "7" not in hits.ids[2]
    for row in hits.ids:
        assert len(set(row.tolist())) == 5


def test_beside_a_set_without_vectors(index: Index) -> None:
    """What is mapped and what is not are other types to the compiler."""
    index.import_queries({"0": []}, "simple")
    quick, exact = (index.search(ASKED, 5, exact=one) for one in (False, True))
    assert two_stage(index) is not None
    shared = [len(set(a) & set(b)) for a, b in zip(quick.ids, exact.ids, strict=True)]
    assert sum(shared) >= 12  # thirty-two signs do not tell much


def test_they_are_made_anew_when_much_is_removed(index: Index) -> None:
    index.remove([str(at) for at in range(95)])
    two = two_stage(index)
    assert two is not None
    assert (two.place_of >= 0).all()


def test_it_follows_when_much_is_new(index: Index) -> None:
    index.add(documents(300, 400))
    two = two_stage(index)
    assert two is not None
    assert not len(two.tail)
    assert len(two.place_of) == 400
    assert index.recall(40)["overlap"] > 0.9


def test_it_is_measured_anew_when_the_documents_have_doubled(index: Index) -> None:
    for first in range(300, 700, 100):
        index.add(documents(first, first + 100))
        two = two_stage(index)
        assert two is not None
        parts = two.candidates.edges
        assert len(parts) == (1 if first == 600 else 1 + (first - 200) // 100)
        assert parts[-1, -1] == first + 100


def test_another_reader_uses_it_and_another_set_makes_it_anew(index: Index) -> None:
    with reopen(index.path) as reader:
        assert two_stage(reader) is not None
        index.import_queries({str(at): [f"who is {at}"] for at in range(300)}, "simple")
        two = two_stage(reader)
        assert two is not None
        assert two.candidates.sets == ["sentences", "simple"]


@pytest.mark.parametrize("harm", ["gone", "cut", "other format", "codes gone", "flipped"])
def test_without_usable_candidates_searches_are_exact_and_say_how_to_mend_them(
    index: Index, harm: str
) -> None:
    beside = index.path / "cache" / index._catalog.meta("candidates")
    codes = beside.with_name(beside.name + ".codes")
    exact = index.search(ASKED, 5, exact=True)
    index.close()
    if harm == "gone":
        shutil.rmtree(index.path / "cache")
    elif harm == "cut":
        codes.write_bytes(codes.read_bytes()[:-100])
    elif harm == "other format":
        found = read_arrays(beside)
        assert found is not None
        beside.unlink()
        write_arrays(beside, found[0], {**found[1], "format": 99})
    elif harm == "flipped":
        data = bytearray(beside.read_bytes())
        data[-1000] ^= 1
        beside.write_bytes(data)
    else:
        codes.unlink()
    with reopen(index.path) as index:
        with pytest.warns(UserWarning, match="strop check .* --repair"):
            hits = index.search(ASKED, 5)
        np.testing.assert_array_equal(hits.ids, exact.ids)
        index.search(ASKED, 5)  # said once
        (problem,) = index.check()
        assert "candidates" in problem
        assert index.check(repair=True)
        assert not index.check()
        assert two_stage(index) is not None


def test_a_flipped_byte_of_the_codes_is_found_and_mended(index: Index) -> None:
    codes = index.path / "cache" / (index._catalog.meta("candidates") + ".codes")
    assert not index.check()
    data = bytearray(codes.read_bytes())
    data[len(data) // 2] ^= 1
    codes.write_bytes(data)
    assert index.check() == ["the candidates are not what was written"]
    assert index.check(repair=True)
    assert not index.check()
    assert two_stage(index) is not None
    assert not codes.exists()


def test_compaction_moves_rows_and_the_candidates_stay_good(index: Index) -> None:
    index.remove([str(at) for at in range(0, 60, 2)])
    before, hits = index._catalog.meta("candidates"), index.search(ASKED, 5)
    assert index.compact() > 0
    assert index._catalog.meta("candidates") == before
    two = two_stage(index)
    assert two is not None
    assert not len(two.tail)
    assert int((two.place_of < 0).sum()) == 30
    again = index.search(ASKED, 5)
    np.testing.assert_array_equal(again.ids, hits.ids)
    np.testing.assert_allclose(again.scores, hits.scores, atol=1e-6)
    assert not index.check()


def test_compaction_counts_the_files_of_candidates(index: Index) -> None:
    index.remove([str(at) for at in range(95)])
    index.compact()
    two = two_stage(index)
    assert two is not None
    assert len(two.place_of) == 205
    files = list((index.path / "cache").iterdir())
    assert len(files) == 2
    assert index.info()["sizes"]["cache"] == sum(file.stat().st_size for file in files)


def test_vectors_made_again_are_not_trusted_to_the_candidates(index: Index) -> None:
    before = index._catalog.meta("candidates")
    (file,) = (index.path / "vectors").glob("queries-*")
    data = bytearray(file.read_bytes())
    data[4 * 16] ^= 255
    file.write_bytes(data)
    index.close()
    with reopen(index.path) as index:
        assert index.check(repair=True)
        assert index._catalog.meta("candidates") == before
        two = two_stage(index)
        assert two is not None
        assert len(two.tail) == 1


def test_a_full_disk_leaves_the_older_candidates(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    before = index._catalog.meta("candidates")
    monkeypatch.setattr(candidates, "write_arrays", full)
    index.add(documents(300, 400))
    assert index._catalog.meta("candidates") == before
    two = two_stage(index)
    assert two is not None
    assert len(two.tail) == 100
    quick, exact = (index.search(ASKED, 20, exact=one).ids.ravel() for one in (False, True))
    late = {id_ for id_ in exact.tolist() if int(id_) >= 300}
    assert late
    assert late <= set(quick.tolist())
    monkeypatch.undo()
    assert {file.name for file in (index.path / "cache").iterdir()} == {
        before, f"{before}.codes",
    }  # fmt: skip


class Stopped(BaseException):
    """As a kill: nothing that handles errors sees it."""


@pytest.mark.parametrize("step", ["made", "saved", "written", "committed"])
def test_a_writer_stopped_while_it_makes_candidates(
    index: Index, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(*args: Any, **more: Any) -> None:
        raise Stopped

    where: dict[str, tuple[Any, str]] = {
        "made": (candidates.Candidates, "write"),
        "saved": (candidates, "write_arrays"),
        "written": (index._catalog, "set_meta"),
        "committed": (candidates.CandidateCache, "_delete"),
    }
    before = index._catalog.meta("candidates")
    with monkeypatch.context() as patch:
        patch.setattr(*where[step], stop)
        with pytest.raises(Stopped):
            index.add(documents(300, 400))
    index.close()
    with reopen(index.path) as index:
        assert (index._catalog.meta("candidates") == before) == (step != "committed")
        two = two_stage(index)
        assert two is not None
        assert len(two.tail) == (0 if step == "committed" else 100)
        assert not index.check()
        index.finish()
        two = two_stage(index)
        assert two is not None
        assert not len(two.tail)
        assert len(list((index.path / "cache").iterdir())) == 2


def test_what_a_stopped_writer_left_is_swept(index: Index) -> None:
    left = [index.path / "cache" / name for name in ("candidates-1", "candidates-1.codes")]
    for file in left:
        file.write_bytes(b"half")
    index.remove(["7"])
    assert not any(file.exists() for file in left)
    assert two_stage(index) is not None


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(one) + "\n" for one in documents(0, 30)))
    path = str(tmp_path / "index")
    run = CliRunner().invoke
    assert run(main, ["build", str(corpus), "-o", path]).exit_code == 0
    assert run(main, ["search", path, "word7", "--exact"]).exit_code == 0
    told = run(main, ["check", path, "--recall", "--sample", "20", "--json"])
    assert told.exit_code == 0
    recall = json.loads(told.stdout)["recall"]
    assert recall == {"queries": 20, "k": 10, "two_stage": False, "overlap": 1.0}
    assert "overlap@10" in run(main, ["check", path, "--recall"]).output
