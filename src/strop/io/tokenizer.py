"""Terms of a text: the words that documents and queries are compared by.

A word is a run of letters, digits and combining marks of any script. Then:
- Case and compatibility forms are folded (NFKC), and Latin and Greek accents: "Café" is "cafe".
- Words are stemmed by the language that the index has for their script.
- Words joined by - . _ & or in camelCase give several terms: the whole, without the marks, and each
  part of two letters or more. A query has only the parts of "long-term", so that it does not count
  three times, but also the whole of "e-mail".
- Pieces of one or two letters before or after an apostrophe are dropped: "Alzheimer's", "l'homme".
- Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese text becomes overlapping pairs of
  characters; documents have the single characters too.
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
from strop.io.languages import LANGUAGES, LATIN, STOP_WORD_PREFIX, STOP_WORDS, script_of

VERSION = 1
"""Version of the rules above. An index stores the version by which its words were counted."""
LONGEST = 64
"""Length limit of a term in characters. A longer word (base64, a broken file) is cut."""
_MEMO_WORDS = 500_000
# Characters of scripts without spaces between words, without punctuation; and Hangul.
_BIGRAM_SCRIPTS = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59\u0e81-\u0ede\u0edf\u1000-\u1049\u1050-\u109f"
    r"\u1780-\u17d3\u17dd\u17e0-\u17e9\u3005\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa"
    r"\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_UNIT = re.compile(r"\w\W*|\W+")  # a letter with its marks
_BIGRAM_CHARACTER = re.compile(f"[{_BIGRAM_SCRIPTS}]")
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
    """Return the pattern of words in any text, with or without scripts split into bigrams."""
    marks = "".join(_marks(0x300, 0x1D00) + _marks(0x1DC0, 0x1E00) + _marks(0xA660, 0xAC00))
    if not paired:
        return re.compile(rf"[\w{marks}]+" + _JOINED.format(rf"[\w{marks}]"))
    letter = rf"(?:(?![{_BIGRAM_SCRIPTS}])[\w{marks}])"
    return re.compile(rf"[{_BIGRAM_SCRIPTS}]+|{letter}+" + _JOINED.format(letter))


def _marks(first: int, stop: int) -> list[str]:
    """Return the combining marks from ``first`` to before ``stop``, escaped for a pattern."""
    codes = [code for code in range(first, stop) if unicodedata.category(chr(code))[0] == "M"]
    return [re.escape(chr(code)) for code in codes]


class _Memo(dict[str, tuple[str, ...]]):
    """Cached terms of words."""

    def __init__(self, terms_of: Callable[[str], list[str]], lock: threading.Lock) -> None:
        self._terms_of, self._lock = terms_of, lock

    def __missing__(self, word: str) -> tuple[str, ...]:
        with self._lock:  # a stemmer serves one thread at a time
            terms = tuple(map(sys.intern, self._terms_of(word)))
        if len(self) >= _MEMO_WORDS:
            self.clear()
        self[word] = terms
        return terms


class Tokenizer:
    """Turns texts into terms, with the language of each script (``detect_languages``)."""

    def __init__(self, languages: Mapping[str, str] | None = None) -> None:
        """Without ``languages``: English, and the default language of each other script."""
        if languages is None:
            languages = {script: names[0] for script, names in LANGUAGES.items()}
        self.languages = dict(languages)
        for script, name in languages.items():
            if name not in LANGUAGES.get(script, ()):
                raise BadInput(
                    f"no stems for {name!r} in {script!r} script: choose from"
                    f" {', '.join(one for names in LANGUAGES.values() for one in names)}"
                )
        # The stemmer's own cache is off (0): the memo already stores the terms of each word.
        self._stems = {script: Stemmer.Stemmer(name, 0) for script, name in languages.items()}
        self._stop = {word for name in languages.values() for word in STOP_WORDS[name]}
        lock = threading.Lock()
        self._documents = _Memo(self._document_terms, lock)
        self._queries = _Memo(self._query_terms, lock)

    def document(self, text: str) -> list[str]:
        """Return the terms of a document, in order, with stop words."""
        return list(chain.from_iterable(map(self._documents.__getitem__, _words(text))))

    def query(self, text: str) -> list[str]:
        """Return the terms of a query, in order; stop words only if it has nothing else."""
        terms = list(chain.from_iterable(map(self._queries.__getitem__, _words(text))))
        return [term for term in terms if term[0] != STOP_WORD_PREFIX] or terms

    def _document_terms(self, word: str) -> list[str]:
        return _bigrams(word, single=True) if _is_bigram_run(word) else self._word_terms(word)

    def _query_terms(self, word: str) -> list[str]:
        if _is_bigram_run(word):
            return _bigrams(word, single=False)
        terms = self._word_terms(word)
        compound = len(terms) > 1 and all(len(one) > 1 for one in _HYPHENS.split(word))
        return terms[:-1] if compound and _HYPHENS.search(word) else terms

    def _word_terms(self, word: str) -> list[str]:
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
            return STOP_WORD_PREFIX + word
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
    paired = _BIGRAM_CHARACTER.search(text) is not None
    return _pattern(paired).findall(text)


def _is_bigram_run(word: str) -> bool:
    return _BIGRAM_CHARACTER.match(word) is not None


def _bigrams(run: str, single: bool) -> list[str]:
    """Return pairs of neighbouring characters; single ones too if ``single``, or if alone."""
    units = _UNIT.findall(run)
    pairs = [first + second for first, second in pairwise(units)]
    return units + pairs if single or not pairs else pairs


def _without_clitics(word: str) -> list[str]:
    if "'" not in word and "\u2019" not in word:
        return [word]
    pieces = re.split("['\u2019]+", word)
    return [piece for piece in pieces if len(piece) > 2] or pieces


def _unaccented(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    bare = "".join(character for character in decomposed if not unicodedata.combining(character))
    return bare or word
