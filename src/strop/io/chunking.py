"""Cuts long texts into chunks at their structure: headings, paragraphs, sentences, lines, words.

The chunks of a text cover all of it, so the text can be put together from them again. A chunk ends
at the best place that is near its full size, and no chunk continues after a heading unless all the
text under that heading fits too. So a change of a text moves the ends of few chunks. Whether an
index cuts its documents, and how long chunks are: ``storage/chunks.py``.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile

from strop.errors import BadInput
from strop.io.markdown import HEADING
from strop.io.sentences import sentence_ends

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Returns the number of tokens of each text."""

_HEADING, _PARAGRAPH, _SENTENCE, _LINE, _WORD, _ANYWHERE = range(6)
"""Kinds of positions to cut at, best first."""
_FENCE = re.compile(r" {0,3}(```|~~~)")
_UNDERLINE = re.compile(r"([=\-~^\"'*+#])\1{2,}$")
_CAPITALS = re.compile(r"[A-Z0-9][A-Z0-9 ,&/()'-]{1,59}$")
_SPACE = re.compile(r"\s*")
_CUTS = {
    _PARAGRAPH: re.compile(r"\n[ \t\r]*\n\s*"),
    _LINE: re.compile(r"\n\s*"),
    _WORD: re.compile(r"\s+"),
    _ANYWHERE: re.compile(r".{1,20}", re.DOTALL),  # text without spaces
}


@dataclass(frozen=True)
class Chunking:
    """Sizes in tokens: a chunk has at most ``size``, of which ``overlap`` repeat the one before."""

    size: int
    overlap: int = 0

    def __str__(self) -> str:
        return f"{self.size}:{self.overlap}"


def parse_chunking(text: str) -> Chunking:
    """Read ``200:40`` (size and overlap in tokens) or ``200``."""
    size, _, overlap = text.partition(":")
    if not (size.isdecimal() and (overlap or "0").isdecimal()):
        raise BadInput(f"chunks are given as SIZE:OVERLAP in tokens, such as 200:40, not {text!r}")
    chunking = Chunking(int(size), int(overlap or 0))
    if chunking.size < 10 or chunking.overlap > chunking.size // 2:
        raise BadInput(
            f"chunks of {text}: the size must be 10 tokens or more, and the overlap at most half"
        )
    return chunking


@dataclass(frozen=True)
class ChunkSpan:
    """A chunk of a text: its position there, and the headings above it, outermost first."""

    start: int
    end: int
    headings: tuple[str, ...] = ()


def split_text(text: str, chunking: Chunking, count: CountTokens) -> list[ChunkSpan]:
    """Cut a text into chunks; an empty text is one chunk."""
    sections = _sections(text)
    segments = _Segments(text, sections, chunking.size, count)
    spans: list[ChunkSpan] = []
    first = 0
    while first < len(sections):
        last = first
        begin = segments.index_at(sections[first].start)
        while (
            last + 1 < len(sections)
            and segments.tokens(begin, segments.index_at(sections[last + 1].end)) <= chunking.size
        ):
            last += 1
        paths = [section.headings for section in sections[first : last + 1]]
        levels = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
        shared = tuple(names[0] for names in levels)
        ends = segments.index_at(sections[last].end)
        places = segments.fill(begin, ends, chunking)
        spans += [ChunkSpan(start, end, shared) for start, end in places]
        first = last + 1
    return spans


# -- headings ---------------------------------------------------------------------------------


def _sections(text: str) -> list[ChunkSpan]:
    """Return the parts of a text that begin with a heading, and the text before the first.

    Blank lines are no text: those before the first heading belong to its part, and headings with
    nothing else between them begin one part.
    """
    sections: list[ChunkSpan] = []
    path: list[tuple[int, str]] = []
    styles: list[str] = []  # characters of underlines; the one used first has the highest level
    section_start = body_start = 0
    for start, heading_end, level, style, heading in _headings(text):
        if text[body_start:start].strip():  # else the line above is a heading too
            sections.append(ChunkSpan(section_start, start, tuple(name for _, name in path)))
            section_start = start
        body_start = heading_end
        if style and style not in styles:
            styles.append(style)
        level = level or 1 + styles.index(style)
        path = [(above, name) for above, name in path if above < level] + [(level, heading)]
    sections.append(ChunkSpan(section_start, len(text), tuple(name for _, name in path)))
    return sections


