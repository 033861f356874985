"""A real ``strop serve`` in a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

READ_KEY = "read-key-of-the-tests"
WRITE_KEY = "write-key-of-the-tests"
KEYS = f"read:{READ_KEY},write:{WRITE_KEY}"


class RunningServer:
    """A server that answers at ``url``; ``log`` has the lines it has written."""

    def __init__(self, *command: str, environment: Mapping[str, str]) -> None:
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strop", "serve", *command, "--port", "0"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.port = int(self.wait_for(r"running on http://\S+?:(\d+) ").group(1))
            self.url = f"http://127.0.0.1:{self.port}"
            self._until_ready()
        except BaseException:
            self.stop()
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.log.extend(lines)

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Wait until the log has a text."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if match := re.search(pattern, "".join(list(self.log))):
                return match
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("".join(self.log))

    def _until_ready(self) -> None:
        until = time.monotonic() + 120
        while not self._is_ready():
            alive = self.process.poll() is None and time.monotonic() < until
            assert alive, "".join(self.log)
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/ready").status_code == 200
        except httpx.ConnectError:  # the port is bound before the workers listen
            return False

    def client(self, key: str | None = None) -> httpx.Client:
        """Return an HTTP client that sends a key."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # Without TLS there is nothing to verify, and reading the certificates takes long.
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=False)

    def post(self, path: str, body: Any, key: str | None = None) -> Any:
        """Post JSON and return the JSON of the answer, which must be a success."""
        with self.client(key) as client:
            reply = client.post(path, json=body)
        assert reply.status_code in (200, 201), reply.text
        return reply.json()

    def requests(self) -> list[dict[str, Any]]:
        """Return the log's lines about requests."""
        lines = [json.loads(line) for line in list(self.log) if line.startswith("{")]
        return [line for line in lines if line["event"] == "request"]

    def stop(self) -> bool:
        """Stop the server; return whether it shut down cleanly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join(10)
        # uvicorn finishes its work, then lets the signal end the process.
        return code in (0, -signal.SIGTERM) and "shutdown complete" in "".join(self.log)


@contextmanager
def serving(
    index: Path | str, *options: str, keys: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Serve an index while the block runs."""
    variables = {"STROP_API_KEYS": keys, **(environment or {})}
    running = RunningServer(str(index), *options, environment=variables)
    try:
        yield running
    finally:
        running.stop()
