"""Terms of a text: the words that documents and queries are compared by.

A word is a run of letters, digits and combining marks of any script. Then:
- Case and compatibility forms are folded (NFKC), and Latin and Greek accents: "Café" is "cafe".
- Words are stemmed by the language that the index has for their script.
- Words joined by - . _ & or in camelCase are terms as a whole, without the marks, and in parts of
  two letters or more. A query has "long-term" in parts only, lest it count thrice; but "e-mail" as
  a whole too.
- Of a word with an apostrophe the pieces of one or two letters go: "Alzheimer's", "l'homme".
- Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese text becomes overlapping pairs of
  characters, in documents also single ones.
- Stop words are terms that begin with a space. A query has them only if it has no others.
"""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain, pairwise

import Stemmer

from strop.errors import BadInput
from strop.io.languages import LANGUAGES, LATIN, STOP, STOP_WORDS, script_of

VERSION = 1
"""Of what a text's terms are. An index keeps the one its words were counted with."""
LONGEST = 64
"""Characters. A longer word (base64, a broken file) is cut there."""
_MEMO = 500_000
# Scripts that put no space between words, without their punctuation; and Hangul.
_PAIRED = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59\u0e81-\u0ede\u0edf\u1000-\u1049\u1050-\u109f"
    r"\u1780-\u17d3\u17dd\u17e0-\u17e9\u3005\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa"
    r"\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_UNIT = re.compile(r"\w\W*|\W+")  # a letter with its marks
_FIRST_PAIRED = re.compile(f"[{_PAIRED}]")
_INVISIBLE = ("\u00ad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)+")
_CASES = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_BETWEEN = re.compile(r"[-\u2010\u2011._&,]+")
_HYPHENS = re.compile(r"[-\u2010\u2011&]")
_JOINED = r"(?:(?:[-\u2010\u2011.&'\u2019]|(?<=\d),(?=\d)){0}+)*(?:\+\+|\#)?"
_ASCII = re.compile(r"\w+" + _JOINED.format(r"\w"), re.ASCII)


@cache
def _pattern(paired: bool) -> re.Pattern[str]:
    """Return what finds the words of any text, with or without scripts that are paired."""
    marks = "".join(_marks(0x300, 0x1D00) + _marks(0x1DC0, 0x1E00) + _marks(0xA660, 0xAC00))
    if not paired:
        return re.compile(rf"[\w{marks}]+" + _JOINED.format(rf"[\w{marks}]"))
    letter = rf"(?:(?![{_PAIRED}])[\w{marks}])"
    return re.compile(rf"[{_PAIRED}]+|{letter}+" + _JOINED.format(letter))


def _marks(first: int, behind: int) -> list[str]:
    """Return the combining marks among some characters, as parts of a regular expression."""
    found = [code for code in range(first, behind) if unicodedata.category(chr(code))[0] == "M"]
    return [re.escape(chr(code)) for code in found]


class _Memo(dict[str, tuple[str, ...]]):
    """The terms of words that were met before."""

    def __init__(self, of: Callable[[str], list[str]], lock: threading.Lock) -> None:
        self._of, self._lock = of, lock

    def __missing__(self, word: str) -> tuple[str, ...]:
        with self._lock:  # a stemmer serves one thread at a time
            terms = tuple(map(sys.intern, self._of(word)))
        if len(self) >= _MEMO:
            self.clear()
        self[word] = terms
        return terms


class Tokenizer:
    """Turns texts into terms, with the language of each script (``detect_languages``)."""

    def __init__(self, languages: Mapping[str, str] | None = None) -> None:
        """Without ``languages``: English, and of other scripts the most spoken one."""
        if languages is None:
            languages = {script: names[0] for script, names in LANGUAGES.items()}
        self.languages = dict(languages)
        for script, name in languages.items():
            if name not in LANGUAGES.get(script, ()):
                raise BadInput(
                    f"no stems for {name!r} in {script!r} script: choose from"
                    f" {', '.join(one for names in LANGUAGES.values() for one in names)}"
                )
        # Without a cache of its own: what is met again is in the memo.
        self._stems = {script: Stemmer.Stemmer(name, 0) for script, name in languages.items()}
        self._stop = {word for name in languages.values() for word in STOP_WORDS[name]}
        lock = threading.Lock()
        self._documents = _Memo(self._of_document, lock)
        self._queries = _Memo(self._of_query, lock)

    def document(self, text: str) -> list[str]:
        """Return the terms of a document, in order, with stop words."""
        return list(chain.from_iterable(map(self._documents.__getitem__, _words(text))))

    def query(self, text: str) -> list[str]:
        """Return the terms of a query, in order; stop words only if it has nothing else."""
        terms = list(chain.from_iterable(map(self._queries.__getitem__, _words(text))))
        return [term for term in terms if term[0] != STOP] or terms

    def _of_document(self, word: str) -> list[str]:
        return _pairs(word, single=True) if _is_paired(word) else self._of(word)

    def _of_query(self, word: str) -> list[str]:
        if _is_paired(word):
            return _pairs(word, single=False)
        terms = self._of(word)
        compound = len(terms) > 1 and all(len(one) > 1 for one in _HYPHENS.split(word))
        return terms[:-1] if compound and _HYPHENS.search(word) else terms

    def _of(self, word: str) -> list[str]:
        """Return the terms of a word of a script that separates words."""
        if word.isalnum() and (word[1:].islower() or word.isupper() or word.isdigit()):
            return [self._term(word)]
        if _NUMBER.fullmatch(word):
            return [word.replace(",", "" if _THOUSANDS.fullmatch(word) else ".")]
        bare = word.rstrip("+#")
        pieces = [
            part
            for joined in _BETWEEN.split(bare)
            for piece in _without_clitics(joined)
            for part in _CASES.split(piece)
            if part
        ]
        terms = [self._term(piece) for piece in pieces if len(piece) > 1 or len(pieces) == 1]
        if len(pieces) > 1:
            terms.append(self._term("".join(pieces)))
        if pieces and bare != word:
            terms.append("".join(pieces).casefold()[:LONGEST] + word[len(bare) :])
        return terms

    def _term(self, word: str) -> str:
        word = word.casefold()[:LONGEST]
        if word in self._stop:
            return STOP + word
        script = LATIN if word.isascii() else script_of(word[0])
        stemmer = self._stems.get(script)
        term: str = word if stemmer is None else stemmer.stemWord(word) or word
        return term if term.isascii() or script not in (LATIN, "greek") else _unaccented(term)


def _words(text: str) -> list[str]:
    if text.isascii():
        return _ASCII.findall(text)
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    for character in _INVISIBLE:
        if character in text:
            text = text.replace(character, "")
    paired = _FIRST_PAIRED.search(text) is not None
    return _pattern(paired).findall(text)


def _is_paired(word: str) -> bool:
    return _FIRST_PAIRED.match(word) is not None


def _pairs(run: str, single: bool) -> list[str]:
    """Return the characters of a run in pairs; single ones too, for a query that is just one."""
    units = _UNIT.findall(run)
    pairs = [first + second for first, second in pairwise(units)]
    return units + pairs if single or not pairs else pairs


def _without_clitics(word: str) -> list[str]:
    if "'" not in word and "\u2019" not in word:
        return [word]
    pieces = re.split("['\u2019]+", word)
    return [piece for piece in pieces if len(piece) > 2] or pieces


def _unaccented(word: str) -> str:
    parts = unicodedata.normalize("NFD", word)
    bare = "".join(part for part in parts if not unicodedata.combining(part))
    return bare or word
