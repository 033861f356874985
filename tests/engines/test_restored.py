"""A restored folder reuses version numbers; its copy still follows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.fakes import DIM, Bag, create, reopen

from strop import connect


@pytest.mark.parametrize("restored", ["the folder", "the catalog alone"])
def test_a_copy_follows_a_restored_folder(tmp_path: Path, restored: str) -> None:
    pytest.importorskip("duckdb")
    path, backup, url = tmp_path / "index", tmp_path / "backup", f"duckdb://{tmp_path}/copy.duckdb"
    with create(path) as index:
        index.add([{"id": str(at), "text": f"Word{at} grows."} for at in range(5)])
        index.sharpen()
        assert index.publish(url).new == 5
        index.add([{"id": "5", "text": "Cedar grows."}])
    shutil.copytree(path, backup)
    with reopen(path) as index:
        index.add([{"id": "lost", "text": "Alder stands."}])
        assert index.publish(url).compared == "log"
    if restored == "the folder":
        shutil.rmtree(path)
        shutil.copytree(backup, path)
    else:
        for file in path.glob("catalog.sqlite*"):
            file.unlink()
        shutil.copy(backup / "catalog.sqlite", path)
    with reopen(path) as index:
        index.finish()
        index.add([{"id": "new", "text": "Birch falls."}])
        changes = index.publish(url)
        assert (changes.compared, changes.documents) == ("all", 7)
        with connect(url, Bag(), name="bag", dim=DIM) as copy:
            for query in ("alder stands", "birch falls", "word3"):
                folder_hits, copy_hits = index.search(query, 7), copy.search(query, 7)
                assert folder_hits.ids.tolist() == copy_hits.ids.tolist()
                assert folder_hits.scores == pytest.approx(copy_hits.scores, abs=1e-5)
        index.add([{"id": "more", "text": "Dogwood blooms."}])
        assert index.publish(url).compared == "log"
        assert index.publish(url).new == 0
