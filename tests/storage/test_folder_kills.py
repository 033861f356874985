"""A chunked index killed while it syncs a folder: nothing is lost, the next run continues."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

if not hasattr(os, "fork"):
    pytest.skip("these tests fork and kill processes", allow_module_level=True)

from helpers.crashes import CRASHED, Forks, follow, logged
from helpers.fakes import Bag, all_scores, assert_close, create, reopen
from helpers.words import assert_words_match_texts

from strop import Index
from strop.types import Changes

# These tests search unfinished indexes.
pytestmark = pytest.mark.filterwarnings("ignore::strop.errors.UnfinishedIndex")

KILLS = int(os.environ.get("STROP_KILLS", "5"))
EVERY = 17 if KILLS < 50 else 1
"""Every so many steps of a run, a crash is tried."""
WORDS = [f"w{n}" for n in range(40)]


def write(folder: Path, at: int, version: int) -> None:
    """Write a file of several chunks; versions of it share most chunks."""
    parts = []
    for paragraph in range(3 + at % 3):
        draw = random.Random(f"{at} {paragraph} {version if paragraph == 1 else 0}")
        parts.append(" ".join(draw.choices(WORDS, k=9)) + ". " + " ".join(draw.choices(WORDS, k=6)))
    path = folder / f"part{at % 2}" / f"f{at}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nversion: {version}\n---\n# File {at}\n\n" + "\n\n".join(parts))
    modified = time.time() - 1000 + version
    os.utime(path, (modified, modified))


def change(folder: Path, version: int) -> None:
    """Edit a file, remove one, add one."""
    files = sorted(folder.rglob("*.md"))
    draw = random.Random(version)
    edited, removed = draw.sample(files, 2)
    write(folder, int(edited.stem[1:]), version)
    removed.unlink()
    write(folder, 100 + version, version)


class Content(NamedTuple):
    """The documents and chunks of an index."""

    documents: dict[str, Any]
    chunks: dict[str, Any]

    @staticmethod
    def of(index: Index) -> Content:
        ids = index.ids()
        return Content({i: index.get(i) for i in ids}, {i: index.chunks(i) for i in ids})


def scores(index: Index) -> dict[str, float]:
    return {
        f"{method} {id_}": score
        for method in ("trad", "sharp:words=0", "bm25")
        for id_, score in all_scores(index, "w3 w7 w11", method=method, chunks=True).items()
    }


def assert_consistent(index: Index, *states: Content) -> None:
    """Check an index after a kill: its content is one of ``states``, and nothing is damaged."""
    assert index.check() == []
    assert_words_match_texts(index)
    assert Content.of(index) in states
    for hit in index.search("w3 w7 w11", 100)[0]:
        assert hit.chunk is not None
        assert hit.text[hit.chunk.start : hit.chunk.end] == hit.chunk.text


def build_index(path: Path, folder: Path, files: int) -> Index:
    for at in range(files):
        write(folder, at, 0)
    index = create(path, chunking="24:6")
    index.sharpen()
    index.sync(folder)
    index.add([{"id": "other", "text": "from elsewhere"}])
    index.import_queries({f"part0/f{at}.md": [f"where is w{at}"] for at in (0, 2)}, "simple")
    return index


def test_recovery_from_a_crash_at_any_step_of_sync(scratch: Path, forks: Forks) -> None:
    folder, log = scratch / "files", scratch / "log"
    with build_index(scratch / "begin", folder, 5) as index:
        before = Content.of(index)
    change(folder, 1)
    shutil.copytree(scratch / "begin", scratch / "end")
    with reopen(scratch / "end") as index:
        assert index.sync(folder) == Changes(1, 1, 3, 0, removed=1)
        after, expected = Content.of(index), scores(index)
    assert "other" in after.documents
    last = 1
    while True:
        path = shutil.copytree(scratch / "begin", scratch / f"{last}")
        code = forks.run(follow, path, folder, last, log, 0.0)
        if code == 0:
            break
        assert code == CRASHED
        with reopen(path) as index:
            assert_consistent(index, before, after)
            changes = index.sync(folder)
            assert changes in (Changes(1, 1, 3, 0, removed=1), Changes(0, 0, 5, 0))
            assert Content.of(index) == after
            assert_close(scores(index), expected, 1e-6)
            assert (index.check(), index.info()["waiting"]) == ([], 0)
        shutil.rmtree(path)
        last += EVERY
    assert last > 20


def test_recovery_from_kills_at_random_moments_of_sync(scratch: Path, forks: Forks) -> None:
    """A killed sync continues; each kill costs at most one batch of embeddings."""
    folder, log, pause, rng = scratch / "files", scratch / "log", 0.003, random.Random(5)
    with build_index(scratch / "index", folder, 8) as index:
        before = Content.of(index)
    kills = version = 0
    while kills < KILLS:
        version += 1
        for step in range(4):
            change(folder, 4 * version + step)
        shutil.copytree(scratch / "index", scratch / "whole")
        log.unlink(missing_ok=True)
        start = time.monotonic()
        assert forks.run(follow, scratch / "whole", folder, 0, log, pause) == 0
        longest = time.monotonic() - start
        with reopen(scratch / "whole") as index:
            after, expected = Content.of(index), scores(index)
        n_texts, n_embedded_again = sum(logged(log)), 0
        log.unlink()
        while True:
            n_calls = len(logged(log))
            pid = forks.start(follow, scratch / "index", folder, 0, log, pause)
            if kills < KILLS:
                time.sleep(rng.uniform(0, longest))
                code = forks.kill(pid)
            else:  # enough kills: let this run finish
                code = forks.wait(pid)
            if code == 0:
                break
            kills += 1
            n_embedded_again += sum(logged(log)[n_calls:][-1:])  # the batch that was being embedded
            with reopen(scratch / "index") as index:
                assert_consistent(index, before, after)
        assert n_texts <= sum(logged(log)) <= n_texts + n_embedded_again
        bag = Bag()
        with reopen(scratch / "index", bag) as index:
            assert_consistent(index, after)
            assert_close(scores(index), expected, 1e-6)
            bag.count = 0
            assert index.sync(folder).unchanged == len(after.documents) - 1  # all but ``other``
            assert bag.count == 0
        before = after
        shutil.rmtree(scratch / "whole")
