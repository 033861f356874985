"""Published copies of an index in databases: PostgreSQL, Qdrant, LanceDB, DuckDB.

The folder is the source of truth. ``publish`` updates a copy. ``Published`` searches it without the
folder: ``copies.py`` decides how many documents the engine proposes and fetches, and scores them by
``search.scoring``; ``search/ranking.py`` ranks them. To add an engine, implement ``Engine``
(base.py) in a new file, add its scheme to ``ENGINES`` below, and an extra with the module's name.
Engines do not know methods, BM25 or embedders; only the SQL functions for users without strop
(``postgres_sql.py``, ``duckdb.py``) repeat the formula.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from strop.common.text import is_url
from strop.engines.base import Address, Engine
from strop.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from strop.engines.published import Published
    from strop.storage.intake import EmbedderSpec

ENGINES = {
    **dict.fromkeys(("postgresql", "postgres"), "postgres.Postgres"),
    **dict.fromkeys(("qdrant", "qdrant+http", "qdrant+https"), "qdrant.Qdrant"),
    **dict.fromkeys(("lancedb", "lancedb+s3", "lancedb+gs", "lancedb+az"), "lancedb.LanceDB"),
    "duckdb": "duckdb.DuckDB",
}
"""The module and the class of the engine, by URL scheme."""


def open_engine(url: str) -> Engine:
    """Return the engine of a URL; it connects when it is first used."""
    address = Address.read(url)
    if address.scheme not in ENGINES:
        near = get_close_matches(address.scheme, ENGINES, 1)
        if (kind := Path(url).suffix[1:]) in ("duckdb", "lancedb") and ":" not in url:
            raise BadInput(f"{url} is not a URL: write {kind}://{url}")
        hint = f". Did you mean {near[0]}{address.shown[len(address.scheme) :]}?" if near else ""
        raise BadInput(
            f"no engine for {address.shown}: a URL begins with postgresql://, qdrant://,"
            f" lancedb://, lancedb+s3:// or duckdb://{hint}"
        )
    if not is_url(url):
        raise BadInput(f"the URL of a copy begins with {address.scheme}://, with two slashes")
    if address.options and not address.scheme.startswith("postgres"):
        raise BadInput(f"{address.shown}: only PostgreSQL has ?table= and ?schema=")
    if not (address.parts.netloc or address.parts.path):
        raise BadInput(f"{address.shown} names no place: {address.scheme}://PLACE")
    module, _, name = ENGINES[address.scheme].partition(".")
    try:
        engine = import_module(f"strop.engines.{module}")  # with the driver of the database
    except ImportError as error:
        if (error.name or "").startswith("strop"):
            raise
        raise MissingExtra(f"{address.scheme}://", module) from error
    return cast(Engine, getattr(engine, name)(address))


def open_copy(
    url: str | os.PathLike[str], embedder: EmbedderSpec | None = None, /, **options: Any
) -> Published:
    """Open a published copy for reading (``strop.connect``)."""
    from strop.engines.published import Published

    return Published(open_engine(str(url)), embedder, **options)
