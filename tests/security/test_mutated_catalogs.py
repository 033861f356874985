"""Mutated indexes: no traceback, nothing touched outside, no wrong result without a word.

``STROP_MUTATIONS=2000`` tries that many; each number gives the same mutation on every machine.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import create, memory, reopen

from strop import Index
from strop.errors import StropError
from strop.generate import GenerationSettings, PromptSettings

MUTATIONS = int(os.environ.get("STROP_MUTATIONS", "60"))
FOUND = (247, 403, 444, 1671, 1676, 1686)
"""Mutations that once ended in a traceback."""
PARTS = 2
"""Tests of each kind of index that the mutations are divided among, to run at the same time."""
JUNK = [None, -1, 0, 1, 2**62, 1.5, "", "junk", "[]", "{}", "null", b"", b"\xff\x00\xff", "../x"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="strop-test-", dir=memory()) as folder:
        yield Path(folder)


@pytest.fixture(scope="module", params=[None, "10:3"], ids=["whole", "chunks"])
def whole(folder: Path, request: pytest.FixtureRequest) -> Path:
    """An index with something in every table that outlives a finished run."""
    path = folder / ("chunked" if request.param else "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.storage.snapshot.LOG_LEAST", 3)
        patch.setattr("strop.storage.snapshot.LOG_SHARE", 0.0)
        with create(path, chunking=request.param) as index:
            index.add(
                {"id": str(at), "text": f"Word{at} grows. More text {at % 3}." * 2, "seen": at}
                for at in range(20)
            )
            index.sharpen()
            index.import_queries({str(at): [f"what grows {at}", "where"] for at in range(9)}, "own")
            settings = GenerationSettings(PromptSettings(style="simple"))
            index.generation(
                lambda prompt: "<PLAN>Plan.</PLAN><QUERY>what is it</QUERY>", settings, name="lm"
            ).run()
            index.select_references()
            index.remove(["19"])
            (folder / "files").mkdir(exist_ok=True)
            (folder / "files" / "a.txt").write_text("Text of a file.")
            index.sync(folder / "files")
    return path


# -- mutations -------------------------------------------------------------------------------


def other_value(value: Any, rng: random.Random) -> Any:
    """Return a value a little or much unlike the one that is stored."""
    if rng.random() < 0.4:
        return rng.choice(JUNK)
    if isinstance(value, int | float):
        return rng.choice([value + 1, value - 1, -value, value * 1000, -(2**63), 2**63 - 1])
    data = bytearray(value.encode() if isinstance(value, str) else value or b"\0")
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
    return data.decode("utf-8", "replace") if isinstance(value, str) else bytes(data)


def edit_rows(file: Path, rng: random.Random) -> str:
    """Change, exchange or delete cells and rows of any table."""
    with closing(sqlite3.connect(file)) as connection, connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema"
                 " WHERE type = 'table' AND name NOT GLOB 'sqlite_stat*'")]  # fmt: skip
        rows: list[tuple[Any, ...]] = []
        while not rows:
            table = rng.choice(names)
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        same = " AND ".join(f"{name} IS ?" for name in columns)
        place, (row, other) = rng.randrange(len(columns)), (rng.choice(rows), rng.choice(rows))
        change = f"UPDATE {table} SET {columns[place]} = ? WHERE {same}"
        how = rng.choice(["value", "value", "value", "value", "exchange", "delete", "delete many"])
        try:
            if how == "value":
                connection.execute(change, (other_value(row[place], rng), *row))
            elif how == "exchange":
                connection.execute(change, (other[place], *row))
                connection.execute(change, (row[place], *other))
            elif how == "delete":
                connection.execute(f"DELETE FROM {table} WHERE {same}", row)
            else:
                third = rng.sample(rows, max(1, len(rows) // 3))
                connection.executemany(f"DELETE FROM {table} WHERE {same}", third)
        except (sqlite3.IntegrityError, OverflowError):  # a value the table does not take
            how = "delete"
            connection.execute(f"DELETE FROM {table} WHERE {same}", row)
    return f"{how} in {table}"


def damage_file(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    if rng.random() < 0.2:
        how = "cut"
        del data[rng.randrange(len(data)) :]
    else:
        how = "flip"
        for _ in range(rng.choice([1, 1, 4, 40])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"{how} {file.parent.name if file.parent.name in ('vectors', 'cache') else 'catalog'}"


def mutate(path: Path, rng: random.Random) -> str:
    """Change an index in one way; return which."""
    if rng.random() < 0.6:
        return edit_rows(path / "catalog.sqlite", rng)
    others = [one for name in ("vectors", "cache") for one in sorted((path / name).iterdir())]
    file = path / "catalog.sqlite" if rng.random() < 0.6 else rng.choice(others)
    return damage_file(file, rng)


# -- what is seen ----------------------------------------------------------------------------


def ranking(index: Index, method: str) -> object:
    hits = index.search(["word7 grows", "what grows 3"], k=6, method=method)
    return hits.ids.tolist(), hits.scores.round(5).tolist()


def about(index: Index) -> object:
    """Return what ``info`` says, without sizes in bytes."""
    sizes = ("bytes", "total_bytes", "sizes", "path")
    return {key: value for key, value in index.info().items() if key not in sizes}


def first_row(index: Index, id_: str) -> str:
    """Return the id of a document, or of its first chunk."""
    chunks = index.chunks(id_)
    return chunks[0].id if chunks else id_


READS: dict[str, Callable[[Index], object]] = {
    "plain": lambda index: ranking(index, "trad"),
    "sharp": lambda index: ranking(index, "sharp"),
    "words": lambda index: ranking(index, "sharp:words=1"),
    "get": lambda index: [index.get(str(at)) for at in range(19)],
    "queries": lambda index: [index.queries_of(str(at)) for at in range(19)],
    "references": lambda index: [
        index.references_of(first_row(index, str(at))) for at in range(19)
    ],
    "chunks": lambda index: [index.chunks(str(at)) for at in range(19)],
    "info": about,
    "check": Index.check,
}
WRITES: list[Callable[[Index], object]] = [
    lambda index: index.add([{"id": "new", "text": "A new text."}]),
    lambda index: index.check(repair=True),
    lambda index: index.search("new text", k=3),
]
REPORTED = "an error of strop's own, or a warning"


def outcomes(path: Path, acts: dict[str, Callable[[Index], object]]) -> dict[str, object]:
    """Return what each act gives, or that it was reported; any other error is a finding."""
    given: dict[str, object] = dict.fromkeys(acts, REPORTED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(StropError), reopen(path) as index:
            for name, act in acts.items():
                caught.clear()
                with suppress(StropError):
                    value = act(index)
                    given[name] = REPORTED if caught else value
    return given


@pytest.mark.parametrize("part", range(PARTS))
def test_a_mutated_index_is_refused_or_reported_or_gives_the_same_results(
    whole: Path, folder: Path, part: int
) -> None:
    expected = outcomes(whole, READS)
    assert REPORTED not in expected.values()
    assert expected["check"] == []
    beside = folder / f"beside-{whole.name}-{part}"
    beside.mkdir()
    (beside / "precious").write_bytes(b"precious")
    path, verdicts, failures = beside / "index", Counter[str](), []
    for seed in sorted({*range(MUTATIONS), *FOUND})[part::PARTS]:
        shutil.copytree(whole, path)
        how = mutate(path, random.Random(seed))
        try:
            reads = random.Random(seed).sample(list(READS), len(READS))  # each is first at times
            seen = outcomes(path, {name: READS[name] for name in reads})
            problems = seen.pop("check")
            wrong = [name for name in seen if seen[name] not in (expected[name], REPORTED)]
            if wrong and not problems:
                failures.append(f"{seed} ({how}): {', '.join(wrong)} other than before")
            refused = REPORTED in seen.values()
            verdicts["refused" if refused else "reported" if problems else "same"] += 1
            for act in WRITES:  # each as a command of its own
                outcomes(path, {"write": act})
        except Exception as error:
            failures.append(f"{seed} ({how}): {error!r}")
        if sorted(entry.name for entry in beside.iterdir()) != ["index", "precious"]:
            failures.append(f"{seed} ({how}): something was written outside")
        assert (beside / "precious").read_bytes() == b"precious"
        shutil.rmtree(path)
    print(json.dumps({"mutations": sum(verdicts.values()), **verdicts}))
    assert not failures, "\n".join(failures)
    assert min(verdicts["refused"], verdicts["reported"]) > 0
