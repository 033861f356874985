"""The protocol of embedders, and the checks they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, get_args

import numpy as np

from strop.common.arrays import unit_rows
from strop.errors import BadInput, StropError, TextRefused
from strop.types import Kind, Vectors

Options = Mapping[str, Any]
"""JSON values by name: what an index stores to load its embedder again."""


class Embedder(Protocol):
    """Turns texts into unit vectors. ``load(e.name, **e.options)`` makes an equal embedder."""

    @property
    def name(self) -> str:
        """The spec that loads it, such as ``wordllama`` or ``st:intfloat/e5-small``."""

    @property
    def revision(self) -> str:
        """A hash or version that distinguishes models of the same name, "" if unknown."""

    @property
    def options(self) -> Options:
        """The other arguments of ``load``; JSON values, never a secret."""

    @property
    def dim(self) -> int:
        """The length of a vector."""

    def prompt(self, kind: Kind) -> str:
        """The text put before an input of this kind, "" if none."""

    def embed(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Embed n texts: float32 (n, dim), unit rows, zero rows for blank texts."""


class BaseEmbedder(ABC):
    """The base of embedders: handles blank texts, checks input and output, returns unit rows.

    A subclass sets ``name``, ``revision`` and ``options`` and implements ``_vectors``; it sets
    ``_dim`` too if it knows it.
    """

    name: str
    revision: str = ""
    options: Options
    worth_caching: bool = True
    """False if computing a vector is cheaper than reading it from the cache."""
    unkeyed_options: frozenset[str] = frozenset()
    """Options that do not change vectors, or only by revision and prompt, which are in the key."""

    window: int | None = None
    """Maximum number of tokens of a text that the model reads; None: all, or unknown."""

    _dim: int | None = None

    @property
    def dim(self) -> int:
        """The length of a vector; if it is not known yet, one word is embedded."""
        if self._dim is None:
            self._dim = self.embed(["word"], "document").shape[1]
        return self._dim

    @abstractmethod
    def _vectors(self, texts: list[str], kind: Kind) -> Any:
        """Return raw vectors (n, dim) of n > 0 texts that are not blank."""

    def prompt(self, kind: Kind) -> str:
        """The text put before an input of this kind, "" if none."""
        return ""

    def embed(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Embed n texts.

        Returns float32 of shape (n, dim), C-contiguous, rows of length one. A text of white
        space alone has a zero row and never reaches the model.
        """
        checked = checked_texts(texts, kind)
        nonblank = [i for i, text in enumerate(checked) if text and not text.isspace()]
        if not nonblank:
            return np.zeros((len(checked), self.dim), np.float32)
        raw = self._vectors([checked[i] for i in nonblank], kind)
        rows = checked_vectors(raw, len(nonblank), self.name)
        if len(nonblank) == len(checked):
            return rows
        out = np.zeros((len(checked), rows.shape[1]), np.float32)
        out[nonblank] = rows
        return out

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has; an estimate if there is no tokenizer."""
        return _estimated_tokens(texts)

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"<embedder {self.name}{options}>"


def token_counter(embedder: Embedder) -> Callable[[Sequence[str]], list[int]]:
    """Return the token counter of an embedder; an estimate if its class has none."""
    counter: Callable[[Sequence[str]], list[int]] | None = getattr(embedder, "count_tokens", None)
    return counter or _estimated_tokens


def _estimated_tokens(texts: Sequence[str]) -> list[int]:
    """Estimate four bytes per token, as in English, and at least one token per word."""
    return [max(len(text.split()), -(-len(text.encode("utf-8", "replace")) // 4)) for text in texts]


def checked_texts(texts: Sequence[str], kind: Kind) -> list[str]:
    """Return the texts as a list; lone surrogates, which no tokenizer can read, become "?"."""
    if kind not in get_args(Kind):
        raise BadInput(f"kind is {kind!r}; it must be 'document' or 'query'")
    if isinstance(texts, (str, bytes)):
        raise BadInput("embed takes a list of texts, not one text: write [text]")
    cleaned = list(texts)
    for i, text in enumerate(cleaned):
        if not isinstance(text, str):
            raise BadInput(f"text {i} to embed is a {type(text).__name__}, not a string")
        try:
            text.encode()
        except UnicodeEncodeError:
            cleaned[i] = text.encode("utf-8", "replace").decode()
    return cleaned


def checked_vectors(raw: Any, count: int, who: str, dim: int | None = None) -> Vectors:
    """Check that ``raw`` is (count, dim) finite numbers; return it with rows of length one.

    Rows of zeros stay zero.
    """
    try:
        values = np.asarray(raw)
        if values.dtype != np.float32:
            values = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise StropError(f"{who} did not return rows of numbers of equal length") from error
    width = "dim" if dim is None else str(dim)
    if values.ndim != 2 or values.shape[0] != count or values.shape[1] != (dim or values.shape[1]):
        raise StropError(
            f"{who} returned an array of shape {values.shape} for {count} texts; "
            f"expected ({count}, {width})"
        )
    if values.shape[1] == 0:
        raise StropError(f"{who} returned vectors of length 0")
    finite = np.isfinite(np.einsum("ij,ij->i", values, values, dtype=np.float64))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise TextRefused(f"{who} returned NaN or infinite numbers for text {row} of {count}")
    return unit_rows(values)
