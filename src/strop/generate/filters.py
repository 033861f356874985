"""Which generated queries are dropped, and why.

Only the texts decide, not the vectors of an embedder: the queries that it places wrongly (nearer to
a reference than to their document) carry the new information, and dropping them makes sharpening
worse.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

NEAR = 0.9
"""Jaccard similarity of words, or of letter trigrams, from which on queries are duplicates."""
_SCRIPTS = {"HIRAGANA": "KANA", "KATAKANA": "KANA", "CJK": "HAN", "IDEOGRAPHIC": "HAN"}
_NEUTRAL = ("", "MODIFIER", "MICRO")


@dataclass(frozen=True)
class Filtered:
    """The result of filtering a list of queries."""

    kept: list[str]
    positions: list[int]
    """The positions of the kept queries in the list."""
    dropped: list[tuple[str, str]]
    """(reason, query), in the order of the list."""


def apply_filters(
    queries: Sequence[str],
    document_text: str,
    examples: Sequence[str] = (),
    *,
    limit: int | None = None,
) -> Filtered:
    """Drop queries that are empty, copied, in the wrong script or repeated; keep ``limit`` at most.

    The reasons are "empty", "example", "wrong script", "duplicate", "near duplicate" and
    "over the limit".
    """
    copies = {normal_form(text) for text in examples}
    seen: set[str] = set()
    distinct: list[str] = []
    filtered = Filtered([], [], [])
    for at, query in enumerate(queries):
        form = normal_form(query)
        if not form:
            reason = "empty"
        elif form in copies:
            reason = "example"
        elif wrong_script(query, document_text, examples):
            reason = "wrong script"
        elif form in seen:
            reason = "duplicate"
        else:
            seen.add(form)
            if any(near(query, other) for other in distinct):
                reason = "near duplicate"
            else:
                distinct.append(query)
                reason = "over the limit" if limit is not None and len(distinct) > limit else ""
        if reason:
            filtered.dropped.append((reason, query))
        else:
            filtered.kept.append(query)
            filtered.positions.append(at)
    return filtered


def normal_form(text: str) -> str:
    """Return a text without case, spaces, punctuation and character widths.

    Marks within numbers stay, and so do symbols: 1.5 is not 15, and C++ is not C.
    """
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", _normalized_words(text))


def near(first: str, second: str, threshold: float = NEAR) -> bool:
    """Return whether one query nearly repeats another.

    It does if the Jaccard similarity of their words, or of their letter trigrams, reaches the
    threshold. Queries that contain different numbers are different.
    """
    numbers, *features = _duplicate_features(first)
    other_numbers, *others = _duplicate_features(second)
    return numbers == other_numbers and any(
        len(one & other) / max(1, len(one | other)) >= threshold
        for one, other in zip(features, others, strict=True)
    )


@lru_cache(maxsize=1024)
def _duplicate_features(query: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the numbers, the words and the letter trigrams of a query."""
    text = _normalized_words(query)
    words = frozenset(text.split())
    numbers = frozenset(word for word in words if any(map(str.isdigit, word)))
    padded = f" {text} "
    return numbers, words, frozenset(padded[i : i + 3] for i in range(len(padded) - 2))


def wrong_script(query: str, document_text: str, examples: Sequence[str] = ()) -> bool:
    """Return whether a query is in a script that neither its document nor the examples use.

    Latin words among words of another script are accepted. So is a query whose words are all in
    the document, such as a name.
    """
    expected: set[str] = set()
    for text in (document_text, " ".join(examples)):
        shares = _script_shares(text)
        expected.update(
            name for name, share in shares.items() if share >= (0.25 if name == "LATIN" else 0.05)
        )
    if "JAPANESE" in expected:
        expected.add("HAN")
    shares = _script_shares(query)
    if not expected or not shares:
        return False
    main = max(shares, key=lambda name: shares[name])
    if main in expected:
        return False
    mixed = main == "LATIN" and sum(shares.get(name, 0.0) for name in expected) >= 0.2
    quoted = set(_normalized_words(query).split()) <= set(_normalized_words(document_text).split())
    return not mixed and not quoted


@lru_cache(maxsize=4096)
def _normalized_words(text: str) -> str:
    """Return the words of a text in lower case, with single spaces between them."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    pieces = re.split(r"(?<=\d)([.,:/])(?=\d)", folded)
    pieces[::2] = ["".join(map(_letter_or_space, piece)) for piece in pieces[::2]]
    return " ".join("".join(pieces).split())


@lru_cache(maxsize=65536)
def _letter_or_space(letter: str) -> str:
    """Return a letter, mark, number or symbol unchanged, a space for any other character."""
    category = unicodedata.category(letter)
    return letter if (category[0] in "LMNS" and category != "Sk") or letter in "#%" else " "


@lru_cache(maxsize=65536)
def _script(letter: str) -> str:
    if not letter.isalpha():
        return ""
    name = re.split("[ -]", unicodedata.name(letter, ""))[0]
    return _SCRIPTS.get(name, name)


@lru_cache(maxsize=256)
def _script_shares(text: str) -> dict[str, float]:
    """Return each script's share of a text's letters; {} for a text of fewer than 3 letters."""
    counts: Counter[str] = Counter()
    for letter, n in Counter(unicodedata.normalize("NFKC", text)).items():
        counts[_script(letter)] += n
    for name in _NEUTRAL:
        del counts[name]
    if counts["KANA"] >= 0.05 * (counts["KANA"] + counts["HAN"]) > 0:
        counts["JAPANESE"] = counts.pop("KANA") + counts.pop("HAN", 0)
    total = counts.total()
    return {name: n / total for name, n in counts.items() if n} if total >= 3 else {}
