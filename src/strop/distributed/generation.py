"""The stages around a language model: requests, replies, and queries with their vectors.

A unit of work is a bucket where prompts show references, else a shard of documents. The replies of
a unit are kept in a file of either vendor's batch form: the user puts it there, or ``ask`` writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strop.distributed.neighbours import TEXTS, read_buckets
from strop.distributed.shards import (
    Done,
    arrow,
    documents_in,
    finished,
    read_table,
    write_table,
)
from strop.distributed.vectors import embed_texts, embedder_of
from strop.errors import BadInput
from strop.generate.calls import Calls
from strop.generate.plan import GenerationSettings, Task, make_task, read_task
from strop.io.sentences import title_and_sentences
from strop.lm import LM, Failure, Reply, Request, load
from strop.lm.lines import custom_id, read_replies, write_requests
from strop.lm.prices import Price
from strop.types import Document, Kind

SENTENCES = "sentences"


class Asked(NamedTuple):
    """A document with the references that its prompts show."""

    row: int
    document: Document
    references: tuple[Document, ...]


def _asked(folder: Path, name: str, shards: Sequence[str] | None) -> Iterator[Asked]:
    """Yield the documents of a bucket with their references; of a shard if ``shards`` is None."""
    if shards is None:
        table = read_table(folder / "documents" / f"{name}.parquet", TEXTS)
        for row, document in documents_in(table):
            yield Asked(row, document, ())
        return
    chosen = read_table(folder / "references" / f"{name}.parquet", ["row", "references", "buckets"])
    lists, buckets = chosen["references"].to_pylist(), chosen["buckets"].to_pylist()
    wanted = np.unique([row for rows in lists for row in rows])
    known = dict(documents_in(read_buckets(folder, shards, [int(name)], TEXTS)))
    for bucket in {one for some in buckets for one in some} - {int(name)}:
        table = read_buckets(folder, shards, [bucket], TEXTS)
        known |= documents_in(table.filter(np.isin(table["row"].to_numpy(), wanted)))
    for row, references in zip(chosen["row"].to_pylist(), lists, strict=True):
        yield Asked(row, known[row], tuple(known[one] for one in references))


# -- requests and replies ---------------------------------------------------------------------


@lru_cache(maxsize=1)
def _loaded(spec: str, options: str) -> LM:
    return load(spec, **json.loads(options))


def model_of(given: Mapping[str, Any]) -> LM:
    """Return the language model of a run, loaded once in each process."""
    return _loaded(given["name"], json.dumps(given["options"], sort_keys=True))


def _tasks(
    folder: Path, name: str, shards: Sequence[str] | None, calls: Calls, asks: GenerationSettings
) -> Iterator[Task]:
    for row, document, references in _asked(folder, name, shards):
        yield make_task(calls, asks, row, document, references)


def _calls(
    lm: LM, asks: GenerationSettings, replies: _ReplyFile | None, price: Any = None
) -> Calls:
    save = replies.save if replies is not None else (lambda *_: None)
    return Calls(lm, asks.to_json(), save, None if price is None else Price(*price))


def _open_requests(tasks: Iterator[Task], replies: _ReplyFile) -> Iterator[tuple[Request, int]]:
    """Yield each request without a reply once, with the row of its document."""
    seen = set[str]()
    for task in tasks:
        for request in task.requests:
            if request.key not in seen and not replies.answered(request.key):
                seen.add(request.key)
                yield request, task.number


class _ReplyFile:
    """The replies of one unit. New ones are appended, and on the disk before they count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._replies: dict[str, Reply] = {}
        self.final_failures = set[str]()
        if path.exists():
            self._drop_cut_line()
            for one in read_replies(path):
                if isinstance(one, Reply):
                    self._replies[one.key] = one
                elif one.final:
                    self.final_failures.add(one.key)

    def _drop_cut_line(self) -> None:
        """Remove what a kill left of the last line."""
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

    def digest(self) -> str:
        return finished(self.path, 0).digest if self.path.exists() else ""


def reply_line(reply: Reply) -> str:
    """Return a reply as a line of OpenAI's batch form, which ``read_replies`` reads."""
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
    """Return where the replies of a unit are kept, or put by the user."""
    return folder / "replies" / style / f"{name}.jsonl"


