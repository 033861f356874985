"""A real HTTP server of embeddings on the loopback interface, whose answers are scripted."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from strop.types import Vectors

DIM = 16
KEY = "sk-very-secret-0123456789"


def vector(text: str) -> list[float]:
    """A fixed vector for each text; not of unit length, so that tests notice normalization."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    row: list[float] = np.random.default_rng(seed).normal(size=DIM).astype(np.float32).tolist()
    return row


def expected(texts: list[str]) -> Vectors:
    rows = np.array([vector(text) for text in texts], np.float32)
    unit: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            self.server.paths.append(self.path)
            self.server.active += 1
            self.entered = 1
            self.server.most_active = max(self.server.most_active, self.server.active)
            act = self.server.script.pop(0) if self.server.script else self.server.default
        try:
            act(self, body)
        finally:
            self.leave()

    def reply(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.leave()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def leave(self) -> None:
        """Count the request as done, before the client gets the answer: so counts are exact."""
        with self.server.lock:
            self.server.active -= self.entered
            self.entered = 0

    def log_message(self, format: str, *args: object) -> None:
        pass


Act = Callable[[Handler, dict[str, Any]], None]


def good(handler: Handler, body: dict[str, Any]) -> None:
    handler.reply(200, {"data": items(body["input"])})


def items(texts: list[str]) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": vector(text)} for i, text in enumerate(texts)]


def answer(status: int, content: Any, **headers: str) -> Act:
    return lambda handler, body: handler.reply(status, content, **headers)


class Server(ThreadingHTTPServer):
    """Answers with ``script`` in turn, then with ``default``, and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.script: list[Act] = []
        self.default: Act = good
        self.active = self.most_active = 0
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up are part of the tests

    @property
    def sent(self) -> list[str]:
        return [text for request in self.requests for text in request["input"]]


def serve() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
