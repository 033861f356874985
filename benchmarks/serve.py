"""Throughput of ``strop serve`` compared with the library, and a load test with a writer.

    python benchmarks/serve.py [--index FOLDER] [--clients 64] [--seconds 60] [--short 10]
                               [--rounds 0]

Without a folder, an index of Python's documentation is built. First the library searches batches of
16 queries in this process; then clients, each with its own connection, send the same queries one
at a time to a server in another process (the clients run in a third process, on the same cores).
Then the clients search for --seconds while another client adds batches of 20 documents and searches
for the last one of each. Errors are reported, and every 16th answer is checked. Memory grows by
documents and buffers in that time; --rounds repeats it, replacing the same 200 documents, to reveal
a leak. The last line is JSON.
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
    """Return the first words of documents: all differ, and all have matches."""
    with Index.open(folder) as index:
        texts = (index.get(id_).text for id_ in index.ids()[:5000])
        return [" ".join(text.split()[:8]) or "nothing" for text in texts]


def library(folder: Path, queries: list[str], seconds: float) -> float:
    """Return the queries per second of ``Index.search`` in batches."""
    with Index.open(folder) as index:
        index.search(queries[:BATCH], K)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            first = count % (len(queries) - BATCH)
            index.search(queries[first : first + BATCH], K)
            count += BATCH
        return count / (time.perf_counter() - start)


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
        # Discard the rest of the log, so that a full pipe cannot block the server.
        subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)
        self.process.stderr.close()

    def memory(self) -> float:
        """Return the server's anonymous memory (without mapped files) in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        match = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(match.group(1)) / 1024 if match else 0.0

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class Client:
    """One HTTP connection, with as little Python per request as possible."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Client:
        connection = asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        self._reader, self._writer = await connection
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"X-API-Key: {KEY}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        text = await self._reader.readexactly(int(length.group(1)))
        return int(head[9:12]), text


async def _search(port: int, queries: list[str], count: int, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    wrong: list[str] = []
    until = time.perf_counter() + seconds

    async def search(i: int) -> None:
        async with Client(port) as client:
            while (start := time.perf_counter()) < until:
                i = (i + 1) % len(queries)
                status, text = await client.send("POST", "/search", {"query": queries[i], "k": K})
                times.append(time.perf_counter() - start)
                if len(times) % 16 == 0 or status != 200:  # to check all would reduce the load
                    hits = json.loads(text).get("hits", []) if status == 200 else []
                    scores = [hit["score"] for hit in hits]
                    if len(hits) != K or scores != sorted(scores, reverse=True):
                        wrong.append(f"{status}: {text[:200]!r}")

    step = max(1, len(queries) // count)
    await asyncio.gather(*(search(i * step) for i in range(count)))
    p50, p99, longest = (round(1000 * float(np.percentile(times, p))) for p in (50, 99, 100))
    return {
        "queries_per_second": round(len(times) / seconds),
        "p50_ms": p50, "p99_ms": p99, "longest_ms": longest, "wrong": wrong[:3],
    }  # fmt: skip


def run_clients(port: int, queries: list[str], count: int, seconds: float) -> dict[str, Any]:
    return asyncio.run(_search(port, queries, count, seconds))


async def _write(port: int, seconds: float, added: int, ids: int) -> tuple[int, int]:
    """Add documents after the first ``added``, with ``ids`` different ids, and search for the last.

    Returns how many were added so far, and how often the last one was not found.
    """
    lost = 0
    until = time.perf_counter() + seconds
    async with Client(port) as client:
        while time.perf_counter() < until:
            documents = [
                {
                    "id": f"new-{n % ids}",
                    "title": f"zyx{n}",
                    "text": f"The thing zyx{n} is number {n}.",
                }
                for n in range(added, added + ADDED)
            ]
            status, text = await client.send("POST", "/documents", {"documents": documents})
            assert status == 200, text
            added += ADDED
            where = {"$id": f"new-{(added - 1) % ids}"}
            _, text = await client.send("POST", "/search", {"query": "thing", "where": where})
            lost += len(json.loads(text)["hits"]) != 1
            await asyncio.sleep(0.5)
    return added, lost


async def _ready(port: int) -> None:
    async with Client(port) as client:
        while (await client.send("GET", "/ready"))[0] != 200:
            await asyncio.sleep(0.1)


def measure(folder: Path, count: int, seconds: float, short: float, rounds: int) -> dict[str, Any]:
    queries = queries_of(folder)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
        rates: list[tuple[float, float]] = []
        server = Server(folder)
        try:
            asyncio.run(_ready(server.port))
            clients.submit(run_clients, server.port, queries, count, 3.0).result()
            for _ in range(3):  # in turns, so that other load affects both
                rate = library(folder, queries, short)
                served = clients.submit(run_clients, server.port, queries, count, short).result()
                rates.append((rate, served["queries_per_second"]))
                print(f"library {rate:.0f}/s, server {rates[-1][1]:.0f}/s", flush=True)
            load = clients.submit(run_clients, server.port, queries, count, seconds)
            memory, added, lost = [round(server.memory())], 0, 0
            for _ in range(PARTS):
                added, missing = asyncio.run(_write(server.port, seconds / PARTS, added, 1 << 60))
                lost += missing
                memory.append(round(server.memory()))
            loaded, steady, written = load.result(), [], added
            for _ in range(rounds):
                load = clients.submit(run_clients, server.port, queries, count, seconds)
                written, missing = asyncio.run(_write(server.port, seconds, written, REPLACED))
                lost += missing + len(load.result()["wrong"])
                steady.append(round(server.memory()))
                print(f"memory after a round: {steady[-1]} MB", flush=True)
        finally:
            server.stop()
    library_rate, server_rate = (float(np.median(row)) for row in zip(*rates, strict=True))
    return {
        "library_per_second": round(library_rate), "server_per_second": round(server_rate),
        "share": round(server_rate / library_rate, 2), "load": loaded, "added": added, "lost": lost,
        "memory_mb": memory, "rounds_mb": steady,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--index", type=Path, help="folder of an index; a copy of it is served")
    parser.add_argument("--clients", type=int, default=64, help="connections")
    parser.add_argument("--seconds", type=float, default=60, help="length of the load test")
    parser.add_argument("--short", type=float, default=10, help="seconds per comparison")
    parser.add_argument("--rounds", type=int, default=0, help="further load tests")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.index"
        if args.index:
            shutil.copytree(args.index, path)
        else:
            build(path)
        print(json.dumps(measure(path, args.clients, args.seconds, args.short, args.rounds)))


if __name__ == "__main__":
    main()
