"""A scripted service of language models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.lm import serving
from helpers.scripted_server import ScriptedServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A scripted server, and an environment without keys and addresses."""
    with serving(monkeypatch) as running:
        yield running
