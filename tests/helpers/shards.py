"""Corpora cut into files, and tasks that end their own worker or driver."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

# Nothing more is imported: each worker that does these tasks loads this file.
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
    """Do a task; the worker of the second one of a stage dies in the middle of it, once."""
    mark = folder / f"killed-{task.stage}"
    done = perform(folder, task)
    if task.name.endswith("00001") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return done


def always_killed(folder: Path, task: Task) -> TaskResult:
    """End the worker whatever it does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
