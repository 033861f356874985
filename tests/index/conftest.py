"""An index of three animals, a new one for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.animals import ANIMALS
from helpers.fakes import Bag, create

from strop import Index


@pytest.fixture
def bag() -> Bag:
    return Bag()


@pytest.fixture
def index(tmp_path: Path, bag: Bag) -> Iterator[Index]:
    """An index of three animals, without query sets."""
    with create(tmp_path / "index", bag) as index:
        index.add(ANIMALS)
        bag.count = 0
        yield index
