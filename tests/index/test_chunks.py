"""Documents split into chunks: searches, updates, filters and queries against whole documents."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.fakes import Bag
from hypothesis import given, settings
from hypothesis import strategies as st

from strop import Hits, Index
from strop.errors import BadInput
from strop.types import Vectors

WORDS = [f"w{n}" for n in range(40)]


def article(seed: int, paragraphs: int = 6) -> str:
    rng = random.Random(seed)
    return "\n\n".join(
        " ".join(rng.choices(WORDS, k=9)).capitalize() + ". " + " ".join(rng.choices(WORDS, k=6))
        for _ in range(paragraphs)
    )


def documents(n: int, paragraphs: int = 6) -> list[dict[str, object]]:
    return [
        {"id": f"d{at}", "title": f"T{at}", "text": article(at, 1 + at % paragraphs), "odd": at % 2}
        for at in range(n)
    ]


def build_index(
    path: Path, n: int = 30, embedder: Bag | None = None, chunking: str = "24:6"
) -> Index:
    index = Index.create(path / "index", embedder or Bag(), chunking=chunking)
    index.sharpen()
    index.add(documents(n))
    return index


def documents_of_chunks(hits: Hits, k: int) -> list[list[tuple[str, float]]]:
    """Rank documents by the first hit among their chunks."""
    rows = []
    for row in hits:
        best: dict[str, float] = {}
        for hit in row:
            assert hit.chunk is not None
            best.setdefault(hit.chunk.document, hit.score)
        rows.append(list(best.items())[:k])
    return rows


@pytest.mark.parametrize("method", ["trad", "sharp", "sharp:words=1", "bm25", "maxsim"])
@pytest.mark.parametrize("where", [None, {"odd": 1}, {"$id": {"$in": ["d5", "d11", "d29"]}}])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_documents_rank_by_their_best_chunk(
    index: Index, method: str, where: dict[str, object] | None, k: int
) -> None:
    queries = [article(seed, 1) for seed in range(100, 104)]
    chunk_hits = index.search(queries, 10_000, method, where=where, chunks=True)
    hits = index.search(queries, k, method, where=where)
    for row, expected in zip(hits, documents_of_chunks(chunk_hits, k), strict=True):
        assert [hit.id for hit in row] == [id_ for id_, _ in expected]
        assert [hit.score for hit in row] == [score for _, score in expected]
        assert hits.ids.shape[1] == len(expected)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build_index(tmp_path_factory.mktemp("chunked"))


def test_a_large_index_returns_k_documents_with_any_number_of_chunks(
    tmp_path: Path,
) -> None:
    long = {"id": "long", "text": article(1, 900), "odd": 1}
    with Index.create(tmp_path / "index", Bag(), chunking="24:6") as index:
        index.sharpen()
        index.add([long, *documents(400)])
        assert index.info()["chunks"] > 2000
        queries = [article(1, 3), article(7, 1)]
        exact = index.search(queries, 20, exact=True)
        assert exact.ids.shape == (2, 20)
        assert exact.ids.tolist() == [
            [id_ for id_, _ in row]
            for row in documents_of_chunks(
                index.search(queries, 10_000, exact=True, chunks=True), 20
            )
        ]
        assert index.search(queries, 20).ids.shape == (2, 20)
        assert index.search(queries, 5, where={"odd": 1}).ids.shape == (2, 5)


def test_a_hit_has_the_whole_document_and_its_best_chunk(index: Index) -> None:
    for chunks in (False, True):
        for hit in index.search(article(103, 1), chunks=chunks)[0]:
            assert hit.chunk is not None
            assert hit.passage is not None
            document = index.get(hit.chunk.document)
            assert hit.chunk.text == document.text[hit.chunk.start : hit.chunk.end]
            if hit.passage.start is not None:
                part = document.text[hit.passage.start : hit.passage.end]
                assert " ".join(part.split()) == hit.passage.text
                assert hit.chunk.start <= hit.passage.start
            if chunks:
                assert (hit.id, hit.text) == (hit.chunk.id, hit.chunk.text)
                assert index.get(hit.id).text == hit.text
            else:
                assert (hit.id, hit.title, hit.text) == (document.id, document.title, document.text)
            assert hit.metadata == document.metadata
            assert hit.to_dict()["chunk"]["start"] == hit.chunk.start


def test_stored_documents_equal_the_added_ones(index: Index) -> None:
    added = documents(30)
    assert len(index) == 30
    assert index.ids() == [record["id"] for record in added]
    assert index.unknown(["d1", "d1#0", "d1#99", "d30"]) == {"d1#99", "d30"}
    for record in added:
        document = index.get(str(record["id"]))
        assert (document.text, document.title) == (record["text"], record["title"])
        assert document.metadata == {"odd": record["odd"]}
        chunks = index.chunks(document.id)
        assert [chunk.text for chunk in chunks] == [document.text[c.start : c.end] for c in chunks]
        assert index.chunks(chunks[0].id) == chunks[:1]
        assert [chunk.document for chunk in chunks] == [document.id] * len(chunks)
    assert index.check() == []


def test_headings_are_part_of_a_chunk(tmp_path: Path) -> None:
    text = f"# Guide\n\n{article(1, 1)}\n\n## Install\n\n{article(2, 1)}\n"
    with Index.create(tmp_path / "index", Bag(), chunking="20:0") as index:
        index.add([{"id": "a", "title": "Guide", "text": text}])
        first, *_, last = index.chunks("a")
        assert (first.headings, last.headings) == (("Guide",), ("Guide", "Install"))
        assert index.get(last.id).title == "Guide > Install"


def test_an_edit_embeds_only_changed_chunks(tmp_path: Path) -> None:
    bag = Bag()
    with build_index(tmp_path, 3, bag) as index:
        text = article(77, 60)
        index.add([{"id": "long", "text": text}])
        chunks = {chunk.text: chunk.id for chunk in index.chunks("long")}
        assert len(chunks) > 30
        n_embedded = bag.count
        assert index.add([{"id": "long", "text": text}]).unchanged == 1
        assert index.add([{"id": "long", "text": text, "year": 1999}]).changed == 1
        assert bag.count == n_embedded, "other metadata is no other text"
        assert len(index.search("w1", where={"year": 1999}, chunks=True, k=999)[0]) == len(chunks)
        edited = text.replace("\n\n", "\n\nWholly new words here. ", 1)
        index.add([{"id": "long", "text": edited, "year": 1999}])
        after = {chunk.text: chunk.id for chunk in index.chunks("long")}
        kept = after.keys() & chunks.keys()
        assert len(kept) >= len(chunks) - 4
        assert all(after[text] == chunks[text] for text in kept), "ids stay with their text"
        assert bag.count - n_embedded <= 4 * 6  # each has a vector and a few sentences
        assert index.get("long").text == edited
        assert index.search("wholly new words here", k=1).ids.tolist() == [["long"]]
        assert index.check() == []


@pytest.mark.filterwarnings("ignore:filter. ")
@given(st.data())
@settings(max_examples=8)
def test_a_changed_index_equals_a_new_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("model")
    known: dict[str, dict[str, object]] = {}
    ids = st.sampled_from(["a", "b", "a#0", "c"])
    with Index.create(path / "index", Bag(), chunking="14:4") as index:
        index.sharpen()
        for _ in range(data.draw(st.integers(1, 6))):
            id_ = data.draw(ids)
            if id_ in known and data.draw(st.booleans()):
                index.remove([id_])
                del known[id_]
                continue
            parts = data.draw(st.lists(st.integers(0, 8), max_size=8))
            text = "\n\n".join(article(part, 1) for part in parts)
            record: dict[str, object] = {"id": id_, "text": text, "n": data.draw(st.integers(0, 2))}
            if id_ not in known and not index.unknown([id_]):
                with pytest.raises(BadInput, match="id of a chunk"):
                    index.add([record])
                continue
            index.add([record])
            known[id_] = record
        assert sorted(index.ids()) == sorted(known)
        assert {id_: index.get(id_).text for id_ in known} == {
            id_: record["text"] for id_, record in known.items()
        }
        assert index.check() == []
        with Index.create(path / "fresh", Bag(), chunking="14:4") as fresh:
            fresh.sharpen()
            # "a#0" before "a": a chunk of "a" would take that id.
            fresh.add(known[id_] for id_ in sorted(index.ids(), key=lambda id_: "#" not in id_))
            for where in (None, {"n": 1}):
                queries = [article(n, 1) for n in range(3)]
                changed, new = (opened.search(queries, 9, where=where) for opened in (index, fresh))
                assert changed.ids.shape == new.ids.shape
                np.testing.assert_allclose(changed.scores, new.scores, atol=1e-5)


def test_remove_accepts_documents_only(tmp_path: Path) -> None:
    with build_index(tmp_path, 8) as index:
        chunk = index.chunks("d5")[1].id
        with pytest.raises(BadInput, match="'d5#1' is a chunk of 'd5'"):
            index.remove(["d1", chunk])
        with pytest.raises(BadInput, match="no document 'nine'"):
            index.remove(["d1", "nine"])
        assert len(index) == 8
        index.remove(["d5", "d1", "d5"])
        assert index.keep_only(["d0", "d2"]) == 4
        assert index.ids() == ["d0", "d2"]
        assert index.unknown([chunk]) == {chunk}
        assert index.info()["chunks"] == sum(len(index.chunks(id_)) for id_ in index.ids())
        assert index.check() == []


def test_a_document_cannot_have_the_id_of_a_chunk(tmp_path: Path) -> None:
    with build_index(tmp_path, 2) as index:
        with pytest.raises(BadInput, match=r"document 1: document id 'd1#0' is the id of a chunk"):
            index.add([{"id": "d1#0", "text": "w1"}])
        index.add([{"id": "e#0", "text": article(50)}, {"id": "e", "text": article(51)}])
        assert index.get("e#0").text == article(50)
        assert "e#0" not in {chunk.id for chunk in index.chunks("e")}


def test_queries_of_a_document_go_to_its_nearest_chunks(tmp_path: Path) -> None:
    with build_index(tmp_path, 8) as index:
        chunks = index.chunks("d5")
        queries = {"d5": [chunk.text for chunk in chunks], "d0#0": ["w1 w2"], "zzz": ["w1"]}
        lists, count, unknown = index.import_queries(queries, "simple")
        assert (lists, count, unknown) == (
            len(chunks) + 1,
            len(chunks) + 1,
            ["the given lists: 'zzz'"],
        )
        for chunk in chunks:
            assert index.queries_of(chunk.id)["simple"] == [chunk.text]
        assert index.queries_of("d5")["simple"] == [chunk.text for chunk in chunks]
        index.import_queries({"d5": [chunks[0].text]}, "simple")
        assert index.queries_of("d5")["simple"] == [chunks[0].text]
        with pytest.raises(BadInput, match=r"query 1 of 'd5#\d' is blank"):
            index.import_queries({"d5": [" "]}, "simple")
        assert index.check() == []


def test_explain_uses_the_best_chunk(index: Index) -> None:
    """An explanation excludes feedback, which depends on the whole ranking."""
    hit = index.search(article(12, 1), k=1, feedback=0)[0][0]
    assert hit.chunk is not None
    explanation = index.explain(article(12, 1), hit.id)
    assert explanation.id == hit.chunk.id
    assert explanation.score == pytest.approx(hit.score, abs=1e-3)


def test_references_belong_to_chunks(tmp_path: Path) -> None:
    with build_index(tmp_path, 12) as index:
        index.select_references()
        chunk = index.chunks("d11")[0].id
        references = index.references_of(chunk)
        assert references is not None
        assert references.references
        with pytest.raises(
            BadInput, match=r"'d11' is split into .* name one of them, such as 'd11#0'"
        ):
            index.references_of("d11")


def test_damage_to_chunks_is_detected(tmp_path: Path) -> None:
    with build_index(tmp_path, 8) as index:
        with index.catalog.writing() as connection:
            connection.execute("UPDATE chunks SET start = start + 1 WHERE number = 9")
        assert any("not what their chunks say" in problem for problem in index.check())
        with index.catalog.writing() as connection:
            connection.execute("DELETE FROM chunks WHERE number = 9")
        assert any("not split as the index says" in problem for problem in index.check())


class Windowed(Bag):
    """A bag of words with a window of tokens, as text models have."""

    name, revision, dim = "windowed", "", 32
    options: Mapping[str, object] = {}
    window = 16

    def prompt(self, kind: str) -> str:
        return ""

    def embed(self, texts: Sequence[str], kind: str) -> Vectors:
        return self([" ".join(text.split()[: self.window]) for text in texts], kind).astype(
            np.float32
        )

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]


@pytest.mark.parametrize(("n_long", "chunking"), [(0, None), (1, None), (3, "12:2")])
def test_documents_much_longer_than_the_window_are_cut(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, n_long: int, chunking: str | None
) -> None:
    short = [{"id": str(n), "text": article(n, 2)} for n in range(40 - n_long)]
    with Index.create(tmp_path / "index", Windowed()) as index:
        assert index.info()["chunking"] == "auto"
        index.add([*short, *({"id": f"l{n}", "text": article(n, 10)} for n in range(n_long))])
        assert index.info()["chunking"] == chunking
        texts = [str(item.message) for item in recwarn if "--chunk none" in str(item.message)]
        assert len(texts) == (chunking is not None)
        if chunking:
            assert "3 of the first 40 documents are more than 8 times as long as the 16" in texts[0]
        index.add([{"id": "more", "text": article(99, 30)}])
        assert (len(index.chunks("more")) > 1) == (chunking is not None)


def test_documents_stay_whole_without_chunking(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", Windowed(), chunking=None) as index:
        index.add([{"id": str(n), "text": article(n, 50)} for n in range(3)])
        assert index.chunks("1") == []
        assert index.search("w1")[0][0].chunk is None
        assert "chunk" not in index.search("w1")[0][0].to_dict()
        assert index.info()["chunks"] is None
