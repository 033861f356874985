"""The stages around a language model: requests, replies, and queries with their vectors.

A unit of work is a bucket if prompts show references, else a shard of documents. The replies of a
unit are in a file of either vendor's batch format: the user puts it there, or ``send_requests``
writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strop.distributed.neighbors import TEXTS, read_buckets
from strop.distributed.shards import (
    TaskResult,
    arrow,
    documents_in,
    finished,
    read_table,
    write_table,
)
from strop.distributed.vectors import embed_texts, embedder_of, loaded_once
from strop.errors import BadInput
from strop.generate.calls import Calls
from strop.generate.plan import GenerationSettings, Task, make_task, read_task
from strop.io.sentences import title_and_sentences
from strop.lm import LM, Failure, Reply, Request, load
from strop.lm.batch_files import custom_id, read_replies, write_requests
from strop.lm.prices import Price
from strop.types import Document, Kind

SENTENCES = "sentences"


def model_of(spec: Mapping[str, Any]) -> LM:
    """Return the language model of a run, loaded once in each process."""
    return loaded_once(load, spec)


class _PromptUnit:
    """The prompts of one unit of work, and the file of its replies."""

    def __init__(
        self, folder: Path, name: str, *, style: str, shards: Sequence[str] | None,
        lm: Mapping[str, Any], settings: dict[str, Any], price: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._name, self._shards = folder, name, shards
        self.settings = GenerationSettings.from_json(settings)
        self.replies = _ReplyFile(replies_path(folder, style, name))
        self.calls = Calls(
            model_of(lm), self.settings.to_json(), self.replies.save,
            None if price is None else Price(*price),
        )  # fmt: skip

    def tasks(self) -> Iterator[Task]:
        """Yield the prompts of each document of a bucket, or of a shard if ``shards`` is None."""
        if self._shards is None:
            for row, document in _documents_of(self._folder, self._name):
                yield make_task(self.calls, self.settings, row, document, ())
            return
        folder, own_bucket = self._folder, int(self._name)
        columns = ["row", "references", "buckets"]
        chosen = read_table(folder / "references" / f"{self._name}.parquet", columns)
        lists, buckets = chosen["references"].to_pylist(), chosen["buckets"].to_pylist()
        reference_rows = np.unique([row for rows in lists for row in rows])
        documents = dict(documents_in(read_buckets(folder, self._shards, [own_bucket], TEXTS)))
        for bucket in {number for numbers in buckets for number in numbers} - {own_bucket}:
            table = read_buckets(folder, self._shards, [bucket], TEXTS)
            documents |= documents_in(
                table.filter(np.isin(table["row"].to_numpy(), reference_rows))
            )
        for row, rows in zip(chosen["row"].to_pylist(), lists, strict=True):
            references = tuple(documents[other] for other in rows)
            yield make_task(self.calls, self.settings, row, documents[row], references)

    def open_requests(self) -> Iterator[tuple[Request, int]]:
        """Yield each request without a reply once, with the row of its document."""
        seen = set[str]()
        for task in self.tasks():
            for request in task.requests:
                if request.key not in seen and not self.replies.answered(request.key):
                    seen.add(request.key)
                    yield request, task.number


def _documents_of(folder: Path, shard: str) -> list[tuple[int, Document]]:
    return documents_in(read_table(folder / "documents" / f"{shard}.parquet", TEXTS))


class _ReplyFile:
    """The replies of one unit. New ones are appended, and synced to disk before they count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._replies: dict[str, Reply] = {}
        self.final_failures = set[str]()
        if path.exists():
            self._drop_cut_line()
            for reply in read_replies(path):
                if isinstance(reply, Reply):
                    self._replies[reply.key] = reply
                elif reply.final:
                    self.final_failures.add(reply.key)

    def _drop_cut_line(self) -> None:
        """Remove an incomplete last line, left by a killed process."""
        with open(self.path, "rb+") as file:
            content = file.read()
            if content and not content.endswith(b"\n"):
                tail = content.rpartition(b"\n")[2]
                try:
                    json.loads(tail)
                    file.write(b"\n")
                except ValueError:
                    file.truncate(len(content) - len(tail))

    def answered(self, key: str) -> bool:
        name = custom_id(key)
        return name in self._replies or name in self.final_failures

    def read(self, key: str) -> Reply | None:
        return self._replies.get(custom_id(key))

    def save(
        self, replies: list[tuple[Reply, int]], failures: list[tuple[Failure, int]], _: object
    ) -> None:
        lines = [reply_line(one) for one, _ in replies]
        lines += [_failure_line(one) for one, _ in failures if one.final]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())


