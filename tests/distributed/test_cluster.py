"""Stages on shards: same results as an index folder, resumed after kills, nothing repeated."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from helpers.commands import strop
from helpers.shards import always_killed, killed_once, write_inputs

from strop import Index
from strop.distributed import neighbors
from strop.distributed.importing import import_shards
from strop.distributed.run import Cluster, Settings
from strop.distributed.runners import LocalRunner, Work
from strop.distributed.shards import Manifest, TaskResult
from strop.distributed.tasks import Task, perform
from strop.errors import BadInput, IndexBusy, StropError
from strop.io.stdlib_docs import EVERYDAY, read_stdlib
from strop.types import Document

WORDLLAMA = {"name": "wordllama", "options": {}}


@pytest.fixture(scope="module")
def docstrings() -> list[Document]:
    """Docstrings of the standard library; one is blank and two have the same text."""
    docstrings = [document for document in read_stdlib(EVERYDAY) if len(document.text) > 40][:320]
    docstrings[7] = Document("blank", "  ")
    docstrings[11] = Document("twin", docstrings[10].text, docstrings[10].title)
    return docstrings


@pytest.fixture(scope="module")
def corpus(docstrings: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), docstrings, 2)


def settings(corpus: Path, method: str = "exact") -> Settings:
    return Settings(str(corpus), WORDLLAMA, shard_documents=60, method=method)


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with references by exact neighbours and with sentences."""
    folder = tmp_path_factory.mktemp("run") / "shards"
    cluster = Cluster(folder, settings(corpus), LocalRunner(1))
    cluster.run("references")
    cluster.run("queries")
    return folder


def copy_without(finished: Path, folder: Path, *without: str) -> Path:
    """Copy a finished run without some of its stages."""
    return Path(shutil.copytree(finished, folder, ignore=shutil.ignore_patterns(*without)))


