"""Which generated queries are dropped, and why; and measures by which none is dropped.

What an embedder thinks of a query is only measured. The queries it places wrongly are those it
can learn from: dropping them makes sharpening worse.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strop.types import Vectors

NEAR = 0.9
"""The share of common words, or of common triples of letters, that makes two queries the same."""

# Frequent words that carry no subject. Texts of some length have many of one language's.
_FUNCTION_WORDS = {
    name: frozenset(words.split())
    for name, words in {
        "English": "the of and to in is are was were be been what which who whom how why when "
        "where does do did has have had with from for by on at as an a that this these those it "
        "its can could would should between into about than there their not or if but during "
        "after before",
        "German": "der die das und ist sind war waren den dem des ein eine einer einem eines wie "
        "was wer welche welcher welches warum wann wo mit von zu zur zum für auf im in an bei "
        "nach aus durch über nicht wird werden wurde hat haben kann als auch es sich zwischen "
        "oder dass",
        "French": "le la les de des du un une et est sont était que qui quoi quel quelle quels "
        "quelles comment pourquoi quand où dans sur avec pour par pas ne au aux ce cette ces il "
        "elle se en entre ou sa son ses leur plus été a ont fait d l qu",
        "Spanish": "el la los las de del un una unos y es son era fue que qué quién cuál cuáles "
        "cómo por para con en se su sus al lo como cuándo dónde cuántos entre o no más este esta "
        "ha han sobre desde hasta ser pero",
        "Italian": "il lo la i gli le di del della dei delle un una e è sono era che chi quale "
        "quali come perché quando dove con per in nel nella da dal dalla su sul non si al alla "
        "tra o anche stato stata più ha hanno cosa",
        "Portuguese": "o a os as de do da dos das um uma e é são era foi que quem qual quais como "
        "por para com em no na nos nas se ao à quando onde entre ou não mais seu sua pelo pela "
        "quantos foram ser tem sobre",
        "Dutch": "de het een en is zijn was waren van in op te met voor door aan bij naar uit "
        "over wat wie welke hoe waarom wanneer waar niet wordt worden werd heeft hebben kan als "
        "ook dat die deze tussen of er om",
        "Swedish": "och är var som en ett den det de att av i på med för till från om vad vem "
        "vilka vilken vilket hur varför när inte har hade kan blev blir mellan eller också än vid "
        "efter",
        "Swahili": "ya wa na ni kwa katika za la cha vya nini nani gani je vipi lini wapi ambayo "
        "ambao kama hii huu hiyo hizo pia ilikuwa alikuwa kuwa kutoka au lakini baada kati yake "
        "wake ngapi",
        "Indonesian": "yang dan di dari untuk dengan adalah ini itu pada ke apa siapa bagaimana "
        "mengapa kapan mana oleh dalam tidak akan telah dapat sebagai atau juga antara berapa "
        "tersebut ada bisa para",
        "Turkish": "ve bir bu ne nasıl neden kim hangi için ile da de olarak olan mi mı mu mü kaç "
        "daha çok gibi kadar sonra arasında nerede zaman değil veya en tarafından ise her",
        "Polish": "i w na z do się nie jest są był była było co kto jak jaki jaka jakie który "
        "która które dlaczego kiedy gdzie przez od po o dla za oraz lub między to że ile czy ze "
        "jego",
        "Vietnamese": "và là của có được trong cho với các những một không người này đó khi nào "
        "gì ai như thế bao nhiêu ở tại từ đến để về theo đã sẽ bị hay",
    }.items()
}
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = {"HIRAGANA": "KANA", "KATAKANA": "KANA", "CJK": "HAN", "IDEOGRAPHIC": "HAN"}
_NEUTRAL = ("", "MODIFIER", "MICRO")


@dataclass(frozen=True)
class Filtered:
    """What is left of a list of queries, in order, and what was dropped for which reason."""

    kept: list[str]
    positions: list[int]
    """Where the kept ones stood in the list."""
    dropped: Counter[str]
    dropped_texts: list[tuple[str, str]]
    """Reason and text, in order of the list."""


def apply_filters(
    queries: Sequence[str],
    document_text: str,
    examples: Sequence[str] = (),
    *,
    near: float | None = NEAR,
    script: bool = True,
    language: bool = True,
    most: int | None = None,
) -> Filtered:
    """Drop queries that are empty, copied, in the wrong script or language, or there already.

    ``near`` None keeps near duplicates; ``most`` bounds how many are kept. The reasons are
    "empty", "example", "script", "language", "duplicate", "near duplicate" and "too many".
    """
    reasons: dict[int, str] = {}
    copied = {normal_form(text) for text in examples}
    for at, query in enumerate(queries):
        form = normal_form(query)
        if not form:
            reasons[at] = "empty"
        elif form in copied:
            reasons[at] = "example"
        elif script and wrong_script(query, document_text, examples):
            reasons[at] = "script"
        elif language and drifted_to_english(query, document_text, examples):
            reasons[at] = "language"
    left = [at for at in range(len(queries)) if at not in reasons]
    for at in exact_duplicates([queries[at] for at in left]):
        reasons[left[at]] = "duplicate"
    left = [at for at in left if at not in reasons]
    for at in near_duplicates([queries[at] for at in left], near) if near is not None else ():
        reasons[left[at]] = "near duplicate"
    left = [at for at in left if at not in reasons]
    reasons.update(dict.fromkeys(left[most:] if most is not None else (), "too many"))
    left = [at for at in left if at not in reasons]
    texts = [(reasons[at], queries[at]) for at in sorted(reasons)]
    counts = Counter(reason for reason, _ in texts)
    return Filtered([queries[at] for at in left], left, counts, texts)


def normal_form(text: str) -> str:
    """Return a text without what makes no difference: case, spaces, punctuation, widths.

    Marks within numbers stay, as do symbols: 1.5 is not 15, and C++ is not C.
    """
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", _plain(text))


def exact_duplicates(queries: Sequence[str]) -> list[int]:
    """Return the positions of queries whose normal form came before."""
    seen: set[str] = set()
    found = []
    for at, form in enumerate(map(normal_form, queries)):
        if form in seen:
            found.append(at)
        seen.add(form)
    return found


def near_duplicates(queries: Sequence[str], threshold: float = NEAR) -> list[int]:
    """Return the positions of queries that nearly repeat an earlier one that is not among them.

    Two are near if they share this much of their words, or of the triples of letters in them
    (as a share of all that either has). Queries with different numbers are different.
    """
    seen: list[tuple[frozenset[str], frozenset[str], frozenset[str]]] = []
    found = []
    for at, text in enumerate(map(_plain, queries)):
        words = frozenset(text.split())
        numbers = frozenset(word for word in words if any(map(str.isdigit, word)))
        padded = f" {text} "
        triples = frozenset(padded[i : i + 3] for i in range(len(padded) - 2))
        if any(
            numbers == others[0]
            and (_common(words, others[1]) >= threshold or _common(triples, others[2]) >= threshold)
            for others in seen
        ):
            found.append(at)
        else:
            seen.append((numbers, words, triples))
    return found


def wrong_script(query: str, document_text: str, examples: Sequence[str] = ()) -> bool:
    """Say whether a query is in a script that neither its document nor the examples use.

    Latin words among others are fine, and so is a query all of whose words are in the document,
    such as a name.
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
    return not mixed and not _quoted(query, document_text)


