"""A task is one stage's work on one shard; ``perform`` does it, in any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop import __version__
from strop.distributed import generation, neighbors, vectors
from strop.distributed.shards import TaskResult
from strop.errors import StropError

STAGES: Mapping[str, Callable[..., TaskResult]] = {
    "documents": vectors.read_documents,
    "vectors": vectors.embed_documents,
    "cells": neighbors.find_cells,
    "buckets": neighbors.fill_buckets,
    "probes": neighbors.count_probes,
    "references": neighbors.find_references,
    "requests": generation.write_request_file,
    "replies": generation.send_requests,
    "queries": generation.make_queries,
}
"""The stages in order, each with the function that performs one of its tasks."""


@dataclass(frozen=True)
class Task:
    """One shard of one stage. ``key`` is a hash of everything that its result depends on."""

    stage: str
    name: str
    key: str
    arguments: Mapping[str, Any]
    version: str = __version__


def perform(folder: Path, task: Task) -> TaskResult:
    """Do a task: read shard files of ``folder``, write one or more, and return which."""
    if task.version != __version__:
        raise StropError(
            f"this worker has strop {__version__}, the driver {task.version}: install one version"
            " on all machines"
        )
    began, cpu = time.monotonic(), time.process_time()
    done = STAGES[task.stage](folder, task.name, **task.arguments)
    spent = time.monotonic() - began
    return replace(done, seconds=spent, cpu=time.process_time() - cpu)
