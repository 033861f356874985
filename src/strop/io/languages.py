"""The languages whose words are stemmed: scripts, stop words, detection in a corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files

from strop.errors import BadInput

STOP_WORD_PREFIX = " "
"""The term of a stop word begins with this."""
STOP_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in json.loads(
        (files("strop.io") / "stop_words.json").read_text("utf-8")
    ).items()
}
"""The stop words of each language; the English ones are the list of Lucene."""
_SCRIPTS: tuple[tuple[int, int, str, tuple[str, ...]], ...] = (
    # first and last character, name, languages; the first is the default
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
"""Number of texts from which the languages of a corpus are detected."""
_NOT_LATIN = frozenset(one for _, _, _, languages in _SCRIPTS for one in languages)
LANGUAGES: Mapping[str, tuple[str, ...]] = {
    LATIN: ("english", *sorted(STOP_WORDS.keys() - _NOT_LATIN - {"english"})),
    **{script: languages for _, _, script, languages in _SCRIPTS},
}
"""The languages of each script. If detection is not clear, the first is used; none for Hebrew."""
_MIN_RATIO = 1.2
"""A language replaces the default of its script if it has this many times as many stop words."""
_MIN_SHARE = 0.1
_MIN_DISTINCT = 3
"""A language is likely if its stop words exceed this share of the words of its script, and if at
least this number of different ones occur."""


def script_of(character: str) -> str:
    """Return the script of a letter, "" for a script whose words are not stemmed."""
    code = ord(character)
    if code < 0x250 or 0x1E00 <= code <= 0x1EFF:
        return LATIN
    for first, last, script, _ in _SCRIPTS:
        if first <= code <= last:
            return script
    return ""


def detect_languages(texts: Iterable[str]) -> dict[str, str]:
    """Return the most probable language of these texts for each script.

    It is the language whose stop words are most frequent. Hebrew letters have no default: Yiddish
    stems are wrong for Hebrew.
    """
    word_counts: Counter[str] = Counter()
    for text in texts:
        word_counts.update(text.casefold().split())
    words_per_script: Counter[str] = Counter()
    for word, times in word_counts.items():
        words_per_script[script_of(word[0])] += times
    chosen = {}
    for script, languages in LANGUAGES.items():
        stop_word_counts = {
            language: sum(word_counts[word] for word in STOP_WORDS[language])
            for language in languages
        }
        best, first = max(languages, key=stop_word_counts.__getitem__), languages[0]
        likely = stop_word_counts[best] > _MIN_SHARE * words_per_script[script]
        likely &= len(STOP_WORDS[best] & word_counts.keys()) >= _MIN_DISTINCT
        if likely and stop_word_counts[best] > _MIN_RATIO * stop_word_counts[first]:
            chosen[script] = best
        elif likely or script != "hebrew":
            chosen[script] = first
    return chosen


def given_language(name: str) -> dict[str, str]:
    """Return the language of each script for texts in this language; defaults for other scripts."""
    chosen = {script: names[0] for script, names in LANGUAGES.items() if script != "hebrew"}
    for script, names in LANGUAGES.items():
        if name in names:
            return {**chosen, script: name}
    languages = ", ".join(sorted(STOP_WORDS))
    raise BadInput(f"no stems for {name!r}: the languages are {languages}")