def write_request_file(
    folder: Path, name: str, *, style: str, shards: Sequence[str] | None, lm: dict[str, Any],
    settings: dict[str, Any], **_: Any,
) -> Done:  # fmt: skip
    """Write the open requests of a unit in the form of the model's vendor."""
    asks, model = GenerationSettings.from_json(settings), model_of(lm)
    replies = _ReplyFile(replies_path(folder, style, name))
    tasks = _tasks(folder, name, shards, _calls(model, asks, None), asks)
    path = folder / "requests" / style / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = write_requests(path, (one for one, _ in _open_requests(tasks, replies)), model)
    return Done((finished(path, written),), counts={"requests": written})


def ask(
    folder: Path, name: str, *, style: str, shards: Sequence[str] | None, lm: dict[str, Any],
    settings: dict[str, Any], price: Any, budget: float | None, **_: Any,
) -> Done:  # fmt: skip
    """Send the open requests of a unit; each reply is kept as it comes."""
    asks, model = GenerationSettings.from_json(settings), model_of(lm)
    replies = _ReplyFile(replies_path(folder, style, name))
    calls = _calls(model, asks, replies, price)
    open_ = _open_requests(_tasks(folder, name, shards, calls, asks), replies)
    spent = calls.run(open_, budget=budget)
    replies.path.parent.mkdir(parents=True, exist_ok=True)
    replies.path.touch()
    known = _ReplyFile(replies.path)
    left = sum(1 for _ in _open_requests(_tasks(folder, name, shards, calls, asks), known))
    counts = {
        "replies": spent.replies, "failures": spent.failures, "open": left,
        "input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens,
        "cost": spent.cost or 0.0,
    }  # fmt: skip
    return Done((finished(replies.path, spent.replies),), counts=counts, complete=not left)


# -- queries ----------------------------------------------------------------------------------


def make_queries(
    folder: Path, name: str, *, style: str, embedder: Mapping[str, Any],
    shards: Sequence[str] | None = None, lm: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None, n: int = 0, **_: Any,
) -> Done:  # fmt: skip
    """Make and embed the queries of a unit: sentences, or what the replies give."""
    kind: Kind = "document" if style == SENTENCES else "query"
    rows, ids, lists, counts = (
        list[int](),
        list[str](),
        list[list[str]](),
        {"dropped": 0, "open": 0},
    )
    if style == SENTENCES:
        for row, document, _references in _asked(folder, name, None):
            rows.append(row)
            ids.append(document.id)
            lists.append(title_and_sentences(document.title, document.text, n))
    else:
        assert lm is not None
        assert settings is not None
        asks = GenerationSettings.from_json(settings)
        replies = _ReplyFile(replies_path(folder, style, name))
        if not replies.path.exists():
            raise BadInput(
                f"{replies.path} is missing: put the service's results of"
                f" requests/{style}/{name}.jsonl there, or run --stage replies"
            )
        for task in _tasks(folder, name, shards, _calls(model_of(lm), asks, None), asks):
            one = read_task(task, asks.prompt, replies.read)
            counts["dropped"] += len(one.dropped)
            counts["open"] += len(one.missing)
            rows.append(task.number)
            ids.append(task.document.id)
            lists.append(one.queries)
    model = embedder_of(embedder)
    vectors, refused = embed_texts(model, lists, kind)
    lists = [[] if at in refused else one for at, one in enumerate(lists)]
    ends = np.cumsum([0, *map(len, lists)]) * model.dim
    pyarrow = arrow()
    flat = pyarrow.LargeListArray.from_arrays(
        pyarrow.array(ends, pyarrow.int64()), pyarrow.array(vectors.ravel())
    )
    columns = {
        "row": np.array(rows, np.int64), "id": ids,
        "queries": pyarrow.array(lists, pyarrow.list_(pyarrow.string())), "vectors": flat,
    }  # fmt: skip
    file = write_table(folder / "queries" / style / f"{name}.parquet", columns)
    total = {"queries": sum(map(len, lists)), "refused": len(refused), **counts}
    return Done((file,), counts=total)
