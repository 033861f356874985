"""A full disk loses no paid reply."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.fakes import create

from strop import Index
from strop.errors import BadIndex, DiskFull
from strop.generate import GenerationSettings, PromptSettings
from strop.storage.database import Database, sqlite_errors
from strop.storage.replies import NEEDED_BYTES

COUNT = 30


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Writer:
    """A language model that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, prompt: str) -> str:
        self.calls += 1
        return f"<PLAN>Plan.</PLAN><QUERY>what is number {self.calls}</QUERY>"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "index") as index:
        index.add({"id": str(at), "text": f"Word{at} grows."} for at in range(COUNT))
        yield index


def write_queries(index: Index, writer: Writer) -> None:
    settings = GenerationSettings(PromptSettings(style="simple"))
    index.generation(writer, settings, name="writer").run()


def n_stored_replies(index: Index) -> int:
    with closing(sqlite3.connect(index.path / "catalog.sqlite")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM replies").fetchone()
    return int(count)


@pytest.mark.parametrize("reason", ["database or disk is full", "disk I/O error"])
def test_replies_received_when_the_disk_is_full_are_stored(
    index: Index, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    writer, writing = Writer(), Database.writing
    calls_after_release, replies = [], index.searcher.catalog.replies

    @contextmanager
    def full(database: Database, searchable: bool = True) -> Iterator[sqlite3.Connection]:
        with writing(database, searchable) as connection:
            yield connection
            if not searchable and writer.calls >= 5:  # only the bytes of the reserve are free
                if replies.has_reserve:
                    with sqlite_errors(database.path):
                        raise sqlite3.OperationalError(reason)
                calls_after_release.append(writer.calls)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "writing", full)
        with pytest.raises(DiskFull, match="disk"):
            write_queries(index, writer)
    assert calls_after_release
    assert 5 <= writer.calls < COUNT, "it asked on although the disk was full"
    assert n_stored_replies(index) == writer.calls
    assert not replies.has_reserve
    write_queries(index, writer)  # there is room again
    assert n_stored_replies(index) == writer.calls == COUNT
    assert not replies.has_reserve
    assert index.check() == []


def test_no_request_is_sent_if_its_reply_may_not_fit(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer()

    def usage(path: object) -> Usage:
        return Usage(0, 0, NEEDED_BYTES if writer.calls < 7 else NEEDED_BYTES - 1)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", usage)
        with pytest.raises(DiskFull, match=r"MB left.*run the command again"):
            write_queries(index, writer)
        assert 7 <= writer.calls < COUNT
        assert n_stored_replies(index) == writer.calls
    write_queries(index, writer)
    assert n_stored_replies(index) == writer.calls == COUNT


def test_without_room_for_the_reserve_no_request_is_sent(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(handle: int) -> None:
        raise OSError(28, "No space left on device")

    writer = Writer()
    monkeypatch.setattr("strop.storage.replies.os.fsync", no_room)
    with pytest.raises(BadIndex, match="No space left"):
        write_queries(index, writer)
    assert writer.calls == n_stored_replies(index) == 0
