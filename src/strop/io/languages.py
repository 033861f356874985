"""The languages whose words are stemmed: scripts, stop words, and which ones a corpus has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files

from strop.errors import BadInput

STOP = " "
"""What the term of a stop word begins with."""
STOP_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in json.loads(
        (files("strop.io") / "stop_words.json").read_text("utf-8")
    ).items()
}
"""Of each language; the English ones are the list of Lucene."""
_SCRIPTS: tuple[tuple[int, int, str, tuple[str, ...]], ...] = (
    # first and last character, name, languages; the first stands for a corpus that does not tell
    (0x0370, 0x03FF, "greek", ("greek",)),
    (0x0400, 0x052F, "cyrillic", ("russian", "serbian")),
    (0x0530, 0x058F, "armenian", ("armenian",)),
    (0x0590, 0x05FF, "hebrew", ("yiddish",)),
    (0x0600, 0x077F, "arabic", ("arabic", "persian")),
    (0x0900, 0x097F, "devanagari", ("hindi", "nepali")),
    (0x0B80, 0x0BFF, "tamil", ("tamil",)),
    (0x1F00, 0x1FFF, "greek", ("greek",)),
)
LATIN = "latin"
SAMPLE = 1000
"""How many texts tell the languages of all."""
_OTHERS = frozenset(one for _, _, _, languages in _SCRIPTS for one in languages)
LANGUAGES: Mapping[str, tuple[str, ...]] = {
    LATIN: ("english", *sorted(STOP_WORDS.keys() - _OTHERS - {"english"})),
    **{script: languages for _, _, script, languages in _SCRIPTS},
}
"""The languages of each script; the first is taken where a corpus does not tell."""
_CLEARLY = 1.2
"""So many times as many stop words as the first language of a script another one needs."""
_SHARE = 0.1
_DIFFERENT = 3
"""And its stop words are so large a part of the words of its script, and so many different ones."""


def script_of(character: str) -> str:
    """Return the script of a letter, "" for one whose words have no stems here."""
    code = ord(character)
    if code < 0x250 or 0x1E00 <= code <= 0x1EFF:
        return LATIN
    for first, last, script, _ in _SCRIPTS:
        if first <= code <= last:
            return script
    return ""


def detect_languages(texts: Iterable[str]) -> dict[str, str]:
    """Return the language of each script that these texts are most probably in.

    It is the one with the most of its stop words in them. Hebrew letters need evidence: Yiddish
    stems are wrong for Hebrew.
    """
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text.casefold().split())
    words: Counter[str] = Counter()
    for word, times in seen.items():
        words[script_of(word[0])] += times
    chosen = {}
    for script, languages in LANGUAGES.items():
        found = {one: sum(seen[word] for word in STOP_WORDS[one]) for one in languages}
        best, first = max(languages, key=found.__getitem__), languages[0]
        likely = found[best] > _SHARE * words[script]
        likely &= len(STOP_WORDS[best] & seen.keys()) >= _DIFFERENT
        if likely and found[best] > _CLEARLY * found[first]:
            chosen[script] = best
        elif likely or script != "hebrew":
            chosen[script] = first
    return chosen


def given_language(name: str) -> dict[str, str]:
    """Return the language of each script if texts are in this one, the usual ones of others."""
    chosen = {script: names[0] for script, names in LANGUAGES.items() if script != "hebrew"}
    for script, names in LANGUAGES.items():
        if name in names:
            return {**chosen, script: name}
    known = ", ".join(sorted(STOP_WORDS))
    raise BadInput(f"no stems for {name!r}: the languages are {known}")
