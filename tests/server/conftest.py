"""One server for the tests of this folder, with documents that have metadata or hostile text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.strop_server import WRITE_KEY, RunningServer, serving

from strop import Index
from strop.types import Document

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
HOSTILE = [
    Document(SCRIPT, f"Text with markup. {SCRIPT}", SCRIPT, {"note": SCRIPT, SCRIPT: 1}),
    Document("../../etc/passwd", "A document whose id looks like a path.", "Path"),
    Document("a/b c?d#e%20f", "An id with every mark that an address has.", "Marks"),
    Document("ünïcode ✓", "Ein Dokument mit Umlauten.", "Zeichen"),
]
DATED = [
    Document(f"note-{year}", f"A note about folders, written in {year}.", "Note", {"year": year})
    for year in range(2015, 2025)
]


@pytest.fixture(scope="session")
def served(_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index folder that the server serves."""
    path = Path(shutil.copytree(_built, tmp_path_factory.mktemp("served") / "docs.index"))
    with Index.open(path) as index:
        index.add([*HOSTILE, *DATED])
        index.select_references()
    return path


@pytest.fixture(scope="session")
def running(served: Path) -> Iterator[RunningServer]:
    """A server on loopback with a write key; reading needs none."""
    with serving(served, keys=f"write:{WRITE_KEY}") as server:
        yield server


@pytest.fixture
def opened(served: Path) -> Iterator[Index]:
    """The same index, opened in this process to compare results."""
    with Index.open(served) as index:
        yield index


@pytest.fixture(scope="session")
def copy_url(served: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a published copy of the index."""
    pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    url = f"duckdb://{tmp_path_factory.mktemp('copy')}/docs.duckdb"
    with Index.open(served) as index:
        index.publish(url)
    return url


@pytest.fixture(scope="session")
def copy(copy_url: str) -> Iterator[RunningServer]:
    """A server of that copy."""
    with serving(copy_url, keys=f"write:{WRITE_KEY}") as server:
        yield server
