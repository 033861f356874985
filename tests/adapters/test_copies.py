"""Every adapter searches an index, its folder, a published copy and its URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.animals import ANIMALS

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = os.environ["LANGSMITH_TRACING"] = "false"
pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
haystack = pytest.importorskip("strop.adapters.haystack", exc_type=ImportError)
langchain = pytest.importorskip("strop.adapters.langchain", exc_type=ImportError)
llamaindex = pytest.importorskip("strop.adapters.llamaindex", exc_type=ImportError)
pyterrier = pytest.importorskip("strop.adapters.pyterrier", exc_type=ImportError)

from strop import Index, connect  # noqa: E402

QUERY = "who sees at night"
Find = Callable[[Any], list[str]]


def _haystack(index: Any) -> list[str]:
    store = haystack.StropDocumentStore.from_dict(haystack.StropDocumentStore(index).to_dict())
    documents = haystack.StropTextRetriever(store, top_k=3).run(QUERY)["documents"]
    return [document.id for document in documents]


FINDERS: dict[str, Find] = {
    "LangChain retriever": lambda index: [
        document.id for document in langchain.StropRetriever(index=index, k=3).invoke(QUERY)
    ],
    "LangChain store": lambda index: [
        document.id for document in langchain.StropVectorStore(index).similarity_search(QUERY, 3)
    ],
    "Haystack": _haystack,
    "LlamaIndex retriever": lambda index: [
        node.node_id for node in llamaindex.StropRetriever(index, 3).retrieve(QUERY)
    ],
    "LlamaIndex store": lambda index: [
        hit.id for hit in llamaindex.StropVectorStore(index).client.search(QUERY, 3)[0]
    ],
    "PyTerrier": lambda index: list(
        pyterrier.StropRetriever(index, num_results=3).search(QUERY)["docno"]
    ),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The same documents as an index, a folder, a copy and a URL."""
    path: Path = tmp_path_factory.mktemp("animals") / "animals.index"
    with Index.create(path) as index:
        index.add(ANIMALS)
        index.sharpen()
        url = f"duckdb://{path.parent}/animals.duckdb"
        index.publish(url)
        with connect(url) as copy:
            yield {"index": index, "folder": str(path), "path": path, "copy": copy, "url": url}


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("place", ["index", "folder", "path", "copy", "url"])
def test_every_kind_of_index_is_searched(places: dict[str, Any], finder: str, place: str) -> None:
    expected = [hit.id for hit in places["index"].search(QUERY, 3)[0]]
    assert FINDERS[finder](places[place]) == expected


def test_writing_to_a_copy_is_refused(places: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="read only"):
        langchain.StropVectorStore(places["url"]).add_texts(["text"])
    with pytest.raises(ValueError, match="read only"):
        llamaindex.StropVectorStore(places["url"]).clear()
    with pytest.raises(haystack.DocumentStoreError, match="read only"):
        haystack.StropDocumentStore(places["url"]).delete_all_documents()
    with pytest.raises(haystack.DocumentStoreError, match="read only"):
        haystack.StropDocumentStore(places["url"]).write_documents([])
