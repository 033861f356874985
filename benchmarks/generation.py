"""Overhead of generating queries apart from the language model, and tokens saved by packing.

    python benchmarks/generation.py [--calls 640] [--slots 64] [--latency 1.0] [--data DATA]

The first part generates a set of simple queries with a scripted server in another process, which
answers each call after LATENCY seconds; SLOTS calls run at a time. The ideal time is calls / slots
* latency seconds; ``share_of_ideal`` is the ideal time divided by the measured one, and
``cpu_ms_a_call`` is CPU time. The targets are 0.97 or more, and 3 or less. strop commits each reply
to the index; its peers, in the same run, commit nothing: the vendor's asynchronous client, if it is
installed, and ``ceiling``, a client that only exchanges bytes. What the ceiling lacks is due to the
server, or to other load on the machine. The second part counts the tokens of contrastive prompts
for Cranfield in DATA: all references of a document in one call, compared with one call per
reference. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from common import Times

from strop import Index
from strop.generate import GenerationSettings, PromptSettings
from strop.io.corpora import read_corpus

SERVER = Path(__file__).parent.parent / "tests" / "helpers" / "scripted_server.py"
SIMPLE = GenerationSettings(PromptSettings(style="simple"))
TEXT = "The boundary layer on a flat plate in shear flow. " * 10


@contextmanager
def served(latency: float) -> Iterator[str]:
    """Run the scripted server; yield its address."""
    command = [sys.executable, str(SERVER), "--latency", str(latency)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait()


def embed(texts: list[str]) -> Any:
    """Return constant vectors: embedding is not measured."""
    return np.ones((len(texts), 8))


def time_strop(calls: int, slots: int, latency: float) -> dict[str, float]:
    """Generate queries for as many documents as there are calls; return the rates."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(latency) as url,
        Index.create(Path(folder) / "index", embed) as index,
    ):
        index.add({"id": str(i), "text": f"{TEXT} Number {i}."} for i in range(calls + slots))
        options: dict[str, Any] = {"base_url": url, "concurrency": slots}
        index.generation("openai:scripted", SIMPLE, limit=slots, **options).run()
        plan = index.generation("openai:scripted", SIMPLE, **options).plan  # everything is loaded
        start = clocks()
        report = plan.run()
        elapsed = clocks() - start
    assert report.replies == calls
    return rates(calls, slots, latency, elapsed)


def time_bytes(calls: int, slots: int, latency: float) -> dict[str, float]:
    """Exchange the same bytes in one thread that does nothing else: the ceiling."""
    with served(latency) as url, selectors.DefaultSelector() as selector:
        parts = urlsplit(url)
        messages = [{"role": "user", "content": TEXT * 2}]
        body = json.dumps({"model": "scripted", "messages": messages}).encode()
        head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        message = head.encode() + body
        address = parts.hostname, parts.port or 80
        connections = [socket.create_connection(address) for _ in range(slots)]
        start = clocks()
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, connection)
            connection.sendall(message)
        sent, received = slots, 0
        while received < calls:
            for key, _ in selector.select():
                answer = key.data.recv(65536)  # short enough to arrive in one piece
                assert answer, "the server closed the connection"
                received += 1
                if sent < calls:
                    key.data.sendall(message)
                    sent += 1
        elapsed = clocks() - start
        for connection in connections:
            connection.close()
    return rates(calls, slots, latency, elapsed)


async def time_vendor(calls: int, slots: int, latency: float) -> dict[str, float]:
    """Make as many calls at a time with the vendor's asynchronous client."""
    from openai import AsyncOpenAI

    with served(latency) as url:
        async with AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:

            async def send(count: int) -> None:
                for _ in range(count):
                    reply = await client.chat.completions.create(
                        model="scripted", messages=[{"role": "user", "content": TEXT * 2}]
                    )
                    assert reply.choices[0].message.content

            await asyncio.gather(*(send(1) for _ in range(slots)))  # everything is loaded
            start = clocks()
            await asyncio.gather(*(send(calls // slots) for _ in range(slots)))
            elapsed = clocks() - start
    return rates(calls // slots * slots, slots, latency, elapsed)


def clocks() -> Times:
    """Return wall-clock time and CPU time, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def rates(calls: int, slots: int, latency: float, elapsed: Times) -> dict[str, float]:
    """Return the share of the ideal speed, calls per second, and CPU time per call."""
    wall, cpu = elapsed.tolist()
    return {
        "share_of_ideal": calls / slots * latency / wall,
        "calls_a_second": calls / wall,
        "cpu_ms_a_call": cpu / calls * 1e3,
    }


def count_tokens(corpus: Path) -> dict[str, float]:
    """Return input tokens per document, packed and per reference."""
    counts = {}
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index") as index:
        index.add(read_corpus(corpus))
        index.select_references()
        for packed in (True, False):
            settings = GenerationSettings(PromptSettings(style="contrastive", packed=packed))
            plan = index.generation(lambda prompt: prompt, settings, name="none")
            estimate = plan.estimate()
            name = "packed" if packed else "per_reference"
            counts[name] = estimate.input_tokens / estimate.documents
            counts[f"calls_{name}"] = estimate.calls / estimate.documents
    counts["ratio"] = counts["per_reference"] / counts["packed"]
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=640, help="documents to generate for")
    parser.add_argument("--slots", type=int, default=64, help="calls at a time")
    parser.add_argument("--latency", type=float, default=1.0, help="seconds per answer")
    parser.add_argument("--data", type=Path, help="folder with cranfield in BEIR layout")
    args = parser.parse_args()
    size = (args.calls, args.slots, args.latency)
    measured = {"strop": time_strop(*size), "ceiling": time_bytes(*size)}
    if importlib.util.find_spec("openai") is not None:
        measured["AsyncOpenAI"] = asyncio.run(time_vendor(*size))
    for name, row in measured.items():
        print(name, {key: round(value, 3) for key, value in row.items()})
    figures: dict[str, Any] = {"slots": args.slots, "latency": args.latency, "calls": args.calls}
    figures |= measured.pop("strop") | {"peers": measured}
    if args.data is not None:
        figures["tokens"] = count_tokens(args.data / "cranfield")
        print("tokens", {key: round(value, 2) for key, value in figures["tokens"].items()})
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
