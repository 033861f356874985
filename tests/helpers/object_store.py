"""An object store on this machine that speaks S3 (moto), in a process of its own."""

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
    """Start the store with one bucket; yield the environment that leads to it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            told = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in lines)
            found = next(filter(None, told), None)
            assert found is not None, "moto did not start"
            address = found[0]
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or it would wait
            httpx.put(f"{address}/{bucket}").raise_for_status()
            yield {
                "AWS_ENDPOINT": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            }  # fmt: skip
        finally:
            process.kill()
