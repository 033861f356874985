"""A chunked index that follows a folder, killed on the way: nothing lost, the next run goes on."""

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

# What was interrupted is searched here all the time.
pytestmark = pytest.mark.filterwarnings("ignore::strop.errors.UnfinishedIndex")

KILLS = int(os.environ.get("STROP_KILLS", "5"))
EVERY = 17 if KILLS < 50 else 1
"""Of the steps of a run, each so-many-th is tried."""
WORDS = [f"w{n}" for n in range(40)]


def write(folder: Path, at: int, version: int) -> None:
    """Write a file of several chunks, of which versions share some."""
    parts = []
    for paragraph in range(3 + at % 3):
        draw = random.Random(f"{at} {paragraph} {version if paragraph == 1 else 0}")
        parts.append(" ".join(draw.choices(WORDS, k=9)) + ". " + " ".join(draw.choices(WORDS, k=6)))
    path = folder / f"part{at % 2}" / f"f{at}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nversion: {version}\n---\n# File {at}\n\n" + "\n\n".join(parts))
    then = time.time() - 1000 + version
    os.utime(path, (then, then))


def change(folder: Path, version: int) -> None:
    """Edit a file, remove one, add one."""
    files = sorted(folder.rglob("*.md"))
    draw = random.Random(version)
    edited, removed = draw.sample(files, 2)
    write(folder, int(edited.stem[1:]), version)
    removed.unlink()
    write(folder, 100 + version, version)


class Shown(NamedTuple):
    """All that an index shows of its documents."""

    documents: dict[str, Any]
    chunks: dict[str, Any]

    @staticmethod
    def of(index: Index) -> Shown:
        ids = index.ids()
        return Shown({i: index.get(i) for i in ids}, {i: index.chunks(i) for i in ids})


def scores(index: Index) -> dict[str, float]:
    return {
        f"{method} {id_}": score
        for method in ("trad", "sharp:words=0", "bm25")
        for id_, score in all_scores(index, "w3 w7 w11", method=method, chunks=True).items()
    }


def assert_consistent(index: Index, *states: Shown) -> None:
    """Check what a killed run left: the documents of one moment, and nothing broken."""
    assert index.check() == []
    assert_words_match_texts(index)
    assert Shown.of(index) in states
    for hit in index.search("w3 w7 w11", 100)[0]:
        assert hit.chunk is not None
        assert hit.text[hit.chunk.start : hit.chunk.end] == hit.chunk.text


def made(path: Path, folder: Path, files: int) -> Index:
    for at in range(files):
        write(folder, at, 0)
    index = create(path, chunking="24:6")
    index.sharpen()
    index.sync(folder)
    index.add([{"id": "other", "text": "from elsewhere"}])
    index.import_queries({f"part0/f{at}.md": [f"where is w{at}"] for at in (0, 2)}, "simple")
    return index


def test_a_crash_at_any_step_of_following_a_folder(scratch: Path, forks: Forks) -> None:
    folder, log = scratch / "files", scratch / "log"
    with made(scratch / "begin", folder, 5) as index:
        before = Shown.of(index)
    change(folder, 1)
    shutil.copytree(scratch / "begin", scratch / "end")
    with reopen(scratch / "end") as index:
        assert index.sync(folder) == Changes(1, 1, 3, 0, removed=1)
        after, wanted = Shown.of(index), scores(index)
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
            assert Shown.of(index) == after
            assert_close(scores(index), wanted, 1e-6)
            assert (index.check(), index.info()["waiting"]) == ([], 0)
        shutil.rmtree(path)
        last += EVERY
    assert last > 20


def test_kills_at_random_moments_of_following_a_folder(scratch: Path, forks: Forks) -> None:
    """However often it is killed, it goes on, and embeds at most one batch a kill again."""
    folder, log, pause, rng = scratch / "files", scratch / "log", 0.003, random.Random(5)
    with made(scratch / "index", folder, 8) as index:
        before = Shown.of(index)
    kills = version = 0
    while kills < KILLS:
        version += 1
        for more in range(4):
            change(folder, 4 * version + more)
        shutil.copytree(scratch / "index", scratch / "whole")
        log.unlink(missing_ok=True)
        began = time.monotonic()
        assert forks.run(follow, scratch / "whole", folder, 0, log, pause) == 0
        longest = time.monotonic() - began
        with reopen(scratch / "whole") as index:
            after, wanted = Shown.of(index), scores(index)
        texts, again = sum(logged(log)), 0
        log.unlink()
        while True:
            done = len(logged(log))
            pid = forks.start(follow, scratch / "index", folder, 0, log, pause)
            if kills < KILLS:
                time.sleep(rng.uniform(0, longest))
                code = forks.kill(pid)
            else:  # enough: let this one end
                code = forks.wait(pid)
            if code == 0:
                break
            kills += 1
            again += sum(logged(log)[done:][-1:])  # the batch that was under way
            with reopen(scratch / "index") as index:
                assert_consistent(index, before, after)
        assert texts <= sum(logged(log)) <= texts + again
        bag = Bag()
        with reopen(scratch / "index", bag) as index:
            assert_consistent(index, after)
            assert_close(scores(index), wanted, 1e-6)
            bag.count = 0
            assert index.sync(folder).unchanged == len(after.documents) - 1  # all but ``other``
            assert bag.count == 0
        before = after
        shutil.rmtree(scratch / "whole")
