"""Cutting texts: chunks cover the text, keep to their size, and end at its structure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.errors import BadInput
from strop.io.chunking import Chunking, ChunkSpan, parse_chunking, split_text

PARTS = st.sampled_from(
    ["word", "two words", ". ", "\n", "\n\n", "# Top\n", "## Below\n", "Title\n=====\n", " ", "。",
     "NAME\n   the name\n", "```\n# no heading\n```\n", "x" * 90, "\r\n", "\x0c", "é𝄞", "~~~\n"]
)  # fmt: skip


def count(texts: Sequence[str]) -> list[int]:
    """A token is a word, or ten characters of one."""
    return [sum(-(-len(word) // 10) for word in text.split()) for text in texts]


def cut(text: str, size: int = 20, overlap: int = 0) -> list[str]:
    return [text[one.start : one.end] for one in split_text(text, Chunking(size, overlap), count)]


@given(st.lists(PARTS, max_size=60).map("".join), st.integers(10, 40), st.integers(0, 5))
def test_chunks_cover_the_text_in_order_and_fit(text: str, size: int, overlap: int) -> None:
    pieces = split_text(text, Chunking(size, overlap), count)
    whole = ""
    for before, one in zip([None, *pieces], pieces, strict=False):
        assert one.start <= len(whole), "a gap"
        assert before is None or (one.start > before.start and one.end > before.end)
        assert count([text[one.start : len(whole)]])[0] <= overlap
        # Cutting a word of ten characters a token may make one token more of it.
        assert count([text[one.start : one.end]])[0] <= size
        whole += text[len(whole) : one.end]
    assert whole == text


def test_a_text_that_fits_is_one_chunk() -> None:
    assert split_text("", Chunking(20), count) == [ChunkSpan(0, 0)]
    assert cut("# One\n\nshort\n\n# Two\n\nalso short\n") == [
        "# One\n\nshort\n\n# Two\n\nalso short\n"
    ]


def test_chunks_end_at_headings_then_paragraphs_then_sentences() -> None:
    def words(n: int) -> str:
        return "word " * (n - 1) + "end."

    sections = f"# A\n\n{words(12)}\n\n", f"# B\n\n{words(12)}\n"
    assert cut("".join(sections)) == list(sections)
    paragraphs = f"{words(6)} {words(5)}\n\n", f"{words(6)} {words(6)}"
    assert cut("".join(paragraphs)) == list(paragraphs)
    sentences = [f"{words(7)} "] * 5
    assert cut("".join(sentences)) == [
        "".join(sentences[:2]),
        "".join(sentences[2:4]),
        sentences[4],
    ]


def test_an_overlap_is_made_of_whole_sentences() -> None:
    text = "".join(f"sentence number {n} has six words. " for n in range(9))
    chunks = cut(text, 20, 10)
    assert [chunk.split()[2] for chunk in chunks] == ["0", "2", "4", "6"]
    assert all(chunk.endswith("words. ") for chunk in chunks)


def test_a_chunk_knows_the_headings_it_stands_under() -> None:
    body = "word " * 15 + "\n\n"
    text = (
        f"before {body}# Top\n\n## First #\n\n{body}```\n# a comment\n```\n{body}"
        f"## Second\n\n{body}# Other\n\n{body}"
    )
    paths = list(dict.fromkeys(one.headings for one in split_text(text, Chunking(20), count)))
    assert paths == [(), ("Top", "First"), ("Top", "Second"), ("Other",)]
    text = f"Top\n===\n\n{body}Below\n-----\n\n{body}Again\n=====\n\n{body}"
    paths = [one.headings for one in split_text(text, Chunking(20), count)]
    assert paths == [("Top",), ("Top", "Below"), ("Again",)]
    page = f"LS(1)\n\nNAME\n    ls {body}\nSEE ALSO\n    {body}"
    paths = [one.headings for one in split_text(page, Chunking(17), count)]
    assert paths == [(), ("NAME",), ("SEE ALSO",)]


def test_an_edit_moves_the_ends_of_few_chunks() -> None:
    paragraphs = [f"paragraph {n} " + "word " * (n * 7 % 13) + "end.\n\n" for n in range(300)]
    before = cut("".join(paragraphs), 60, 10)
    edited = [*paragraphs[:5], "A new sentence in a new paragraph.\n\n", *paragraphs[5:]]
    after = cut("".join(edited), 60, 10)
    assert len(before) > 40
    assert len(set(after) - set(before)) <= 6


@pytest.mark.parametrize("text", ["", "big", "9", "100:51", "-5:1", "1e3", "200:40:1"])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"200:40|overlap at most half"):
        parse_chunking(text)


def test_sizes_are_read() -> None:
    assert parse_chunking("200:40") == Chunking(200, 40)
    assert parse_chunking("200") == Chunking(200, 0)
