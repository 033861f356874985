"""A file that remembers vectors, so that no text is embedded twice with the same model."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from strop.embed.base import Embedder, Options, checked_texts
from strop.types import Kind, Vectors

_CHUNK = 256
_LOOKUP = 500  # SQLite before 3.32 allows 999 parameters in a statement
_BUSY_SECONDS = 10


def default_path() -> Path | None:
    """Where vectors are kept if nothing else is said; None when STROP_CACHE is "off".

    The folder is STROP_CACHE, else the user's cache folder on this system.
    """
    chosen = os.environ.get("STROP_CACHE")
    if chosen == "off":
        return None
    if chosen:
        folder = Path(chosen).expanduser()
    elif sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        folder = Path(os.environ["LOCALAPPDATA"]) / "strop"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strop"
    return folder / "embeddings.sqlite"


class CachedEmbedder:
    """An embedder in front of which a SQLite file remembers vectors.

    Keys cover the model, its revision and options, the kind, the prompt and the text. New
    vectors are committed every 256 texts, so a killed run loses at most that many. Several
    threads and processes may use one file. A file that cannot be read or written costs a
    warning and the remembering, never the embedding.
    """

    worth_caching = False

    def __init__(self, embedder: Embedder, path: str | os.PathLike[str]) -> None:
        self.embedder = embedder
        self.path = Path(path)
        self.hits = 0
        self.misses = 0
        self._broken = False
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The spec that loads the embedder."""
        return self.embedder.name

    @property
    def revision(self) -> str:
        """The revision of the embedder."""
        return self.embedder.revision

    @property
    def options(self) -> Options:
        """The options that load the embedder."""
        return self.embedder.options

    @property
    def unkeyed_options(self) -> frozenset[str]:
        """The options of the embedder that do not change vectors."""
        return getattr(self.embedder, "unkeyed_options", frozenset())

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.embedder.dim

    def prompt(self, kind: Kind) -> str:
        """The text that the embedder puts before an input of this kind."""
        return self.embedder.prompt(kind)

    def embed(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Embed n texts, float32 (n, dim), asking the embedder only for the new ones."""
        cleaned = checked_texts(texts, kind)
        if not cleaned:
            return self.embedder.embed([], kind)
        keys = self._keys(cleaned, kind)
        found = self._read(dict.fromkeys(keys))
        new = {key: text for key, text in zip(keys, cleaned, strict=True) if key not in found}
        # Texts of like length side by side: a model pads a batch to its longest text.
        todo = sorted(new, key=lambda key: len(new[key]))
        for start in range(0, len(todo), _CHUNK):
            chunk = todo[start : start + _CHUNK]
            rows = self.embedder.embed([new[key] for key in chunk], kind)
            fresh = dict(zip(chunk, rows, strict=True))
            self._write(fresh)
            found.update(fresh)
        with self._lock:
            self.hits += len(cleaned) - len(todo)
            self.misses += len(todo)
        if len({len(row) for row in found.values()}) > 1:
            self._give_up(ValueError("it holds vectors of another length"), stacklevel=3)
            return self.embedder.embed(cleaned, kind)
        return np.stack([found[key] for key in keys])

    def _keys(self, texts: Iterable[str], kind: Kind) -> list[bytes]:
        """A 16-byte key for each text. Every part is preceded by its length, so that no two
        different lists of parts read the same."""
        unkeyed: frozenset[str] = getattr(self.embedder, "unkeyed_options", frozenset())
        options = {key: value for key, value in self.options.items() if key not in unkeyed}
        parts = (self.name, self.revision, json.dumps(options, sort_keys=True))
        common = hashlib.blake2b(digest_size=16)
        for part in (*parts, kind, self.prompt(kind)):
            common.update(_measured(part))
        keys = []
        for text in texts:
            digest = common.copy()
            digest.update(_measured(text))
            keys.append(digest.digest())
        return keys

    def _read(self, keys: Iterable[bytes]) -> dict[bytes, Vectors]:
        """The remembered vectors, each of shape (dim,), by key."""
        found: dict[bytes, Vectors] = {}
        wanted = list(keys)
        if self._broken:
            return found
        try:
            with closing(self._connect()) as connection:
                for start in range(0, len(wanted), _LOOKUP):
                    part = wanted[start : start + _LOOKUP]
                    marks = ",".join("?" * len(part))
                    found.update(
                        (key, np.frombuffer(blob, "<f4").astype(np.float32, copy=False))
                        for key, blob in connection.execute(
                            f"SELECT key, vector FROM vectors WHERE key IN ({marks})", part
                        )
                    )
        except (sqlite3.Error, OSError, ValueError) as error:
            self._give_up(error)
            return {}
        return found

    def _write(self, vectors: dict[bytes, Vectors]) -> None:
        if self._broken:
            return
        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in vectors.items()]
        try:
            with closing(self._connect()) as connection, connection:
                connection.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def _connect(self) -> sqlite3.Connection:
        """A connection for one use: cheap beside an embedding, and no thread owns it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS vectors"
                    " (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
                )
                return connection
            except sqlite3.Error as error:
                connection.close()
                # Two processes that make a new file at once: SQLite refuses one without waiting.
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _give_up(self, error: Exception, stacklevel: int = 4) -> None:
        with self._lock:
            if self._broken:
                return
            self._broken = True
        warnings.warn(
            f"going on without the embedding cache {self.path}: {error} "
            "(delete the file, or set STROP_CACHE=off)",
            stacklevel=stacklevel,
        )


def _measured(part: str) -> bytes:
    content = part.encode("utf-8", "surrogatepass")
    return len(content).to_bytes(8, "little") + content
