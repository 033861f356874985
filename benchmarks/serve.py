"""Load on ``strop serve``: throughput against the library, and a minute of 64 clients and a writer.

    python benchmarks/serve.py [--index FOLDER] [--clients 64] [--seconds 60] [--short 10]
                               [--rounds 0]

Without a folder it builds one of Python's documentation. First the library searches batches of 16
queries in this process; then the same queries come one by one from clients, each with a
connection of its own, to a server in a process of its own (the clients run in a third one and take
processor time from both). Then the clients ask for --seconds while another one adds
documents and looks each one up. Every answer is checked. What memory grows by then is documents and
buffers; a leak would also grow it in --rounds more of as long, in which the same 200 documents are
replaced again and again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from strop import Index
from strop.io.stdlib_docs import read_stdlib

KEY = "write-key-of-the-benchmark"
K, BATCH, ADDED, PARTS, REPLACED = 10, 16, 20, 6, 200


def build(folder: Path) -> None:
    with Index.create(folder) as index:
        index.add(read_stdlib())
        index.sharpen()


def queries_of(folder: Path) -> list[str]:
    """The first words of documents: no two are alike, and all have an answer."""
    with Index.open(folder) as index:
        texts = (index.get(id_).text for id_ in index.ids()[:5000])
        return [" ".join(text.split()[:8]) or "nothing" for text in texts]


def library(folder: Path, queries: list[str], seconds: float) -> float:
    """Queries a second of ``Index.search`` in batches."""
    with Index.open(folder) as index:
        index.search(queries[:BATCH], K)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            at = done % (len(queries) - BATCH)
            index.search(queries[at : at + BATCH], K)
            done += BATCH
        return done / (time.perf_counter() - began)


class Server:
    """``strop serve`` on a free port."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strop", "serve", str(folder), "--port", "0"],
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "STROP_API_KEYS": f"write:{KEY}"},
        )  # fmt: skip
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if match := re.search(r"running on http://\S+?:(\d+) ", line):
                self.port = int(match.group(1))
                break
        # Nobody reads the rest of the log: it goes where it holds nothing up.
        subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)
        self.process.stderr.close()

    def memory(self) -> float:
        """Megabytes in memory that are the server's own, without mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(found.group(1)) / 1024 if found else 0.0

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class Client:
    """One connection; as little Python as a request can do with."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Client:
        self._in, self._out = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._out.close()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        self._out.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"X-API-Key: {KEY}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await self._in.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        text = await self._in.readexactly(int(length.group(1)))
        return int(head[9:12]), text


async def _clients(port: int, queries: list[str], count: int, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    wrong: list[str] = []
    until = time.perf_counter() + seconds

    async def one(at: int) -> None:
        async with Client(port) as client:
            while (began := time.perf_counter()) < until:
                at = (at + 1) % len(queries)
                status, text = await client.ask("POST", "/search", {"query": queries[at], "k": K})
                times.append(time.perf_counter() - began)
                if len(times) % 16 == 0 or status != 200:  # checking all would slow the load down
                    hits = json.loads(text).get("hits", []) if status == 200 else []
                    scores = [hit["score"] for hit in hits]
                    if len(hits) != K or scores != sorted(scores, reverse=True):
                        wrong.append(f"{status}: {text[:200]!r}")

    step = max(1, len(queries) // count)
    await asyncio.gather(*(one(at * step) for at in range(count)))
    shown = {f"p{share}_ms": round(float(np.percentile(times, share)) * 1000) for share in (50, 99)}
    shown["longest_ms"] = round(max(times) * 1000)
    return {"queries_per_second": round(len(times) / seconds), **shown, "wrong": wrong[:3]}


def clients(port: int, queries: list[str], count: int, seconds: float) -> dict[str, Any]:
    return asyncio.run(_clients(port, queries, count, seconds))


async def _writer(port: int, seconds: float, added: int, among: int) -> tuple[int, int]:
    """Write documents after the first ``added``, each of ``among`` ids, and look for the last."""
    lost = 0
    until = time.perf_counter() + seconds
    async with Client(port) as client:
        while time.perf_counter() < until:
            numbers = range(added, added + ADDED)
            documents = [
                {
                    "id": f"new-{n % among}",
                    "title": f"zyx{n}",
                    "text": f"The thing zyx{n} is number {n}.",
                }
                for n in numbers
            ]
            status, text = await client.ask("POST", "/documents", {"documents": documents})
            assert status == 200, text
            added += ADDED
            where = {"$id": f"new-{(added - 1) % among}"}
            _, text = await client.ask("POST", "/search", {"query": "thing", "where": where})
            lost += len(json.loads(text)["hits"]) != 1
            await asyncio.sleep(0.5)
    return added, lost


async def _ready(port: int) -> None:
    async with Client(port) as client:
        while (await client.ask("GET", "/ready"))[0] != 200:
            await asyncio.sleep(0.1)


def measure(folder: Path, count: int, seconds: float, short: float, rounds: int) -> dict[str, Any]:
    queries = queries_of(folder)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as others:
        rates: list[tuple[float, float]] = []
        server = Server(folder)
        try:
            asyncio.run(_ready(server.port))
            others.submit(clients, server.port, queries, count, 3.0).result()
            for _ in range(3):  # in turn: other work on the machine meets both
                alone = library(folder, queries, short)
                served = others.submit(clients, server.port, queries, count, short).result()
                rates.append((alone, served["queries_per_second"]))
                print(f"library {alone:.0f}/s, server {rates[-1][1]:.0f}/s", flush=True)
            load = others.submit(clients, server.port, queries, count, seconds)
            memory, added, lost = [round(server.memory())], 0, 0
            for _ in range(PARTS):
                added, missing = asyncio.run(_writer(server.port, seconds / PARTS, added, 1 << 60))
                lost += missing
                memory.append(round(server.memory()))
            loaded, steady, written = load.result(), [], added
            for _ in range(rounds):
                load = others.submit(clients, server.port, queries, count, seconds)
                written, missing = asyncio.run(_writer(server.port, seconds, written, REPLACED))
                lost += missing + len(load.result()["wrong"])
                steady.append(round(server.memory()))
                print(f"memory after a round: {steady[-1]} MB", flush=True)
        finally:
            server.stop()
    usual, answered = (float(np.median(of)) for of in zip(*rates, strict=True))
    return {
        "library_per_second": round(usual), "server_per_second": round(answered),
        "share": round(answered / usual, 2), "load": loaded, "added": added, "lost": lost,
        "memory_mb": memory, "rounds_mb": steady,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--index", type=Path, help="an index folder; a copy of it is served")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--short", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.index"
        if given.index:
            shutil.copytree(given.index, path)
        else:
            build(path)
        print(json.dumps(measure(path, given.clients, given.seconds, given.short, given.rounds)))


if __name__ == "__main__":
    main()
