"""WordLlama: static token vectors of 256 numbers, averaged. No torch, no download, one core.

The model is read straight from the files of the installed ``wordllama`` package. The package
itself is not imported: doing so configures the root logger, and its inference pads a whole
batch to its longest text, so that one book among abstracts fills the memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from strop.embed.base import BaseEmbedder
from strop.errors import BadInput, StropError, pip_install
from strop.types import Kind

_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_DIMS = (64, 128, 256)
BLOCK_WORDS = 1 << 14
CACHE_BYTES = 64 << 20
_ENTRY_BYTES = 256
WORDS_PER_ENCODING = 256
_FEW_TEXTS = 16
"""Up to this number of texts are summed without scipy, which takes longer to load than a search.
The sums are the same to the last bit."""
# The tokenizer treats these literally or as spaces: a text with one is a single "word".
_INDIVISIBLE = ("<s>", "</s>", "<unk>", "\u2581")
_UNJOINABLE = re.compile("^ |" + "|".join(_INDIVISIBLE))
_WORD = re.compile(" +[^ ]*")
_LOWER = re.compile("[a-z]")
_FEW_LOWER = 0.1
_LONG_WORD = re.compile(r"[^\W\d_]{6}")
"""Words of up to five capitals may be abbreviations, which are not changed."""


class WordLlama(BaseEmbedder):
    """The mean of the token vectors of a text; all of its tokens, however long it is.

    The tokenizer's vocabulary has no entry that crosses from one word into the next, so the
    tokens of a text are the tokens of its words, and the tokens of a word can be remembered.
    That is about three times as fast as running the tokenizer over every text. ``dim`` keeps
    the first 64 or 128 numbers, for which the model was trained too.
    """

    name = "wordllama"
    worth_caching = False

    def __init__(self, dim: int = 256) -> None:
        if dim not in _DIMS:
            raise BadInput(f"wordllama has vectors of {_DIMS} numbers, not {dim!r}")
        vectors, self.tokenizer, self._starts_word, self.revision = _model()
        self._vectors_of_tokens = np.ascontiguousarray(vectors[:, :dim])
        self._dim = dim
        self.options = {} if dim == 256 else {"dim": dim}
        self._token_cache = _TokenCache(self.tokenizer)

    def _vectors(self, texts: list[str], kind: Kind) -> NDArray[np.float32]:
        """Sums of token vectors; the mean has the same direction."""
        sums = np.zeros((len(texts), self.dim), np.float32)
        texts = [text.lower() if in_capitals(text) else text for text in texts]
        for rows, words, ends in _blocks(texts):
            sums[rows] += self._block_sums(words, ends)
        return sums

    def _block_sums(self, words: list[str], ends: list[int]) -> NDArray[np.float32]:
        """Sum the token vectors of ``words[ends[i-1]:ends[i]]`` for each i."""
        ids = self.token_ids(words)
        tokens = np.frombuffer(b"".join(ids), np.int32)
        tokens_before = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids)), out=tokens_before[1:])
        indptr = (tokens_before[[0, *ends]] // tokens.itemsize).astype(np.int32)
        if len(ends) <= _FEW_TEXTS:
            tokens_per_text = np.split(tokens, indptr[1:-1])
            return np.stack(
                [
                    self._vectors_of_tokens[text_tokens].sum(axis=0)
                    for text_tokens in tokens_per_text
                ]
            )
        from scipy.sparse import csr_array

        # A product with a sparse matrix of ones: no array with a row for each token is made.
        matrix = csr_array(
            (np.ones(len(tokens), np.float32), tokens, indptr),
            shape=(len(ends), len(self._vectors_of_tokens)),
        )
        sums: NDArray[np.float32] = matrix @ self._vectors_of_tokens
        return sums

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has."""
        size = np.dtype(np.int32).itemsize
        return [sum(map(len, self.token_ids(split_words(text)))) // size for text in texts]

    def token_ids(self, words: list[str]) -> list[bytes]:
        """Return the token ids of each word, as bytes of int32, which can be joined fastest."""
        # Threads share the cache without a lock: entries are only added, a full cache is
        # replaced and not emptied, and learning a word twice does no harm.
        cache = self._token_cache
        ids = list(map(cache.get, words))
        if None in ids:
            if cache.free_bytes < 0:
                self._token_cache = cache = _TokenCache(self.tokenizer)
            self._learn([word for word in set(words) if word not in cache], cache)
            return list(map(cache.__getitem__, words))
        return cast(list[bytes], ids)

    def _learn(self, words: list[str], cache: _TokenCache) -> None:
        cache.free_bytes -= sum(map(len, words)) + _ENTRY_BYTES * len(words)
        unjoinable: list[str] = []
        joinable: list[str] = []
        for word in words:
            (unjoinable if _UNJOINABLE.search(word) else joinable).append(word)
        for word, ids in zip(unjoinable, self._encode(unjoinable), strict=True):
            cache[word] = ids.tobytes()
        # The tokenizer encodes hundreds of joined words in a third of the time that it needs for
        # the same words one by one. The result is split where a token starts with a space.
        groups = [
            joinable[i : i + WORDS_PER_ENCODING]
            for i in range(0, len(joinable), WORDS_PER_ENCODING)
        ]
        for group, ids in zip(groups, self._encode([*map(" ".join, groups)]), strict=True):
            content = ids.tobytes()
            starts = (np.flatnonzero(self._starts_word[ids]) * ids.itemsize).tolist()
            for word, start, end in zip(group, starts, [*starts[1:], len(content)], strict=True):
                cache[word] = content[start:end]

    def _encode(self, texts: list[str]) -> Iterator[NDArray[np.int32]]:
        """Yield the token ids of each text."""
        last_id = len(self._vectors_of_tokens) - 1
        for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            # As in the package: ids are clipped to the rows of the vectors.
            yield np.minimum(np.array(encoding.ids, np.int32), np.int32(last_id))


class _TokenCache(dict[str, bytes]):
    """Token ids by word, and the number of bytes until the cache is full."""

    def __init__(self, tokenizer: Any) -> None:
        # The last space of "text " is a separate token; its key is "".
        super().__init__({"": np.int32(tokenizer.token_to_id("\u2581")).tobytes()})
        self.free_bytes = CACHE_BYTES


def in_capitals(text: str) -> bool:
    """Return whether a text is written in capitals; short words may be names and do not count.

    The model knows case and has seen few such texts: in lower case they are found far better
    (docs/log.md).
    """
    if len(_LOWER.findall(text, 0, 100)) > _FEW_LOWER * 100:
        return False  # nearly all texts end here, after the first 100 characters
    lower, upper = (sum(map(test, text)) for test in (str.islower, str.isupper))
    return upper > 0 and lower <= _FEW_LOWER * (lower + upper) and bool(_LONG_WORD.search(text))


def _blocks(texts: list[str]) -> Iterator[tuple[slice, list[str], list[int]]]:
    """Cut the words of the texts into blocks of bounded size.

    Yields (rows, words, ends): the words of the texts ``rows``, and where those of each text end.
    A long text is spread over several blocks, whose sums are added.
    """
    words: list[str] = []
    ends: list[int] = []
    first = 0
    for row, text in enumerate(texts):
        text_words = split_words(text)
        taken = 0
        while len(words) + len(text_words) - taken > BLOCK_WORDS:
            cut = taken + BLOCK_WORDS - len(words)
            words += text_words[taken:cut]
            yield slice(first, row + 1), words, [*ends, len(words)]
            words, ends, first, taken = [], [], row, cut
        words += text_words[taken:]
        ends.append(len(words))
    if ends:
        yield slice(first, len(texts)), words, ends


def split_words(text: str) -> list[str]:
    """Return the pieces that the tokenizer treats separately, each without its first space."""
    if ("<" in text or "\u2581" in text) and any(mark in text for mark in _INDIVISIBLE):
        return [text]
    spaced = " " + text
    if "  " not in spaced:
        return text.split(" ")
    return [word[1:] for word in _WORD.findall(spaced)]


@lru_cache(maxsize=1)
def _model() -> tuple[NDArray[np.float32], Any, NDArray[np.bool_], str]:
    """Return token vectors (32000, 256), tokenizer, which tokens start a word, hash of files."""
    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise StropError(f"wordllama is not installed: {pip_install('wordllama>=0.4,<0.5')}")
    folder = Path(spec.submodule_search_locations[0])
    weights, config = folder / _WEIGHTS, folder / _TOKENIZER
    for path in (weights, config):
        if not path.is_file():
            raise StropError(
                f"the installed wordllama has no {path.relative_to(folder)}: "
                + pip_install("--force-reinstall", "wordllama==0.4.0.post1")
            )
    from safetensors.numpy import load
    from tokenizers import Tokenizer

    content = weights.read_bytes()
    (vectors,) = load(content).values()
    tokenizer = Tokenizer.from_file(str(config))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vocabulary = tokenizer.get_vocab()
    starts_word = np.zeros(max(vocabulary.values()) + 1, bool)
    starts_word[[i for token, i in vocabulary.items() if token.startswith("\u2581")]] = True
    digest = hashlib.blake2b(content, digest_size=8)
    digest.update(config.read_bytes())
    digest.update(b"capitals in lower case")
    return np.asarray(vectors, np.float32), tokenizer, starts_word, digest.hexdigest()
