"""A run: which tasks the stages have, which of them are done, and the order of the stages.

A task has a key, a hash of the settings and of the files it reads. A task that the manifest lists
with the same key is done. So a second run does nothing, a run continues after a kill, and after a
new input only its own shards are computed, if the stage allows that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from strop.distributed.generation import SENTENCES, replies_path
from strop.distributed.runners import Runner
from strop.distributed.shards import Manifest, ShardFile, key_of
from strop.distributed.tasks import Task
from strop.distributed.vectors import embedder_of
from strop.errors import BadInput, IndexBusy
from strop.io.files import atomic_write, suffix
from strop.io.sentences import MOST
from strop.references.neighbors import resolve_method
from strop.references.settings import ReferenceSettings
from strop.storage.intake import about_embedder
from strop.storage.trust import needs_consent
from strop.types import Progress

_FILES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_GROWTH = 2
"""Cells are recomputed once the corpus has grown or shrunk by this factor."""


@dataclass(frozen=True)
class Settings:
    """What a run depends on. ``sets`` has, by style, the model and settings of its queries."""

    corpus: str
    embedder: Mapping[str, Any]
    reading: Mapping[str, Any] = field(default_factory=dict)
    shard_documents: int = 50_000
    method: str = "auto"
    recall: float = 0.96
    references: Mapping[str, Any] = field(default_factory=lambda: asdict(ReferenceSettings()))
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Return the settings of the last run in a folder."""
        try:
            return cls(**json.loads((folder / "settings.json").read_text("utf-8")))
        except FileNotFoundError:
            raise BadInput(
                f"{folder} is not the folder of a cluster run: strop cluster run CORPUS -o {folder}"
            ) from None
        except (ValueError, TypeError) as error:
            raise BadInput(f"{folder / 'settings.json'} is damaged ({error}): delete it") from error

    def trusted_embedder(self, folder: Path) -> dict[str, Any]:
        """Return the embedder if it needs no consent: a folder is data from outside."""
        needed = needs_consent(self.embedder["name"], self.embedder["options"])
        if needed:
            raise BadInput(
                f"{folder} would load its embedder with {', '.join(needed)}, which you did not"
                f" give: it could run code, or send texts and your key. If you trust it, give"
                f" --embedder {self.embedder['name']} with these options (--option NAME=VALUE)"
            )
        return dict(self.embedder)

    def write(self, folder: Path) -> None:
        """Store the settings in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / "settings.json") as file:
            file.write(json.dumps(asdict(self), indent=1) + "\n")


class Cluster:
    """The shards of one corpus in a folder, and the stages that make them."""

    def __init__(
        self, folder: Path, settings: Settings, runner: Runner, progress: Progress | None = None
    ) -> None:
        self.folder, self.settings = folder, settings
        self._runner, self._progress = runner, progress
        self.ran: dict[str, int] = {}
        """The number of tasks that this run did, by stage."""
        self.unfinished: dict[str, float] = {}
        """Counts of what this run could not finish, by stage and reason."""

    def run(self, goal: str, style: str = SENTENCES, budget: float | None = None) -> None:
        """Do all missing work up to a stage; from ``requests`` on for the queries of ``style``."""
        self.settings.write(self.folder)
        try:
            with FileLock(self.folder / "driver.lock", timeout=0):
                self._run(goal, style, budget)
        except Timeout:
            raise IndexBusy(
                f"another run is working in {self.folder}: wait for it, or stop it"
            ) from None

    def _run(self, goal: str, style: str, budget: float | None) -> None:
        documents = self.documents()
        if goal in ("vectors", "queries"):
            self.vectors(documents)
        if goal == "references":
            self.references(documents)
        elif goal != "vectors" and style != SENTENCES:
            self._generate(goal, style, documents, budget)
        elif goal == "queries":
            self._queries(style, {one.name: [one.digest] for one in documents}, {})
        elif goal != "vectors":
            raise BadInput("sentences need no model: give --stage queries")

    # -- the stages -----------------------------------------------------------------------

    def documents(self) -> list[ShardFile]:
        """Cut the corpus into shards; return those of its present inputs, in order."""
        numbers, tasks = dict[str, int](), []
        with suppress(FileNotFoundError):  # an input keeps its number, so that rows stay
            numbers = json.loads((self.folder / "inputs.json").read_text("utf-8"))["numbers"]
        for path in find_inputs(Path(self.settings.corpus)):
            number = numbers.setdefault(path.name, len(numbers))
            arguments = {
                "source": str(path.resolve()),
                "reading": dict(self.settings.reading),
                "shard_documents": self.settings.shard_documents,
            }
            key = [arguments["reading"], arguments["shard_documents"], _stamp(path)]
            tasks.append(self._task("documents", f"{number:05}", arguments, *key, hashed=False))
        names = sorted(task.name for task in tasks)
        with atomic_write(self.folder / "inputs.json") as file:
            file.write(json.dumps({"numbers": numbers, "inputs": names}) + "\n")
        manifest = self._do("documents", tasks)
        return [one for name in names for one in manifest.files(name)]

    def vectors(self, documents: Sequence[ShardFile]) -> dict[str, ShardFile]:
        """Embed the shards; return the files of vectors by shard."""
        about = about_embedder(embedder_of(self.settings.embedder))
        arguments = {"embedder": dict(self.settings.embedder)}
        key = [about[name] for name in ("name", "revision", "dim", "settings", "prompts")]
        tasks = [self._task("vectors", one.name, arguments, one.digest, key) for one in documents]
        return _one_each(self._do("vectors", tasks), tasks)

    def buckets(self, documents: Sequence[ShardFile]) -> dict[str, ShardFile]:
        """Find cells and sort the shards by them; return the sorted files by shard."""
        vectors = self.vectors(documents)
        count, shards = sum(one.rows for one in documents), [one.name for one in documents]
        manifest = Manifest(self.folder / "cells")
        about = manifest.lines.get("centres", {}).get("counts", {})
        if not about or not count / _GROWTH <= about["documents"] <= count * _GROWTH:
            cells = cells_for(count)
            buckets = min(cells, -(-count // self.settings.shard_documents))
            about = {"cells": cells, "buckets": buckets, "documents": count}
        key = [about, self.settings.embedder]
        task = self._task("cells", "centres", {"shards": shards, **about}, *key, hashed=False)
        centres = self._do("cells", [task]).files("centres")[0]
        tasks = [
            self._task(
                "buckets", one.name, {}, one.digest, vectors[one.name].digest, centres.digest
            )
            for one in documents
        ]
        return _one_each(self._do("buckets", tasks), tasks)

    def references(self, documents: Sequence[ShardFile]) -> dict[str, ShardFile]:
        """Choose the references of all documents; return the files by bucket."""
        filled = self.buckets(documents)
        shards, digests = list(filled), [one.digest for one in filled.values()]
        method = resolve_method(self.settings.method, sum(one.rows for one in documents))
        settings = dict(self.settings.references)
        key: list[Any] = [*digests]
        if method == "cells":
            arguments = {"neighbors": settings["neighbors"], "recall": self.settings.recall}
            task = self._task("probes", "all", {"shards": shards, **arguments}, *digests)
            key += [self._do("probes", [task]).files("all")[0].digest]
        arguments = {"shards": shards, "settings": settings, "method": method}
        count = int(Manifest(self.folder / "cells").lines["centres"]["counts"]["buckets"])
        tasks = [self._task("references", f"{at:05}", arguments, *key) for at in range(count)]
        return _one_each(self._do("references", tasks), tasks)

    def _generate(
        self, goal: str, style: str, documents: Sequence[ShardFile], budget: float | None
    ) -> None:
        """Write requests, send them, or make queries of the replies."""
        set_ = self.settings.sets[style]
        arguments: dict[str, Any] = {"style": style, "shards": None, **set_}
        units = {one.name: [one.digest] for one in documents}
        if set_["settings"]["prompt"]["style"] != "simple":
            chosen = self.references(documents)
            arguments["shards"] = [one.name for one in documents]
            texts = key_of([one.digest for one in documents])
            units = {name: [one.digest, texts] for name, one in chosen.items()}
        if goal == "queries":
            self._queries(style, units, arguments)
            return
        if goal == "replies":
            arguments["budget"] = None if budget is None else budget / max(1, len(units))
        tasks = []
        for name, digests in units.items():
            key = [*digests, {"lm": set_["lm"], "settings": set_["settings"]}]
            key += [_stamp(replies_path(self.folder, style, name))] * (goal == "requests")
            tasks.append(self._task(goal, name, arguments, *key, hashed=False))
        self._do(goal, tasks, style, ".jsonl")

    def _queries(
        self, style: str, units: Mapping[str, list[str]], arguments: dict[str, Any]
    ) -> None:
        embedder = dict(self.settings.embedder)
        arguments = {**arguments, "style": style, "embedder": embedder, "n": MOST}
        tasks = []
        for name, digests in units.items():
            replies = None
            if style != SENTENCES:
                replies = _stamp(replies_path(self.folder, style, name))
            tasks.append(self._task("queries", name, arguments, digests, replies))
        self._do("queries", tasks, style)

    # -- tasks ----------------------------------------------------------------------------

    def _task(
        self, stage: str, name: str, arguments: dict[str, Any], *key: Any, hashed: bool = True
    ) -> Task:
        """Return a task; its key covers ``key`` and, if ``hashed``, the arguments."""
        return Task(stage, name, key_of(stage, arguments if hashed else None, *key), arguments)

    def _do(
        self, stage: str, tasks: Sequence[Task], style: str = "", ending: str = ".parquet"
    ) -> Manifest:
        """Do the tasks that are not done; add each to the manifest as soon as it is done."""
        manifest = Manifest(self.folder / stage / style)
        pending = [task for task in tasks if not manifest.done(task.name, task.key, ending)]
        done, total = len(tasks) - len(pending), len(tasks)
        for task, result in self._runner.run(self.folder, pending):
            manifest.add(task.name, task.key, result)
            self.ran[stage] = self.ran.get(stage, 0) + 1
            done += 1
            if self._progress is not None:
                self._progress(stage, done, total)
        for temporary in (self.folder / stage).rglob(".*.tmp"):  # left by workers that died
            temporary.unlink(missing_ok=True)
        for reason in ("refused", "open"):
            lines = (manifest.lines[task.name]["counts"] for task in tasks)
            self.unfinished[f"{stage}:{reason}"] = sum(one.get(reason, 0) for one in lines)
        return manifest


def finished_shards(folder: Path) -> list[ShardFile]:
    """Return the shards of documents of the last run's inputs, in order; all have vectors."""
    documents, vectors = Manifest(folder / "documents"), Manifest(folder / "vectors")
    try:
        inputs = json.loads((folder / "inputs.json").read_text("utf-8"))["inputs"]
        shards = [one for name in inputs for one in documents.files(name)]
        if all(one.name in vectors.lines for one in shards):
            return shards
    except (FileNotFoundError, KeyError):
        pass
    raise BadInput(f"{folder} has no finished vectors: strop cluster run … --stage vectors")


