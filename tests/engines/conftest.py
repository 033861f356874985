"""The folder and every engine behind one fixture: a place to publish to, and to read from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.postgres import postgres_server

_NAMES = itertools.count()
EXTRAS = {"duckdb": "duckdb", "lancedb": "lancedb", "qdrant": "qdrant_client"}
ENGINES = ["postgresql", *EXTRAS]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=ENGINES)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return what makes the URL of a copy that is not there yet."""
    engine: str = request.param
    if engine != "postgresql":
        pytest.importorskip(EXTRAS[engine], reason=f"pip install 'strop[{engine}]'")

    def make() -> str:
        name = f"copy{next(_NAMES)}"
        if engine == "postgresql":
            return f"{request.getfixturevalue('postgres')}&table={name}"
        return f"{engine}://{tmp_path}/{name}"

    return make


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()
