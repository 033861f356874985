"""Words count more where the embedder does not know the documents' language; the contrast rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from strop import Index
from strop.methods import WORDS_OTHER_LANGUAGE, WORDS_OTHERS
from strop.search.embedder_checks import nearer_own
from strop.types import Vectors

DIM = 32


def knowing(texts: list[str]) -> Vectors:
    """Texts that begin alike are near each other."""
    seeds = [np.random.default_rng(crc32(text.split()[0].encode())) for text in texts]
    return np.array([rng.normal(size=DIM) for rng in seeds], np.float32)


def lacking(texts: list[str]) -> Vectors:
    """Every text is somewhere else."""
    seeds = [np.random.default_rng(crc32(text.encode())) for text in texts]
    return np.array([rng.normal(size=DIM) for rng in seeds], np.float32)


def pages(count: int) -> list[dict[str, str]]:
    return [
        {"id": str(n), "text": f"Tree{n} grows here. Tree{n} has leaves. Tree{n} is old."}
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("embedder", "words"), [(knowing, WORDS_OTHERS), (lacking, WORDS_OTHER_LANGUAGE)]
)
def test_stored_vectors_tell_whether_the_embedder_lacks_the_language(
    embedder: Callable[[list[str]], Vectors], words: float, tmp_path: Path
) -> None:
    with Index.create(tmp_path / "index", embedder, name="mine", dim=DIM) as index:
        index.sharpen("sentences")
        index.add(pages(120))
        assert index.method("sharp").words == words
        assert index.method("sharp:words=0.7").words == 0.7
        index.remove([str(n) for n in range(40)])
        assert index.method("sharp").words == WORDS_OTHERS  # too few to tell


def test_without_sentences_the_embedder_is_trusted(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", lacking, name="mine", dim=DIM) as index:
        index.add(pages(120))
        index.import_queries({"1": ["what grows"]}, "simple")
        assert index.method("sharp").words == WORDS_OTHERS


def test_a_copy_keeps_what_its_index_found(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    from strop import connect

    with Index.create(tmp_path / "index", lacking, name="mine", dim=DIM) as index:
        index.sharpen("sentences")
        index.add(pages(120))
        index.publish(f"duckdb://{tmp_path}/copy.duckdb")
    with connect(f"duckdb://{tmp_path}/copy.duckdb", lacking, name="mine", dim=DIM) as copy:
        assert copy.method("sharp").words == WORDS_OTHER_LANGUAGE


def test_nearer_own_compares_with_every_reference() -> None:
    queries = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.6]], np.float32)
    own = np.array([2, 0], np.float32)
    references = np.array([[0, 3], [0.1, 0.1]], np.float32)
    assert nearer_own(queries, own, references).tolist() == [True, False, False, False]
    assert nearer_own(queries, own, references[:1]).tolist() == [True, False, True, False]
    assert nearer_own(queries, own, references[:0]).all()
    assert not len(nearer_own(queries[:0], own, references))
