"""Writing files, error messages of readers, TREC runs."""

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


def error_message(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the message of the BadInput that a call, or iterating its result, raises."""
    with pytest.raises(BadInput) as caught:
        list(call(*args, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def corpus_error(path: Path, content: str | bytes, **options: Any) -> str:
    return error_message(read_corpus, put(path, content), **options)


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a TREC run as ``run[query id][document id] = score``, in the file's order."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    run: dict[str, dict[str, float]] = {}
    for line in text.decode().split("\n")[:-1]:
        query, _, document, _, score, _ = line.split(" ")
        run.setdefault(query, {})[document] = float(score)
    return run
