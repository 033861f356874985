"""Which tests of the contract suite belong to the quick run: all on PostgreSQL, some on others."""

from __future__ import annotations

import pytest

QUICK = {
    "test_a_copy_ranks_as_its_folder",
    "test_documents_that_are_cut",
    "test_only_what_changed_is_published",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        engine = None if call is None else call.params.get("url")
        if engine in (None, "postgresql"):
            continue
        if engine == "qdrant" or getattr(item, "originalname", "") not in QUICK:
            item.add_marker(pytest.mark.slow)
