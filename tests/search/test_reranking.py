"""Reranking with a function and with a real cross-encoder, in search and evaluation."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import fakes

from strop import Dataset, Index, evaluate
from strop.errors import BadInput
from strop.search.reranking import split_rerank


def create(path: Path) -> Index:
    index = fakes.create(path)
    texts = ("an old dog", "a dog and a cat", "a cat sleeps", "the sea is blue")
    index.add({"id": f"d{i}", "text": text} for i, text in enumerate(texts))
    index.sharpen("sentences")
    return index


def longest_first(pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [len(text) for _, text in pairs]


def test_a_function_as_reranker(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        hits = index.search(["old dog", "cat"], 2, rerank=longest_first)
        assert hits.ids.tolist() == [["d1", "d3"]] * 2
        assert hits.scores.tolist() == [[15, 15]] * 2
        assert [hit.text for hit in hits[0]] == ["a dog and a cat", "the sea is blue"]
        with pytest.raises(BadInput, match="give texts, not vectors alone"):
            index.search(index.embed_queries(["dog"]), rerank=longest_first)
        with pytest.raises(BadInput, match="returned 1 scores for 4 texts"):
            index.search("dog", rerank=lambda pairs: [0.5])


def test_a_cross_encoder_in_evaluation_and_search(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    model = str(tiny_cross_encoder(tmp_path / "model"))
    spec = f"rerank:of=sharp:alpha=2:model={model}"
    data = Dataset("tiny", {"q": "old dog"}, {"q": {"d0": 1}})
    with create(tmp_path / "index") as index:
        report = evaluate(index, data, ["sharp", spec])
        assert report.settings[spec].alpha == 2
        hits = index.search("old dog", 4, rerank=model)
        assert [id_ for id_, _ in report.runs[spec]["q"]] == hits.ids[0].tolist()
        assert sorted(hits.ids[0]) == ["d0", "d1", "d2", "d3"]
        with pytest.raises(BadInput, match="is no cross-encoder that can be loaded"):
            index.search("old dog", rerank=str(tmp_path / "nothing"))


def tiny_cross_encoder(path: Path) -> Path:
    """Write a small BERT with random weights that scores pairs, in the format of a model hub."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers: Any = importlib.import_module("transformers")  # its types are incomplete

    path.mkdir()
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] an a old dog and cat sleeps the sea is blue".split()
    (path / "vocab.txt").write_text("\n".join(words), "utf-8")
    transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=1,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path


def test_reranking_specs() -> None:
    assert split_rerank("rerank:of=sharp:model=a/b") == ("sharp", "a/b")
    assert split_rerank("rerank:of=bm25:sets=simple:model=st:x:y") == ("bm25:sets=simple", "st:x:y")
    for spec in ("rerank:model=x", "rerank:of=sharp", "rerank:of=sharp:model="):
        with pytest.raises(BadInput, match="write it like rerank:of=METHOD:model=NAME"):
            split_rerank(spec)
