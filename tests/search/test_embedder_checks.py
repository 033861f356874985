"""Words weigh more if the embedder does not know the documents' language; the contrast rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from strop import Index
from strop.methods import WORDS_OTHERS, WORDS_UNKNOWN_LANGUAGE
from strop.search.embedder_checks import nearer_own
from strop.types import Vectors

DIM = 32


def embed_by_first_word(texts: list[str]) -> Vectors:
    """Return similar vectors for texts with the same first word."""
    seeds = [np.random.default_rng(crc32(text.split()[0].encode())) for text in texts]
    return np.array([rng.normal(size=DIM) for rng in seeds], np.float32)


def embed_at_random(texts: list[str]) -> Vectors:
    """Return an unrelated vector for each text."""
    seeds = [np.random.default_rng(crc32(text.encode())) for text in texts]
    return np.array([rng.normal(size=DIM) for rng in seeds], np.float32)


def pages(count: int) -> list[dict[str, str]]:
    return [
        {"id": str(n), "text": f"Tree{n} grows here. Tree{n} has leaves. Tree{n} is old."}
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("embedder", "words"),
    [(embed_by_first_word, WORDS_OTHERS), (embed_at_random, WORDS_UNKNOWN_LANGUAGE)],
)
def test_words_weight_depends_on_whether_the_embedder_knows_the_language(
    embedder: Callable[[list[str]], Vectors], words: float, tmp_path: Path
) -> None:
    with Index.create(tmp_path / "index", embedder, name="mine", dim=DIM) as index:
        index.sharpen("sentences")
        index.add(pages(120))
        assert index.method("sharp").words == words
        assert index.method("sharp:words=0.7").words == 0.7
        index.remove([str(n) for n in range(40)])
        assert index.method("sharp").words == WORDS_OTHERS  # too few documents to decide


def test_without_sentences_the_default_weight_is_used(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", embed_at_random, name="mine", dim=DIM) as index:
        index.add(pages(120))
        index.import_queries({"1": ["what grows"]}, "simple")
        assert index.method("sharp").words == WORDS_OTHERS


def test_a_copy_keeps_the_words_weight_of_its_index(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    from strop import connect

    with Index.create(tmp_path / "index", embed_at_random, name="mine", dim=DIM) as index:
        index.sharpen("sentences")
        index.add(pages(120))
        index.publish(f"duckdb://{tmp_path}/copy.duckdb")
    with connect(f"duckdb://{tmp_path}/copy.duckdb", embed_at_random, name="mine", dim=DIM) as copy:
        assert copy.method("sharp").words == WORDS_UNKNOWN_LANGUAGE


def test_nearer_own_compares_with_every_reference() -> None:
    queries = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.6]], np.float32)
    own = np.array([2, 0], np.float32)
    references = np.array([[0, 3], [0.1, 0.1]], np.float32)
    assert nearer_own(queries, own, references).tolist() == [True, False, False, False]
    assert nearer_own(queries, own, references[:1]).tolist() == [True, False, True, False]
    assert nearer_own(queries, own, references[:0]).all()
    assert not len(nearer_own(queries[:0], own, references))