def reply_line(reply: Reply) -> str:
    """Return a reply as a line of OpenAI's batch format, which ``read_replies`` reads."""
    usage = reply.usage
    body = {
        "model": reply.model,
        "choices": [
            {
                "message": {"role": "assistant", "content": reply.text},
                "finish_reason": "length" if reply.truncated else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }
    record = {"custom_id": custom_id(reply.key), "response": {"status_code": 200, "body": body}}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _failure_line(failure: Failure) -> str:
    body = {"error": {"code": "refused", "message": failure.error}}
    response = {"status_code": 400, "body": body}
    return json.dumps({"custom_id": custom_id(failure.key), "response": response}) + "\n"


def replies_path(folder: Path, style: str, name: str) -> Path:
    """Return the path of a unit's replies, written by strop or by the user."""
    return folder / "replies" / style / f"{name}.jsonl"


def write_request_file(folder: Path, name: str, *, style: str, **prompts: Any) -> TaskResult:
    """Write the unanswered requests of a unit in the format of the model's vendor."""
    unit = _PromptUnit(folder, name, style=style, **prompts)
    path = folder / "requests" / style / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = write_requests(path, (one for one, _ in unit.open_requests()), unit.calls.lm)
    return TaskResult((finished(path, written),), counts={"requests": written})


def send_requests(folder: Path, name: str, *, budget: float | None, **prompts: Any) -> TaskResult:
    """Send the unanswered requests of a unit; each reply is stored when it arrives."""
    unit = _PromptUnit(folder, name, **prompts)
    spent = unit.calls.run(unit.open_requests(), budget=budget)
    path = unit.replies.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    unit.replies = _ReplyFile(path)
    unanswered = sum(1 for _ in unit.open_requests())
    counts = {
        "replies": spent.replies, "failures": spent.failures, "open": unanswered,
        "input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens,
        "cost": spent.cost or 0.0,
    }  # fmt: skip
    return TaskResult((finished(path, spent.replies),), counts=counts, complete=not unanswered)


# -- queries ----------------------------------------------------------------------------------


def make_queries(
    folder: Path, name: str, *, style: str, embedder: Mapping[str, Any], n: int, **prompts: Any
) -> TaskResult:
    """Make and embed the queries of a unit: at most ``n`` sentences, or those of the replies."""
    lists_by_row = list[tuple[int, str, list[str]]]()
    dropped = unanswered = 0
    if style == SENTENCES:
        for row, document in _documents_of(folder, name):
            sentences = title_and_sentences(document.title, document.text, n)
            lists_by_row.append((row, document.id, sentences))
    else:
        unit = _PromptUnit(folder, name, style=style, **prompts)
        if not unit.replies.path.exists():
            raise BadInput(
                f"{unit.replies.path} is missing: put the service's results of"
                f" requests/{style}/{name}.jsonl there, or run --stage replies"
            )
        for task in unit.tasks():
            generated = read_task(task, unit.settings.prompt, unit.replies.read)
            dropped += len(generated.dropped)
            unanswered += len(generated.missing)
            lists_by_row.append((task.number, task.document.id, generated.queries))
    model = embedder_of(embedder)
    kind: Kind = "document" if style == SENTENCES else "query"
    vectors, refused = embed_texts(model, [queries for _, _, queries in lists_by_row], kind)
    lists = [[] if at in refused else queries for at, (_, _, queries) in enumerate(lists_by_row)]
    ends = np.cumsum([0, *map(len, lists)]) * model.dim
    pyarrow = arrow()
    columns = {
        "row": np.array([row for row, _, _ in lists_by_row], np.int64),
        "id": [id_ for _, id_, _ in lists_by_row],
        "queries": pyarrow.array(lists, pyarrow.list_(pyarrow.string())),
        "vectors": pyarrow.LargeListArray.from_arrays(
            pyarrow.array(ends, pyarrow.int64()), pyarrow.array(vectors.ravel())
        ),
    }
    file = write_table(folder / "queries" / style / f"{name}.parquet", columns)
    counts = {"queries": sum(map(len, lists)), "refused": len(refused), "dropped": dropped}
    return TaskResult((file,), counts={**counts, "open": unanswered})
