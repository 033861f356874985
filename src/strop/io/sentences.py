"""Splits a document into title and sentences, in any language, without a model; locates them."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise

# Ends of sentences: Latin and Greek, Arabic and Urdu, Devanagari, CJK, Armenian, Ethiopic,
# Khmer, Burmese, Tibetan. After the CJK, Indic and similar marks no space is needed.
_END = re.compile(
    r"""
    (?: (?<![.!?\u037e\u2026])                         # from the first of several marks
        [.!?\u037e\u2026]+ ["'”’»)\]]* (?=\s)       # marks that need a space after them
      | [。！？｡۔؟।॥։።៕။།]+ ["'”’»)\]」』]*         # marks that do not
      | \n\s*\n                                      # a paragraph ends its last sentence
    )
    """,
    re.VERBOSE,
)
# A full stop after one of these ends no sentence. A lower-case letter after the stop decides
# nothing: whole collections (Cranfield) are in lower case.
_ABBREVIATIONS = frozenset(
    "cf ca dr e.g eg eq eqs fig figs i.e ie mr mrs ms no nos pp prof ref refs spp st vol vs".split()
)
_THREE_WORDS = re.compile(r"(?:[^0-9A-Za-z]*[0-9A-Za-z]\S*(?:\s|\Z)){3}")
"""Three ASCII words. A shorter piece (initials, "P < 0.01).") is joined to the one before it."""
_UNMARKED = re.compile(r"[\u0e00-\u0eff]")
"""Thai and Lao: a space ends a sentence, but also occurs inside one."""
_UNMARKED_MAX_CHARS = 120
_MAX_CHARS = 1000
"""A longer sentence (a table, code) is cut at spaces."""
MOST = 100
"""The largest number of sentences of a document, its title included. If there are more, neighbours
are joined."""


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order, white space reduced to single spaces."""
    sentences: list[str] = []
    for begin, end in pairwise([0, *sentence_ends(text), len(text)]):
        folded = " ".join(text[begin:end].split())
        short = folded.isascii() and not _THREE_WORDS.match(folded)
        if short and sentences and len(sentences[-1]) + len(folded) < _MAX_CHARS:
            sentences[-1] = f"{sentences[-1]} {folded}".strip()
        elif folded:
            max_chars = _UNMARKED_MAX_CHARS if _UNMARKED.search(folded) else _MAX_CHARS
            sentences += _cut_at_spaces(folded, max_chars)
    return sentences


def sentence_ends(text: str) -> list[int]:
    """Return where sentences of a text end, in order."""
    ends: list[int] = []
    begin = 0
    for mark in _END.finditer(text):
        if mark.group().startswith(".") and _is_abbreviation(text[begin : mark.start()]):
            continue
        begin = mark.end()
        ends.append(begin)
    return ends


def title_and_sentences(title: str, text: str, most: int = MOST) -> list[str]:
    """Return a document's title and sentences, each once, at most ``most`` texts together.

    If there are more, neighbours are joined, so that the sentences still cover the whole text.
    """
    title = " ".join(title.split())
    # A Markdown heading that repeats the title adds nothing.
    sentences = [part for part in split_sentences(text) if part.lstrip("# ") != title]
    candidates = dict.fromkeys([title, *sentences])
    texts = [candidate for candidate in candidates if any(letter.isalnum() for letter in candidate)]
    if len(texts) <= most:
        return texts
    edges = [round(at * len(texts) / most) for at in range(most + 1)]
    return [" ".join(texts[begin:end]) for begin, end in pairwise(edges)]


def locate(part: str, text: str) -> tuple[int, int] | None:
    """Return the start and end of ``part`` in ``text``, with any white space in between.

    Sentences are stored with single spaces. Returns None if the text does not contain the part.
    """
    if not part:
        return None
    start = text.find(part)
    if start >= 0:
        return start, start + len(part)
    words = [match.span() for match in re.finditer(r"\S+", text)]
    begins, length = [], 0  # positions of the words in the text with single spaces
    for begin, end in words:
        begins.append(length)
        length += end - begin + 1
    start = " ".join(text[begin:end] for begin, end in words).find(part)
    if start < 0:
        return None

    def place(at: int) -> int:
        word = bisect_right(begins, at) - 1
        return words[word][0] + at - begins[word]

    return place(start), place(start + len(part) - 1) + 1


def _is_abbreviation(before: str) -> bool:
    return re.split(r"[\s(\[]", before[-12:])[-1].lower() in _ABBREVIATIONS


def _cut_at_spaces(sentence: str, max_chars: int) -> list[str]:
    """Cut a long sentence into nearly equal pieces, at spaces if there are any nearby."""
    count = -(-len(sentence) // max_chars)
    pieces, begin = [], 0
    for at in range(1, count):
        target = round(at * len(sentence) / count)
        space = sentence.rfind(" ", begin + 1, target)
        end = space if space > target - max_chars // 2 else target
        pieces.append(sentence[begin:end].strip())
        begin = end
    return [part for part in [*pieces, sentence[begin:].strip()] if part]
