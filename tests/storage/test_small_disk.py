"""A disk that is really full: a file system of a few MB in memory, which only root may mount."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.fakes import Bag, all_scores, create, reopen
from helpers.generation import rows
from helpers.scripted_server import ScriptedServer

from strop import HyDE, Index
from strop.errors import BadIndex, DiskFull
from strop.generate import GenerationSettings, PromptSettings
from strop.lm import LM, load

COUNT = 30
MEGABYTES = 16


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of its own."""
    if shutil.which("mount") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(disk)],
        capture_output=True, text=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Fill a disk up to ``leave`` free bytes."""
    with open(disk / "filler", "ab", buffering=0) as file, suppress(OSError):
        while (free := shutil.disk_usage(disk).free) > leave:
            file.write(bytes(min(free - leave, 1 << 16)))


def document(at: int) -> dict[str, str]:
    return {"id": str(at), "text": f"Word{at} grows. More text {at % 3}."}


class Service:
    """A service that fills the disk while it writes its ``full_at``-th reply."""

    def __init__(self, server: ScriptedServer, disk: Path, full_at: int) -> None:
        self.server, self.calls = server, 0
        self._disk, self._full_at = disk, full_at
        server.text = self._reply

    def _reply(self, prompt: str) -> str:
        self.calls += 1
        if self.calls == self._full_at:
            fill(self._disk)
        return f"<PLAN>Plan.</PLAN><QUERY>what is number {self.calls}</QUERY>"

    def model(self) -> LM:
        return load("openai:m", base_url=self.server.url, concurrency=4, retries=0)


def generate(index: Index, service: Service) -> None:
    settings = GenerationSettings(PromptSettings(style="simple"))
    index.generation(service.model(), settings).run()


def expand(index: Index, service: Service) -> None:
    method = HyDE(service.model(), samples=1)
    index.search([f"word{at} of no text" for at in range(COUNT)], k=3, expand=method)


@pytest.mark.parametrize("full_at", [1, 6, 17])
@pytest.mark.parametrize("send_requests", [generate, expand])
def test_every_reply_of_a_service_is_stored(
    disk: Path, send_requests: Callable[[Index, Service], None], full_at: int
) -> None:
    with ScriptedServer() as server, create(disk / "index") as index:
        index.add(document(at) for at in range(COUNT))
        service = Service(server, disk, full_at)
        with pytest.raises(DiskFull):
            send_requests(index, service)
        assert full_at <= service.calls < COUNT, "it asked on although the disk was full"
        assert len(rows(index.path, "SELECT key FROM replies")) == service.calls
        (disk / "filler").unlink()
        send_requests(index, service)
        assert len(rows(index.path, "SELECT key FROM replies")) == service.calls == COUNT
        assert index.check() == []


@pytest.mark.parametrize("send_requests", [generate, expand])
def test_no_request_is_sent_on_a_disk_without_room(
    disk: Path, send_requests: Callable[[Index, Service], None]
) -> None:
    with ScriptedServer() as server, create(disk / "index") as index:
        index.add(document(at) for at in range(COUNT))
        fill(disk, leave=6 << 20)  # enough for the reserve alone
        service = Service(server, disk, 0)
        with pytest.raises(DiskFull):
            send_requests(index, service)
        assert service.calls == 0


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "index"
    with create(path) as index:
        index.add(document(at) for at in range(COUNT + 9))
        index.remove([str(at) for at in range(COUNT, COUNT + 9)])
    return path


WRITES: dict[str, Callable[[Index], object]] = {
    "add": lambda index: index.add(document(at) for at in range(COUNT, 4 * COUNT)),
    "sharpen": lambda index: index.sharpen(),
    "import": lambda index: index.import_queries({str(at): ["what grows"] for at in range(9)}, "a"),
    "remove": lambda index: index.remove([str(at) for at in range(9)]),
    "references": lambda index: index.select_references(),
    "compact": lambda index: index.compact(),
}


@pytest.mark.filterwarnings("ignore::strop.errors.UnfinishedIndex")
@pytest.mark.parametrize("leave", [0, 20_000, 60_000, 120_000])
@pytest.mark.parametrize("name", WRITES)
def test_full_disk_leaves_the_index_unchanged(
    disk: Path, template: Path, name: str, leave: int
) -> None:
    shutil.copytree(template, disk / "index")
    fill(disk, leave)
    succeeded = False
    with reopen(disk / "index") as index:
        before = all_scores(index, "word7 grows", method="trad")
        try:
            WRITES[name](index)
            succeeded = True
        except BadIndex as error:
            assert "disk" in str(error) or "make room" in str(error)  # noqa: PT017
            after = all_scores(index, "word7 grows", method="trad")
            assert {id_: after[id_] for id_ in before} == pytest.approx(before, abs=1e-6)
    (disk / "filler").unlink()
    with reopen(disk / "index") as index:
        assert index.check() == []
        if not succeeded:
            WRITES[name](index)
        index.finish()
        assert index.check() == []
        assert index.search("word17 grows", k=1, method="trad").ids[0, 0] == "17"


@pytest.mark.parametrize("leave", [0, 30_000, 80_000])
def test_index_cannot_be_created_on_a_full_disk(disk: Path, leave: int) -> None:
    fill(disk, leave)
    with pytest.raises(BadIndex, match=r"disk|room|written"):
        create(disk / "index")
    (disk / "filler").unlink()
    with create(disk / "index", Bag()) as index:
        index.add([document(1)])
        assert index.check() == []