@pytest.fixture(scope="module")
def imported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of the finished run."""
    path = tmp_path_factory.mktemp("imported") / "index"
    result = import_shards(finished, path)
    assert (result.documents, result.references, result.embedded) == (320, 320, 0)
    return path


def all_references(index: Index) -> dict[str, object]:
    return {id_: index.references_of(id_) for id_ in index.ids()}


def manifest_lines(folder: Path) -> int:
    return sum(len(file.read_text().split("\n")) for file in folder.rglob("manifest.jsonl"))


def test_an_import_equals_an_index_of_the_same_corpus(
    finished: Path, imported: Path, docstrings: list[Document], tmp_path: Path
) -> None:
    shutil.copytree(imported, tmp_path / "imported")
    with Index.create(tmp_path / "built") as built, Index.open(tmp_path / "imported") as index:
        built.add(docstrings)
        built.sharpen()
        built.select_references(method="exact")
        assert index.ids() == built.ids()
        assert index.check() == []
        assert index.select_references() == 0  # nothing is out of date
        for id_ in built.ids():
            assert index.queries_of(id_) == built.queries_of(id_)
            expected, references = built.references_of(id_), index.references_of(id_)
            assert expected is not None
            assert references is not None
            # The last bits of a vector can depend on the other texts of its batch.
            assert references.silhouette == pytest.approx(expected.silhouette, abs=1e-6)
            assert [(it.id, it.cluster_size) for it in references.references] == [
                (it.id, it.cluster_size) for it in expected.references
            ]
        for text in ("join two paths", "copy a file with its metadata"):
            expected_hits, hits = built.search(text, k=20), index.search(text, k=20)
            assert expected_hits.ids.tolist() == hits.ids.tolist()
            np.testing.assert_allclose(expected_hits.scores, hits.scores, atol=1e-5)
        assert index.get(index.ids()[3]).metadata == {"place": 0}
    with ThreadPoolExecutor(1) as thread:
        with FileLock(tmp_path / "imported" / "writer.lock"):
            waiting_import = thread.submit(
                import_shards, finished, tmp_path / "imported", progress=None, wait=60
            )
            with pytest.raises(IndexBusy, match="--wait 60"):
                import_shards(finished, tmp_path / "imported")
            assert not waiting_import.done()
        assert waiting_import.result(60).documents == 320


def test_references_of_the_same_vectors_are_identical(
    finished: Path, imported: Path, tmp_path: Path
) -> None:
    shards = copy_without(finished, tmp_path / "shards", "references", "queries")
    assert import_shards(shards, tmp_path / "without").notes
    with Index.open(imported) as expected, Index.open(tmp_path / "without") as index:
        assert index.select_references(method="exact") == 320
        assert all_references(expected) == all_references(index)


def test_cells_reach_the_required_recall(
    corpus: Path, finished: Path, imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shards", "parts"):
        folder = copy_without(finished, tmp_path / name, "references", "queries")
        cluster = Cluster(folder, settings(corpus, "cells"), LocalRunner(1))
        cluster.run("references")
        assert cluster.ran == {"probes": 1, "references": 6}
        monkeypatch.setattr(neighbors, "READ_AT_ONCE", 2)  # merge lists from several parts
    for name, line in Manifest(tmp_path / "shards" / "references").lines.items():
        assert Manifest(tmp_path / "parts" / "references").lines[name]["files"] == line["files"]
    import_shards(tmp_path / "shards", tmp_path / "cells")
    counts = Manifest(tmp_path / "shards" / "probes").lines["all"]["counts"]
    assert 1 <= counts["probes"] < counts["cells"]
    with Index.open(imported) as exact, Index.open(tmp_path / "cells") as cells:
        numbers = exact.searcher.views.snapshot().numbers
        expected, _ = exact.catalog.references.lists(numbers, 100)
        found, _ = cells.catalog.references.lists(numbers, 100)
        pairs = zip(expected.tolist(), found.tolist(), strict=True)
        shares = [len(set(a) & set(b)) / len(a) for a, b in pairs if a[0] >= 0]
    assert np.mean(shares) >= 0.95


def test_only_new_inputs_are_processed(docstrings: list[Document], tmp_path: Path) -> None:
    corpus = write_inputs(tmp_path / "corpus", docstrings[:200], 2)
    folder = tmp_path / "shards"

    def run() -> dict[str, int]:
        cluster = Cluster(folder, settings(corpus), LocalRunner(1))
        cluster.run("references")
        cluster.run("queries")
        return cluster.ran

    assert run()["vectors"] == 4
    lines = manifest_lines(folder)
    assert run() == {}
    assert manifest_lines(folder) == lines
    rows = [json.dumps({"id": f"new {d.id}", "text": d.text}) for d in docstrings[200:250]]
    (corpus / "later.jsonl").write_text("\n".join(rows), "utf-8")
    # New documents can be references of old ones, so references are all selected again.
    assert run() == {"documents": 1, "vectors": 1, "buckets": 1, "references": 4, "queries": 1}
    (corpus / "later.jsonl").unlink()
    assert run() == {"references": 4}
    assert import_shards(folder, tmp_path / "index").documents == 200
    (folder / "vectors" / "00001-00000.parquet").unlink()
    assert run() == {"vectors": 1}


def test_the_task_of_a_killed_worker_is_repeated(
    corpus: Path, finished: Path, tmp_path: Path
) -> None:
    # Workers of this stage start fastest.
    folder = copy_without(finished, tmp_path / "shards", "vectors")

    class OneKill(LocalRunner):
        def run(
            self, folder: Path, tasks: Sequence[Task], work: Work = perform
        ) -> Iterator[tuple[Task, TaskResult]]:
            return super().run(folder, tasks, killed_once)

    Cluster(folder, settings(corpus), OneKill(2)).run("vectors")
    assert (folder / "killed-vectors").exists()
    lines, expected = Manifest(folder / "vectors").lines, Manifest(finished / "vectors").lines
    assert {name: line["files"] for name, line in lines.items()} == {
        name: line["files"] for name, line in expected.items()
    }
    assert not list(folder.rglob("*.tmp"))


def test_repeated_worker_deaths_end_the_run(tmp_path: Path) -> None:
    tasks = [Task("vectors", "a", "", {})]  # one worker at a time: starting them takes long
    with pytest.raises(StropError, match="workers keep dying over vectors a"):
        list(LocalRunner(2).run(tmp_path, tasks, always_killed))


def test_a_run_continues_from_the_manifest_after_a_killed_driver(
    corpus: Path, finished: Path, tmp_path: Path
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from strop.distributed.run import Cluster, Settings
from strop.distributed.runners import LocalRunner

def kill(stage, done, total):
    if stage == "references" and done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

settings = Settings(sys.argv[1], {"name": "wordllama", "options": {}}, shard_documents=60,
                    method="exact")
Cluster(Path(sys.argv[2]), settings, LocalRunner(1), kill).run("references")
"""
    folder = copy_without(finished, tmp_path / "shards", "references")
    before = manifest_lines(folder)
    command = [sys.executable, "-c", code, str(corpus), str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert manifest_lines(folder) == before + 2
    with open(folder / "references" / "manifest.jsonl", "a") as file:
        file.write('\n{"task": "00002", "ke')  # a line that was cut off
    cluster = Cluster(folder, settings(corpus), LocalRunner(1))
    cluster.run("references")
    assert cluster.ran == {"references": 4}
    for name, line in Manifest(finished / "references").lines.items():
        assert Manifest(folder / "references").lines[name]["files"] == line["files"]


def test_one_driver_at_a_time(corpus: Path, tmp_path: Path) -> None:
    with FileLock(tmp_path / "driver.lock"), pytest.raises(IndexBusy, match="another run"):
        Cluster(tmp_path, settings(corpus), LocalRunner(1)).run("vectors")


def test_an_id_in_two_inputs_is_refused(docstrings: list[Document], tmp_path: Path) -> None:
    corpus = write_inputs(tmp_path / "corpus", docstrings[:20], 1)
    write_inputs(corpus, [docstrings[3]], 1).joinpath("part-00000.jsonl").rename(corpus / "z.jsonl")
    write_inputs(corpus, docstrings[:20], 1)
    Cluster(tmp_path / "shards", settings(corpus), LocalRunner(1)).run("vectors")
    with pytest.raises(BadInput, match="is in two inputs"):
        import_shards(tmp_path / "shards", tmp_path / "index")


def test_unsafe_settings_in_a_folder_are_refused(corpus: Path, tmp_path: Path) -> None:
    unsafe = {"name": "st:some/model", "options": {"trust_remote_code": True}}
    Settings(str(corpus), unsafe).write(tmp_path)
    result = strop("cluster", "import", tmp_path, tmp_path / "index")
    assert result.code == 1
    assert "trust_remote_code=True" in result.stderr
    assert strop("cluster", "run", corpus, "-o", tmp_path).code == 1
