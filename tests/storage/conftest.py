"""What tests that kill processes share: a folder in memory, and a server that forks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.fakes import memory

if TYPE_CHECKING:  # not every system forks
    from helpers.crashes import Forks


@pytest.fixture(scope="module")
def fast() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="strop-test-", dir=memory()) as folder:
        yield Path(folder)


@pytest.fixture
def scratch(fast: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    from helpers.crashes import Forks

    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()
