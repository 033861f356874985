"""What asking a language model costs besides the model, and what packing references saves.

    python benchmarks/generation.py [--calls 640] [--slots 64] [--latency 1.0] [--data DATA]

The first part has a set of simple queries written by a scripted server (in a process of its own)
that takes so many seconds for every answer, with so many calls at a time. The ideal is calls /
slots * latency seconds. Each reply is committed to the index as always. ``share_of_ideal`` is to be
0.97 at least, ``cpu_ms_a_call`` 3 at most. Peers in the same run: the vendor's asynchronous client,
if it is installed, and the ceiling, a client that does nothing but exchange bytes; what it misses
of the ideal is the server's, or that of a machine that is busy otherwise. Neither commits anything.
The second part counts the tokens of contrastive prompts for Cranfield in DATA, all references of a
document in one call against one call for each. The last line is JSON.
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
    """Any vectors will do: they are not what is measured."""
    return np.ones((len(texts), 8))


def time_strop(calls: int, slots: int, latency: float) -> dict[str, float]:
    """Have queries written for so many documents; how near the ideal, and CPU for each call."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(latency) as url,
        Index.create(Path(folder) / "index", embed) as index,
    ):
        index.add({"id": str(i), "text": f"{TEXT} Number {i}."} for i in range(calls + slots))
        options: dict[str, Any] = {"base_url": url, "concurrency": slots}
        index.generation("openai:scripted", SIMPLE, limit=slots, **options).run()
        plan = index.generation("openai:scripted", SIMPLE, **options).plan  # all is loaded by now
        began, busy = time.perf_counter(), time.process_time()
        spent = plan.run()
        took, busy = time.perf_counter() - began, time.process_time() - busy
    assert spent.replies == calls
    return shares(spent.replies, slots, latency, took, busy)


def time_bytes(calls: int, slots: int, latency: float) -> dict[str, float]:
    """Exchange bytes, always the same, by one thread that does nothing else: the ceiling."""
    with served(latency) as url, selectors.DefaultSelector() as selector:
        parts = urlsplit(url)
        messages = [{"role": "user", "content": TEXT * 2}]
        body = json.dumps({"model": "scripted", "messages": messages}).encode()
        head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        message = head.encode() + body
        address = parts.hostname, parts.port or 80
        connections = [socket.create_connection(address) for _ in range(slots)]
        began, busy = time.perf_counter(), time.process_time()
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, connection)
            connection.sendall(message)
        sent, received = slots, 0
        while received < calls:
            for key, _ in selector.select():
                answer = key.data.recv(65536)  # short enough to received in one piece
                assert answer, "the server hung up"
                received += 1
                if sent < calls:
                    key.data.sendall(message)
                    sent += 1
        took, busy = time.perf_counter() - began, time.process_time() - busy
        for connection in connections:
            connection.close()
    return shares(calls, slots, latency, took, busy)


async def time_vendor(calls: int, slots: int, latency: float) -> dict[str, float]:
    """The vendor's asynchronous client, as many calls at a time."""
    from openai import AsyncOpenAI

    with served(latency) as url:
        async with AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:

            async def ask(count: int) -> None:
                for _ in range(count):
                    reply = await client.chat.completions.create(
                        model="scripted", messages=[{"role": "user", "content": TEXT * 2}]
                    )
                    assert reply.choices[0].message.content

            await asyncio.gather(*(ask(1) for _ in range(slots)))  # all is loaded by now
            began, busy = time.perf_counter(), time.process_time()
            await asyncio.gather(*(ask(calls // slots) for _ in range(slots)))
            took, busy = time.perf_counter() - began, time.process_time() - busy
    return shares(calls // slots * slots, slots, latency, took, busy)


def shares(calls: int, slots: int, latency: float, took: float, busy: float) -> dict[str, float]:
    """How near the ideal so many seconds are, and CPU for each call."""
    return {
        "share_of_ideal": calls / slots * latency / took,
        "calls_a_second": calls / took,
        "cpu_ms_a_call": busy / calls * 1e3,
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
            counts["packed" if packed else "per_reference"] = (
                estimate.input_tokens / estimate.documents
            )
            counts["calls_packed" if packed else "calls_per_reference"] = (
                estimate.calls / estimate.documents
            )
    counts["ratio"] = counts["per_reference"] / counts["packed"]
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=640)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--latency", type=float, default=1.0)
    parser.add_argument("--data", type=Path, help="a folder with cranfield in BEIR's layout")
    arguments = parser.parse_args()
    size = (arguments.calls, arguments.slots, arguments.latency)
    measured = {"strop": time_strop(*size), "ceiling": time_bytes(*size)}
    if importlib.util.find_spec("openai") is not None:
        measured["AsyncOpenAI"] = asyncio.run(time_vendor(*size))
    for name, row in measured.items():
        print(name, {key: round(value, 3) for key, value in row.items()})
    figures: dict[str, Any] = {
        "slots": arguments.slots,
        "latency": arguments.latency,
        "calls": arguments.calls,
    }
    figures |= measured.pop("strop") | {"peers": measured}
    if arguments.data is not None:
        figures["tokens"] = count_tokens(arguments.data / "cranfield")
        print("tokens", {key: round(value, 2) for key, value in figures["tokens"].items()})
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