def finished_buckets(folder: Path) -> list[ShardFile]:
    """Return the files of references, one for each bucket; none if some are missing."""
    cells, chosen = Manifest(folder / "cells"), Manifest(folder / "references")
    count = int(cells.lines.get("centres", {}).get("counts", {}).get("buckets", 0))
    names = [f"{at:05}" for at in range(count)]
    return [chosen.files(name)[0] for name in names] if set(names) <= chosen.lines.keys() else []


def _one_each(manifest: Manifest, tasks: Sequence[Task]) -> dict[str, ShardFile]:
    return {task.name: manifest.files(task.name)[0] for task in tasks}


def cells_for(documents: int) -> int:
    """Return the number of cells: smaller cells than those of an index exclude more documents."""
    return max(1, min(documents // 20, 4 * math.isqrt(documents)))


def find_inputs(corpus: Path) -> list[Path]:
    """Return the inputs of a corpus: the files of a folder of corpus files, else the corpus."""
    if corpus.is_dir() and not any(corpus.glob("corpus.jsonl*")):
        files = sorted(one for one in corpus.iterdir() if suffix(one.name) in _FILES)
        if files:
            return files
    return [corpus]


def _stamp(path: Path) -> list[Any]:
    """Return values that change when a file, or a file in a folder, is written."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stamps = []
    for file in files:
        with suppress(FileNotFoundError):
            status = file.stat()
            if not file.is_dir():
                stamps.append([file.name, status.st_size, status.st_mtime_ns])
    return stamps
