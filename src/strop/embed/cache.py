"""An embedder whose vectors are stored, so that no text is embedded twice with the same model."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from strop.common.cache import Cache
from strop.embed.base import Embedder, checked_texts, token_counter
from strop.types import Kind, Vectors

FILE = "embeddings.sqlite"
_TEXTS_PER_COMMIT = 256


class CachedEmbedder:
    """An embedder with a file of its vectors.

    Keys cover the model, its revision and options, the kind, the prompt and the text. New vectors
    are committed every 256 texts, so a killed run loses at most that many.
    """

    worth_caching = False

    def __init__(self, embedder: Embedder, path: str | os.PathLike[str]) -> None:
        self.embedder = embedder
        self.name, self.revision, self.options = embedder.name, embedder.revision, embedder.options
        self.unkeyed_options: frozenset[str] = getattr(embedder, "unkeyed_options", frozenset())
        self.misses = 0
        self._cache = Cache(Path(path), "vectors")
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.embedder.dim

    @property
    def window(self) -> int | None:
        """Maximum number of tokens of a text that the embedder reads; None: all, or unknown."""
        window: int | None = getattr(self.embedder, "window", None)
        return window

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has."""
        return token_counter(self.embedder)(texts)

    def prompt(self, kind: Kind) -> str:
        """The text that the embedder puts before an input of this kind."""
        return self.embedder.prompt(kind)

    def embed(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Embed n texts, float32 (n, dim); the embedder gets only the new ones."""
        cleaned = checked_texts(texts, kind)
        if not cleaned:
            return self.embedder.embed([], kind)
        keys = self._keys(cleaned, kind)
        stored = self._cache.get(keys)
        new = {key: text for key, text in zip(keys, cleaned, strict=True) if key not in stored}
        # Texts of similar length are embedded together: a model pads a batch to its longest text.
        order = sorted(new, key=lambda key: len(new[key]))
        for start in range(0, len(order), _TEXTS_PER_COMMIT):
            chunk = order[start : start + _TEXTS_PER_COMMIT]
            rows = self.embedder.embed([new[key] for key in chunk], kind)
            fresh = {key: row.astype("<f4").tobytes() for key, row in zip(chunk, rows, strict=True)}
            self._cache.put(fresh)
            stored.update(fresh)
        with self._lock:
            self.misses += len(order)
        lengths = {len(row) for row in stored.values()}
        if len(lengths) > 1 or lengths.pop() % 4:
            self._cache.give_up(ValueError("it holds vectors of another length"), stacklevel=3)
            return self.embedder.embed(cleaned, kind)
        rows = np.frombuffer(b"".join(stored[key] for key in keys), "<f4")
        return rows.reshape(len(keys), -1).astype(np.float32)

    def remember(self, texts: Sequence[str], kind: Kind, vectors: Vectors) -> None:
        """Store vectors (n, dim) of texts that the embedder computed elsewhere."""
        rows = (row.astype("<f4").tobytes() for row in vectors)
        self._cache.put(dict(zip(self._keys(checked_texts(texts, kind), kind), rows, strict=True)))

    def _keys(self, texts: Iterable[str], kind: Kind) -> list[bytes]:
        """Return a 16-byte key for each text.

        Every part is preceded by its length, so that different lists of parts give different keys.
        """
        options = {
            key: value for key, value in self.options.items() if key not in self.unkeyed_options
        }
        parts = (self.name, self.revision, json.dumps(options, sort_keys=True))
        common = hashlib.blake2b(digest_size=16)
        for part in (*parts, kind, self.prompt(kind)):
            common.update(_with_length(part))
        keys = []
        for text in texts:
            digest = common.copy()
            digest.update(_with_length(text))
            keys.append(digest.digest())
        return keys


def _with_length(part: str) -> bytes:
    content = part.encode("utf-8", "surrogatepass")
    return len(content).to_bytes(8, "little") + content