def drifted_to_english(query: str, document_text: str, examples: Sequence[str] = ()) -> bool:
    """Say whether a query is surely English where document and examples are surely not.

    Judged by function words, for the languages listed here; in doubt the answer is no.
    """
    language = _foreign(document_text)
    if language is None or not _is_english(query, language):
        return False
    if any(_is_english(text, language) for text in examples):
        return False
    return not _quoted(query, document_text)


def told_apart(
    query_vectors: Vectors, own_vector: Vectors, reference_vectors: Vectors
) -> NDArray[np.bool_]:
    """Say of each query whether it is nearer its own document than every reference.

    Shapes: (queries, dim), (dim,), (references, dim). Without references each is.
    """
    if not len(reference_vectors):
        return np.ones(len(query_vectors), np.bool_)
    own = query_vectors @ _unit(own_vector[None])[0]
    others = query_vectors @ _unit(reference_vectors).T
    apart: NDArray[np.bool_] = own > others.max(axis=1)
    return apart


def round_trip_ranks(
    query_vectors: Vectors, document_vectors: Vectors, own_rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rank, from 1, at which each query finds its own document by plain cosine.

    Shapes: (queries, dim), (documents, dim), (queries,). Equal scores are ranked by row.
    """
    documents = _unit(document_vectors)
    ranks = np.empty(len(query_vectors), np.int64)
    step = max(1, 2**24 // max(1, len(documents)))
    rows = np.arange(len(documents))
    for begin in range(0, len(query_vectors), step):
        scores = query_vectors[begin : begin + step] @ documents.T
        own = np.asarray(own_rows[begin : begin + step])[:, None]
        mine = np.take_along_axis(scores, own, axis=1)
        above = (scores > mine) | ((scores == mine) & (rows < own))
        ranks[begin : begin + step] = 1 + above.sum(axis=1)
    return ranks


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    """Return the words of a text in lower case, with single spaces between them."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    pieces = re.split(r"(?<=\d)([.,:/])(?=\d)", folded)
    pieces[::2] = ["".join(map(_letter, piece)) for piece in pieces[::2]]
    return " ".join("".join(pieces).split())


@lru_cache(maxsize=65536)
def _letter(letter: str) -> str:
    """Return a letter, mark, number or symbol as it is, anything else as a space."""
    category = unicodedata.category(letter)
    return letter if (category[0] in "LMNS" and category != "Sk") or letter in "#%" else " "


def _common(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _quoted(query: str, text: str) -> bool:
    return set(_plain(query).split()) <= set(_plain(text).split())


@lru_cache(maxsize=65536)
def _script(letter: str) -> str:
    if not letter.isalpha():
        return ""
    name = re.split("[ -]", unicodedata.name(letter, ""))[0]
    return _SCRIPTS.get(name, name)


@lru_cache(maxsize=256)
def _script_shares(text: str) -> dict[str, float]:
    """Return each script's share of a text's letters; none for a text with hardly any."""
    counts: Counter[str] = Counter()
    for letter, n in Counter(unicodedata.normalize("NFKC", text)).items():
        counts[_script(letter)] += n
    for name in _NEUTRAL:
        del counts[name]
    if counts["KANA"] >= 0.05 * (counts["KANA"] + counts["HAN"]) > 0:
        counts["JAPANESE"] = counts.pop("KANA") + counts.pop("HAN", 0)
    total = counts.total()
    return {name: n / total for name, n in counts.items() if n} if total >= 3 else {}


@lru_cache(maxsize=256)
def _foreign(text: str) -> str | None:
    """Return the language of a text that surely is one of the listed, and not English."""
    words = Counter(_words(text))
    english = _FUNCTION_WORDS["English"]
    counts = {
        name: sum(words[word] for word in listed - english)
        for name, listed in _FUNCTION_WORDS.items()
    }
    best = max(counts, key=lambda name: counts[name])
    of_english = sum(words[word] for word in _ENGLISH_ONLY)
    return best if counts[best] >= max(4, 0.06 * words.total(), 3 * of_english) else None


def _is_english(text: str, other: str) -> bool:
    """Say whether a text has function words of English, and none that only the other has."""
    words = _words(text)
    if any(word in _FUNCTION_WORDS[other] - _FUNCTION_WORDS["English"] for word in words):
        return False
    all_ = sum(word in _FUNCTION_WORDS["English"] for word in words)
    return sum(word in _ENGLISH_ONLY for word in words) >= 2 and all_ >= 0.25 * len(words)


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text[:20_000]).casefold())


_ENGLISH_ONLY = _FUNCTION_WORDS["English"].difference(
    *(listed for language, listed in _FUNCTION_WORDS.items() if language != "English")
)
