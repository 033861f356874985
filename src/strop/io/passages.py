"""Where a stored sentence stands in the text that it was taken from."""

from __future__ import annotations

import re
from bisect import bisect_right

_WORD = re.compile(r"\S+")


def locate(part: str, text: str) -> tuple[int, int] | None:
    """Return the start and end of ``part`` in ``text``, with any white space in between.

    Sentences are stored with single spaces (sentences.py). None where the part is not there.
    """
    if not part:
        return None
    start = text.find(part)
    if start >= 0:
        return start, start + len(part)
    words = [match.span() for match in _WORD.finditer(text)]
    begins, length = [], 0  # of each word where all stand one space apart
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
