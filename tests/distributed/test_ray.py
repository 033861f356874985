"""50,000 real sentences on Ray with two workers: same results as an index despite kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from helpers.shards import write_inputs

from strop import Index
from strop.distributed.importing import import_shards
from strop.distributed.run import finished_buckets
from strop.distributed.shards import Manifest, padded, read_table, rows_in
from strop.io.corpora import read_corpus
from strop.io.sentences import title_and_sentences
from strop.types import Document

DOCUMENTS = int(os.environ.get("STROP_CLUSTER_DOCUMENTS", 50_000))
DRIVER = """
import os, signal, sys
from functools import partial
from pathlib import Path
from helpers.shards import killed_once
from strop.distributed.run import Cluster, Settings
from strop.distributed.runners import RayRunner

corpus, folder, method, kill = sys.argv[1:]
def watch(stage, done, total):
    if f"{stage} {done}" == kill:
        os.kill(os.getpid(), signal.SIGKILL)

settings = Settings(corpus, {"name": "wordllama", "options": {}}, shard_documents=5000,
                    method=method)
runner = RayRunner("local", 2)
runner.run = partial(runner.run, work=killed_once)
cluster = Cluster(Path(folder), settings, runner, watch)
cluster.run("references")
print(cluster.ran)
runner.close()
"""


def sentences(collections: Path) -> list[Document]:
    documents = (
        Document(f"{name}-{document.id}-{i}", text)
        for name in ("scifact", "nfcorpus", "lisa")
        for document in read_corpus(collections / name)
        for i, text in enumerate(title_and_sentences(document.title, document.text, 1000))
    )
    return list(islice(documents, DOCUMENTS))


def run_driver(
    corpus: Path, folder: Path, method: str, kill: str = ""
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", DRIVER, str(corpus), str(folder), method, kill]
    start = time.monotonic()
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    print(f"{method} {kill}: {time.monotonic() - start:.0f} s", process.stdout.strip(), flush=True)
    return process


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ray_gives_the_same_references_as_an_index(collections: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    corpus = write_inputs(tmp_path / "corpus", sentences(collections), 5)
    folder = tmp_path / "shards"
    for kill in ("vectors 3", "references 2"):  # a worker also dies in each stage
        process = run_driver(corpus, folder, "exact", kill)
        assert process.returncode == -signal.SIGKILL, process.stderr
    finished = dict(Manifest(folder / "references").lines)
    assert len(finished) == 2
    process = run_driver(corpus, folder, "exact")
    assert process.returncode == 0, process.stderr
    marks = {file.name for file in folder.glob("killed-*")}
    assert {"killed-vectors", "killed-buckets", "killed-references"} <= marks
    assert Manifest(folder / "references").lines.items() >= finished.items()  # not repeated
    import_shards(folder, tmp_path / "ray")
    for file in (folder / "references").iterdir():
        file.rename(file.with_suffix(".exact"))
    start = time.monotonic()
    import_shards(folder, tmp_path / "folder")
    with Index.open(tmp_path / "ray") as ray, Index.open(tmp_path / "folder") as index:
        assert index.select_references(method="exact") == DOCUMENTS
        print(f"folder: {time.monotonic() - start:.0f} s", flush=True)
        assert all(ray.references_of(id_) == index.references_of(id_) for id_ in index.ids())
    process = run_driver(corpus, folder, "cells")
    assert process.returncode == 0, process.stderr
    assert neighbour_recall(folder) >= 0.95


def neighbour_recall(folder: Path) -> float:
    """Return the recall of the lists by cells, compared with the renamed exact ones."""
    shares = []
    for bucket in finished_buckets(folder):
        path = folder / "references" / f"{bucket.name}.parquet"
        found, expected = read_table(path), read_table(path.with_suffix(".exact"))
        assert (rows_in(found) == rows_in(expected)).all()
        pairs = zip(
            padded(found["neighbors"], 100, -1), padded(expected["neighbors"], 100, -1), strict=True
        )
        shares += [np.isin(b[b >= 0], a).mean() for a, b in pairs if (b >= 0).any()]
    print("probes", Manifest(folder / "probes").lines["all"]["counts"], "recall", np.mean(shares))
    return float(np.mean(shares))
