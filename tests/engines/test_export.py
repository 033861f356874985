"""Exporting vectors to a file, and the commands that publish and read copies."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import strop
from helpers.fakes import create, vectors_of

from strop.engines.base import sortable_bytes
from strop.engines.export import Form, export
from strop.errors import BadInput

TEXTS = {"a": "The fox jumps. It runs far.", "b": "One owl.", "empty": ""}


def embedded(id_: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the vectors of a document and its sentences, from the embedder."""
    sentences = [f"{sentence.strip('.')}." for sentence in TEXTS[id_].split(". ") if sentence]
    return vectors_of([TEXTS[id_], *sentences], "document")


@pytest.mark.parametrize("ending", [".parquet", ".npy", ".jsonl"])
@pytest.mark.parametrize("form", ["indexsharp", "rows"])
def test_exported_vectors_can_be_read(tmp_path: Path, ending: str, form: Form) -> None:
    path = tmp_path / f"vectors{ending}"
    with create(tmp_path / "index") as index:
        index.sharpen()
        index.add({"id": id_, "text": text, "n": len(text)} for id_, text in TEXTS.items())
        count = export(index.searcher, path, form)
    if ending == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'strop[parquet]'")
        rows = parquet.read_table(path).to_pylist()
        rows = [{**row, "metadata": json.loads(row["metadata"])} for row in rows]
    else:
        name = "vectors.jsonl" if ending == ".jsonl" else "vectors.npy.ids.jsonl"
        lines = (tmp_path / name).read_text("utf-8").splitlines()
        rows = list(map(json.loads, lines))
        if ending == ".npy":
            rows = [{**row, "vector": own} for row, own in zip(rows, np.load(path), strict=True)]
    assert len(rows) == count
    assert not list(tmp_path.glob("*.new"))
    assert {(row["id"], row["metadata"]["n"]) for row in rows} == {
        (id_, len(text)) for id_, text in TEXTS.items()
    }
    for id_ in TEXTS:
        vectors = np.array([row["vector"] for row in rows if row["id"] == id_])
        expected_rows = embedded(id_)
        if form == "rows":
            np.testing.assert_allclose(vectors, expected_rows, atol=1e-6)
        elif id_ != "empty":
            sharpened = expected_rows[0] + expected_rows[1:].mean(axis=0)
            np.testing.assert_allclose(vectors[0], sharpened / np.linalg.norm(sharpened), atol=1e-6)


def test_augmented_vectors_are_exported(tmp_path: Path) -> None:
    with create(tmp_path / "index") as index:
        index.add({"id": id_, "text": text} for id_, text in TEXTS.items())
        index.import_queries({"a": ["who runs"], "b": ["who sees"]}, "simple")
        with pytest.raises(BadInput, match="augment"):
            export(index.searcher, tmp_path / "x.npy", "augmented", sets=["simple"])
        index.augment("simple")
        assert export(index.searcher, tmp_path / "x.npy", "augmented", sets=["simple"]) == 3
        expected = vectors_of([f"{TEXTS['a']} who runs", f"{TEXTS['b']} who sees"], "document")
        np.testing.assert_allclose(np.load(tmp_path / "x.npy")[:2], expected, atol=1e-6)
        with pytest.raises(BadInput, match=r"\.parquet"):
            export(index.searcher, tmp_path / "x.csv")


def test_the_commands_for_copies(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    folder, url = tmp_path / "my.index", f"duckdb://{tmp_path}/copy.duckdb"
    lines = [json.dumps({"id": id_, "text": text}) for id_, text in TEXTS.items()]
    assert strop("build", "-", "-o", folder, "--format", "jsonl", stdin="\n".join(lines)).code == 0
    assert strop("publish", folder, url, "--dry-run", "--json").json["new"] == 3
    assert strop("search", url, "fox").code == 1
    assert strop("publish", folder, url, "--json").json["new"] == 3
    assert f"Published to {url}: 0 new, 0 changed, 0 removed; 3 doc" in (
        strop("publish", folder, url).stdout.replace("\n", " ")
    )
    folder_hits, copy_hits = (
        strop("search", source, "a fox", "--json").json for source in (folder, url)
    )
    assert folder_hits == copy_hits
    assert strop("search", url, "a fox", "--explain").code == 0
    assert strop("info", url, "--json").json["documents"] == 3
    assert "duckdb" in strop("info", url).stdout
    assert strop("check", url).stdout == "No damage found\n"
    assert strop("show", url, "a", "--json").json["text"] == TEXTS["a"]
    assert strop("trust", url).code == 0
    result = strop("add", url, folder)
    assert result.code == 2
    assert "published copy" in result.stderr
    corpus = tmp_path / "v.jsonl"
    corpus.write_text("mine")
    result = strop("export", folder, "-o", tmp_path / "v.npy")
    assert "3 vectors in" in result.stdout
    assert "v.npy.ids.jsonl" in result.stdout
    assert corpus.read_text() == "mine"


def test_the_examples_of_the_engines_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb", reason="pip install 'strop[duckdb]'")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/engines.md", "exec"), {})


def test_sortable_bytes_order_like_numbers() -> None:
    numbers = [
        -float("inf"), -1e300, -(2**62) - 1, -(2**62), -1.5, -1, 0, 5e-324, 0.5, 1, 2**53,
        2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, 1e300, float("inf"),
    ]  # fmt: skip
    coded = [sortable_bytes("number", number) for number in numbers]
    assert coded == sorted(set(coded))
    assert sortable_bytes("number", -0.0) == sortable_bytes("number", 0)
    assert sortable_bytes("number", 1.0) == sortable_bytes("number", 1)
