"""Async tests of the frameworks' suites run on asyncio; no framework reports its use."""

from __future__ import annotations

import os

import pytest

# Read when the framework is imported.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["PT_TEST_TRANSFORMER_REPORTS"] = "0"  # they come as warnings


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
