"""Files with a given content, and the errors of readers."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strop.errors import BadInput
from strop.io.corpora import read_corpus


def put(path: Path, content: str | bytes) -> Path:
    """Write a file, gzipped if its name says so."""
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def complaint(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the message of the BadInput that a call, or iterating its result, raises."""
    with pytest.raises(BadInput) as caught:
        list(call(*args, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def refused(path: Path, content: str | bytes, **options: Any) -> str:
    return complaint(read_corpus, put(path, content), **options)