def _headings(text: str) -> list[tuple[int, int, int, str, str]]:
    """Return (start, end, level, underline, text) of headings; level 0 for underlined ones."""
    lines = text.splitlines(keepends=True)
    places = [0, *accumulate(map(len, lines))]
    bare = [line.rstrip() for line in lines] + ["", ""]
    headings: list[tuple[int, int, int, str, str]] = []
    fenced = False
    for at, line in enumerate(bare[:-2]):
        after_gap = at == 0 or not bare[at - 1]
        if (fence := _FENCE.match(line)) and (fenced or after_gap or fence[1] == "```"):
            fenced = not fenced  # a comment in a code block looks like a heading
        if fenced or not line:
            continue
        below = bare[at + 1]
        if (hashes := HEADING.match(line)) and hashes[2]:
            headings.append((places[at], places[at + 1], len(hashes[1]), "", hashes[2]))
        elif not after_gap or line[0].isspace() or not any(map(str.isalnum, line)):
            continue
        elif _UNDERLINE.match(below) and len(below) >= len(line) and len(line) <= 120:
            headings.append((places[at], places[at + 2], 0, below[0], line))
        # As in manual pages: capitals at the margin, the text below indented.
        elif _CAPITALS.match(line) and below[:1].isspace() and below.strip():
            headings.append((places[at], places[at + 1], 1, "", line))
    return headings


# -- filling ----------------------------------------------------------------------------------


class _Segments:
    """A text as a sequence of segments: the start, the kind of end and the tokens of each."""

    def __init__(self, text: str, sections: list[ChunkSpan], size: int, count: CountTokens) -> None:
        segments = [(section.start, section.end, _HEADING) for section in sections]
        for kind in (_PARAGRAPH, _SENTENCE):  # overlaps consist of sentences
            segments = [piece for segment in segments for piece in _cut(text, *segment, kind)]
        finished: list[tuple[int, int, int, int]] = []
        for cut_kind in (_LINE, _WORD, _ANYWHERE, None):
            counts = count([text[start:end] for start, end, _ in segments])
            counted, segments = list(zip(segments, counts, strict=True)), []
            for segment, tokens in counted:
                if tokens <= size or cut_kind is None:
                    finished.append((*segment, tokens))
                else:
                    segments += _cut(text, *segment, cut_kind)
        finished.sort()
        self._starts = [start for start, _, _, _ in finished] + [len(text)]
        self._kinds = [
            kind for _, _, kind, _ in finished
        ]  # the kind of position at which each segment ends
        self._tokens_before = [0, *accumulate(tokens for _, _, _, tokens in finished)]

    def index_at(self, offset: int) -> int:
        """Return the index of the segment that begins at an offset."""
        return bisect_left(self._starts, offset)

    def tokens(self, first: int, stop: int) -> int:
        """Return the number of tokens of the segments from ``first`` to before ``stop``."""
        return self._tokens_before[stop] - self._tokens_before[first]

    def fill(self, first: int, stop: int, chunking: Chunking) -> list[tuple[int, int]]:
        """Return start and end of the chunks of the segments from ``first`` to before ``stop``."""
        chunks: list[tuple[int, int]] = []
        begin = covered = first
        while True:
            token_limit = self._tokens_before[begin] + chunking.size
            end = max(begin + 1, bisect_right(self._tokens_before, token_limit) - 1)
            if end >= stop:
                chunks.append((self._starts[begin], self._starts[stop]))
                return chunks
            covered = self._best_end(begin, covered + 1, end, chunking.size)
            chunks.append((self._starts[begin], self._starts[covered]))
            begin = self._overlapping(begin, covered, chunking)

    def _best_end(self, begin: int, first_end: int, end: int, size: int) -> int:
        """Return the best end in the second half of a chunk: the best kind, of these the last."""
        candidates = [at for at in range(first_end, end + 1) if 2 * self.tokens(begin, at) >= size]
        return min(candidates or [end], key=lambda at: (self._kinds[at - 1], -at))

    def _overlapping(self, begin: int, end: int, chunking: Chunking) -> int:
        """Return where the chunk after ``end`` begins, with its overlap; always after ``begin``."""
        at = end
        while (
            at - 1 > begin
            and self.tokens(at - 1, end) <= chunking.overlap
            and self.tokens(at - 1, end + 1) <= chunking.size
        ):
            at -= 1
        return at


def _cut(text: str, start: int, end: int, kind: int, cut_kind: int) -> list[tuple[int, int, int]]:
    """Cut a segment at positions of the kind ``cut_kind``; the kind of its end does not change."""
    segment_text = text[start:end]
    if cut_kind == _SENTENCE:
        ends = [
            _SPACE.match(segment_text, at).end()  # type: ignore[union-attr]
            for at in sentence_ends(segment_text)
        ]
    else:
        ends = [match.end() for match in _CUTS[cut_kind].finditer(segment_text)]
    bounds = [0, *dict.fromkeys(at for at in ends if 0 < at < len(segment_text)), len(segment_text)]
    cut = [(start + first, start + last, cut_kind) for first, last in pairwise(bounds)]
    return [*cut[:-1], (*cut[-1][:2], kind)]
