"""Corpora in several files, and tasks that kill their own worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

# Few imports: each worker that runs these tasks loads this file.
from strop.distributed.shards import TaskResult
from strop.distributed.tasks import Task, perform
from strop.types import Document


def write_inputs(folder: Path, documents: list[Document], files: int) -> Path:
    """Write documents as several files of JSON lines."""
    folder.mkdir(exist_ok=True)
    step = -(-len(documents) // files)
    for at in range(0, len(documents), step):
        rows = (
            {"id": d.id, "title": d.title, "text": d.text, "place": at}
            for d in documents[at : at + step]
        )
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"part-{at:05}.jsonl").write_text(lines, "utf-8")
    return folder


def killed_once(folder: Path, task: Task) -> TaskResult:
    """Run a task; the worker of the second task of each stage is killed once, before it reports."""
    mark = folder / f"killed-{task.stage}"
    result = perform(folder, task)
    if task.name.endswith("00001") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def always_killed(folder: Path, task: Task) -> TaskResult:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
