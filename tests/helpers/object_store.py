"""A local S3 server (moto) in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


@contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """Start the server with one bucket; yield the environment variables to reach it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            matches = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in lines)
            match = next(filter(None, matches), None)
            assert match is not None, "moto did not start"
            address = match[0]
            threading.Thread(target=process.stderr.read, daemon=True).start()  # drain the pipe
            httpx.put(f"{address}/{bucket}").raise_for_status()
            yield {
                "AWS_ENDPOINT": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            }  # fmt: skip
        finally:
            process.kill()
