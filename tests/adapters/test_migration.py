"""docs/adapters/sentence-transformers.md: plain search is what util.semantic_search does."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop import Document, Index


@pytest.mark.filterwarnings("ignore")  # warnings of its imports
def test_plain_search_ranks_as_semantic_search(documents: list[Document], index: Path) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    queries = ["join two paths", "remove a folder", "change to upper case"]
    with Index.open(index) as opened:
        rows = opened.embedder.embed([document.content for document in documents], "document")
        theirs = util.semantic_search(opened.embed_queries(queries), rows, top_k=5)
        ours = opened.search(queries, 5, "trad", exact=True)
    for expected, ids, scores in zip(theirs, ours.ids, ours.scores, strict=True):
        assert ids.tolist() == [documents[hit["corpus_id"]].id for hit in expected]
        assert scores.tolist() == pytest.approx([hit["score"] for hit in expected], abs=1e-5)
