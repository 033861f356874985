"""Published copies of an index in databases: PostgreSQL, Qdrant, LanceDB, DuckDB.

The folder is the truth. ``publish`` brings a copy up to date, and ``Published`` searches it
without the folder: the engine proposes and fetches, ``search.scoring`` scores. A new engine is one
more file that implements ``Engine`` (base.py), and its scheme in ``ENGINES``. It knows nothing of
methods, words or embedders.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from strop.engines.base import Address, Engine
from strop.errors import BadInput

if TYPE_CHECKING:
    from strop.engines.published import Published
    from strop.storage.intake import EmbedderSpec

ENGINES = {
    "postgresql": "postgres", "postgres": "postgres", "qdrant": "qdrant", "qdrant+http": "qdrant",
    "qdrant+https": "qdrant", "lancedb": "lancedb", "duckdb": "duckdb",
    "lancedb+s3": "lancedb", "lancedb+gs": "lancedb", "lancedb+az": "lancedb",
}  # fmt: skip
"""The module of each scheme of a URL."""


def open_engine(url: str) -> Engine:
    """Return the engine that a URL names; it connects when it is first used."""
    address = Address.read(url)
    if address.scheme not in ENGINES:
        raise BadInput(
            f"no engine for {address.shown}: a URL begins with postgresql://, qdrant://,"
            " lancedb://, lancedb+s3:// or duckdb://"
        )
    if address.options and not address.scheme.startswith("postgres"):
        raise BadInput(f"{address.shown}: only PostgreSQL has ?table= and ?schema=")
    if not (address.parts.netloc or address.parts.path):
        raise BadInput(f"{address.shown} names no place: {address.scheme}://PLACE")
    module = import_module(f"strop.engines.{ENGINES[address.scheme]}")
    return cast(Engine, module.connect(address))


def open_copy(
    url: str | os.PathLike[str], embedder: EmbedderSpec | None = None, /, **options: Any
) -> Published:
    """Open a published copy for reading (``strop.connect``)."""
    from strop.engines.published import Published

    return Published(open_engine(str(url)), embedder, **options)
