"""Splitting texts: chunks cover the text, fit the size, and end where its structure does."""

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
    """Count tokens: a token is a word, or ten characters of a longer one."""
    return [sum(-(-len(word) // 10) for word in text.split()) for text in texts]


def cut(text: str, size: int = 20, overlap: int = 0) -> list[str]:
    return [
        text[span.start : span.end] for span in split_text(text, Chunking(size, overlap), count)
    ]


@given(st.lists(PARTS, max_size=60).map("".join), st.integers(10, 40), st.integers(0, 5))
def test_chunks_cover_the_text_in_order_and_fit(text: str, size: int, overlap: int) -> None:
    spans = split_text(text, Chunking(size, overlap), count)
    covered = ""
    for previous, span in zip([None, *spans], spans, strict=False):
        assert span.start <= len(covered), "a gap"
        assert previous is None or (span.start > previous.start and span.end > previous.end)
        assert count([text[span.start : len(covered)]])[0] <= overlap
        # Cutting a word of ten characters a token may make one token more of it.
        assert count([text[span.start : span.end]])[0] <= size
        covered += text[len(covered) : span.end]
    assert covered == text


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


def test_an_overlap_consists_of_whole_sentences() -> None:
    text = "".join(f"sentence number {n} has six words. " for n in range(9))
    chunks = cut(text, 20, 10)
    assert [chunk.split()[2] for chunk in chunks] == ["0", "2", "4", "6"]
    assert all(chunk.endswith("words. ") for chunk in chunks)


def test_a_chunk_has_the_headings_of_its_section() -> None:
    body = "word " * 15 + "\n\n"
    text = (
        f"before {body}# Top\n\n## First #\n\n{body}```\n# a comment\n```\n{body}"
        f"## Second\n\n{body}# Other\n\n{body}"
    )
    paths = list(dict.fromkeys(span.headings for span in split_text(text, Chunking(20), count)))
    assert paths == [(), ("Top", "First"), ("Top", "Second"), ("Other",)]
    text = f"Top\n===\n\n{body}Below\n-----\n\n{body}Again\n=====\n\n{body}"
    paths = [span.headings for span in split_text(text, Chunking(20), count)]
    assert paths == [("Top",), ("Top", "Below"), ("Again",)]
    page = f"LS(1)\n\nNAME\n    ls {body}\nSEE ALSO\n    {body}"
    paths = [span.headings for span in split_text(page, Chunking(17), count)]
    assert paths == [(), ("NAME",), ("SEE ALSO",)]


def test_an_edit_changes_few_chunks() -> None:
    paragraphs = [f"paragraph {n} " + "word " * (n * 7 % 13) + "end.\n\n" for n in range(300)]
    before = cut("".join(paragraphs), 60, 10)
    edited = [*paragraphs[:5], "A new sentence in a new paragraph.\n\n", *paragraphs[5:]]
    after = cut("".join(edited), 60, 10)
    assert len(before) > 40
    assert len(set(after) - set(before)) <= 6


@pytest.mark.parametrize("text", ["", "big", "9", "100:51", "-5:1", "1e3", "200:40:1"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"200:40|overlap at most half"):
        parse_chunking(text)


def test_sizes_are_parsed() -> None:
    assert parse_chunking("200:40") == Chunking(200, 40)
    assert parse_chunking("200") == Chunking(200, 0)
