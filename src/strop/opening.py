"""Opens an index folder, or a published copy of one by its URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.common.text import is_url
from strop.engines import ENGINES, open_copy
from strop.errors import BadInput
from strop.index import Index
from strop.storage.intake import CATALOG, EmbedderSpec

if TYPE_CHECKING:
    from strop.engines.published import Published


def connect(
    target: str | os.PathLike[str], /, embedder: EmbedderSpec | None = None, **options: Any
) -> Index | Published:
    """Open an index folder, or a published copy by its URL (docs/engines.md)."""
    scheme, colon, _ = str(target).partition(":")
    path = Path(target)
    if (kind := path.suffix[1:]) in ENGINES and path.exists() and not (path / CATALOG).exists():
        raise BadInput(f"{path} is not an index. If it is a published copy, write {kind}://{path}")
    opened = open_copy if is_url(target) or (colon and scheme in ENGINES) else Index.open
    return opened(target, embedder, **options)
