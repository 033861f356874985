"""The fuzz targets: readers of files and replies. Each takes bytes and returns nothing.

A target may refuse its input with strop's own error. Any other exception is a finding.
``SEEDS`` has valid inputs for each target; inputs that once failed are added to them.
"""

from __future__ import annotations

import gzip
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import httpx

from strop.common.http import Client
from strop.common.retries import CallFailed
from strop.embed.api import ApiEmbedder
from strop.errors import StropError
from strop.expand.prompts import TASKS, read_passage, read_verdict
from strop.filters import matches, read_condition, read_filter
from strop.generate.filters import apply_filters
from strop.generate.parsing import parse_reply
from strop.generate.prompts import PromptSettings
from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset, read_qrels, read_queries, read_query_lists
from strop.io.sentences import title_and_sentences
from strop.lm.anthropic import read_anthropic
from strop.lm.openai import read_openai
from strop.methods import parse_method

Target = Callable[[bytes], None]
PROMPTS = [
    PromptSettings(style="simple"),
    PromptSettings(style="contrastive"),
    PromptSettings(style="simple", profile="small"),
]


def accepts(target: Target, data: bytes) -> bool:
    """Run a target; return False if it refused the input with strop's own error."""
    try:
        target(data)
    except (StropError, CallFailed):  # CallFailed is the error of a single call to a service
        return False
    return True


@cache
def _folder() -> Path:
    """A folder for input files, in memory if the system has /dev/shm."""
    shared = "/dev/shm"
    folder = shared if os.access(shared, os.W_OK) else None
    _folder.keeper = tempfile.TemporaryDirectory(dir=folder)  # type: ignore[attr-defined]
    return Path(_folder.keeper.name)  # type: ignore[attr-defined]


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -- files --------------------------------------------------------------------------------------


def _corpus(name: str) -> Target:
    def read(data: bytes) -> None:
        for document in read_corpus(_file(name, data)):
            title_and_sentences(document.title, document.text)

    return read


def text_folder(data: bytes) -> None:
    folder = _folder() / "texts"
    folder.mkdir(exist_ok=True)
    (folder / "one.md").write_bytes(data)
    list(read_corpus(folder))


def zipped(data: bytes) -> None:
    list(read_corpus(_file("zipped.jsonl.gz", data)))


def queries(data: bytes) -> None:
    read_queries(_file("queries.jsonl", data))


def qrels(data: bytes) -> None:
    read_qrels(_file("qrels.tsv", data))


def query_lists(data: bytes) -> None:
    list(read_query_lists(_file("lists.jsonl", data)))


def dataset(data: bytes) -> None:
    """The first zero byte separates the two files of a dataset."""
    folder = _folder() / "dataset"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    first, _, second = data.partition(b"\0")
    (folder / "queries.jsonl").write_bytes(first)
    (folder / "qrels" / "test.tsv").write_bytes(second)
    read_dataset(folder)


# -- texts --------------------------------------------------------------------------------------


def reply(data: bytes) -> None:
    """The first byte selects the prompt and whether the reply is truncated."""
    choice = data[0] if data else 0
    parsed = parse_reply(
        _text(data[1:]), PROMPTS[choice % len(PROMPTS)], truncated=choice > 127, references=5
    )
    assert len(parsed.queries) == len(parsed.against)
    apply_filters(parsed.queries, "Foxes are small animals that live in the woods.")


def passage(data: bytes) -> None:
    for task in TASKS.values():
        read_passage(_text(data), task)
    read_verdict(_text(data))


def method(data: bytes) -> None:
    parse_method(_text(data))


def condition(data: bytes) -> None:
    """A filter of the command line: it is parsed and applied."""
    matches(read_filter(read_condition(_text(data))), "a", {"year": 2020, "tags": ["a", None]})


# -- services -----------------------------------------------------------------------------------


class Service:
    """A service on this machine that answers every connection with the same bytes."""

    def __init__(self) -> None:
        self.answer = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            try:
                with connection:
                    connection.recv(65536)
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
            except OSError:  # the client closed the connection
                pass


@cache
def _service() -> Service:
    return Service()


def http_stream(data: bytes) -> None:
    """The input is a reply of a service, with status line and headers."""
    service = _service()
    service.answer = data
    with Client(service.url, {}, 60) as client:
        client.post("/v1/chat/completions", {}, limit=1 << 20)


def embedding_body(data: bytes) -> None:
    """The input is the body that a service sends for two texts."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=data))
    embedder = ApiEmbedder("api:x", base_url="http://service", retries=0, transport=transport)
    embedder.embed(["a fox", "an owl"], "document")


def openai_body(data: bytes) -> None:
    read_openai(Client("http://service", {}, 60).parsed(data), "service")


def anthropic_body(data: bytes) -> None:
    read_anthropic(Client("http://service", {}, 60).parsed(data), "service")


def error_body(data: bytes) -> None:
    """An error reply of a service: the status from the first byte, then a body."""
    client = Client("http://service", {}, 60)
    status = 400 + (data[0] if data else 0)
    raise client.refused(status, client.parsed(data[1:]), {"retry-after": _text(data[1:40])})


TARGETS: dict[str, Target] = {
    "jsonl": _corpus("corpus.jsonl"),
    "csv": _corpus("corpus.csv"),
    "tsv": _corpus("corpus.tsv"),
    "text_folder": text_folder,
    "zipped": zipped,
    "queries": queries,
    "qrels": qrels,
    "query_lists": query_lists,
    "dataset": dataset,
    "reply": reply,
    "passage": passage,
    "method": method,
    "condition": condition,
    "http_stream": http_stream,
    "embedding_body": embedding_body,
    "openai_body": openai_body,
    "anthropic_body": anthropic_body,
    "error_body": error_body,
}

_DOCUMENT = b'{"_id": "a", "title": "Foxes", "text": "The fox. It runs.", "metadata": {"n": [1]}}\n'
_QUERY = b'{"_id": "q1", "text": "what is a fox", "metadata": {}}\n'
_QRELS = b"query-id\tcorpus-id\tscore\nq1\ta\t1\nq2\tb\t0\n"

_OPENAI = (
    b'{"model": "m", "choices": [{"message": {"content": "<query>a</query>"}, "finish_reason": '
    b'"stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'
)
_ANTHROPIC = (
    b'{"model": "m", "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn", '
    b'"usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 1}}'
)

SEEDS: dict[str, list[bytes]] = {
    "jsonl": [_DOCUMENT * 2, b'{"id": 7, "text": null}\n', b"\xef\xbb\xbf" + _DOCUMENT],
    "csv": [b'id,title,text,year\n1,Foxes,"a, ""b""\nc",1999\n2,,x,\n', b"id;text\n1;a\n"],
    "tsv": [b"id\ttext\n1\tthe fox\n2\towl\n"],
    "text_folder": [b"# Title #\n\nText. More text.\n", b"---\ntitle: A\ntags: [b]\n---\nText\n"],
    "zipped": [gzip.compress(_DOCUMENT * 3, mtime=0), b"\x1f\x8b"],
    "queries": [_QUERY, b"q1\twhat is a fox\n"],
    "qrels": [_QRELS, b"q1 0 a 1\nq1 Q0 b 2\n"],
    "query_lists": [b'{"id": "a", "queries": ["one", "two"]}\n', b'{"_id": 1, "query": "one"}\n'],
    "dataset": [_QUERY + b"\0" + _QRELS],
    "reply": [
        b"\x00<query>what is a fox</query>\n<query>who runs</query>",
        b"\x01<plan>about</plan><query>what</query><against>1, 3</against>",
        b'\x81```json\n{"queries": [{"query": "what is", "plan": "p"}, "who"]}\n```',
        b"\x021. what is a fox\n2. **who** runs\n- third\nQuery: fourth",
        b"\x01<think>no</think>I'm sorry, I cannot <|channel|>final<|message|>1. one",
    ],
    "passage": [b"Passage: **The fox** runs.</passage>", b"<think>a</think> Yes, relevant."],
    "method": [
        b"sharp:alpha=2:temperature=0.1:sets=simple+contrastive:n=5",
        b"hybrid:of=sharp",
        b"trad:words=1",
        b"sharp:feedback=0.5",
    ],
    "condition": [
        b"year>=2020",
        b'lang!="en"',
        b'{"year": {"$gte": 2020, "$ne": 2021.5}, "tags": {"$in": ["a", null]}}',
        b'{"$or": [{"day": {"$lt": "2020-01-31T10:00:00.5+02:00"}}, {"$not": {"$id": "a"}}]}',
        b'{"a.b": {"$exists": true}, "$and": [{"c": {"$nin": [true, 1e400]}}]}',
    ],
    "http_stream": [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_OPENAI), _OPENAI),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}", mtime=0),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Slow\r\nRetry-After: 7\r\n\r\n{}",
        b"HTTP/1.1 307 Moved\r\nLocation: http://elsewhere/\r\n\r\n",
        b"HTTP/1.1 307 Moved\r\nLocation: http:\xde\x06//elsewhere/\r\n\r\n",
        b"HTTP/1.1 307 Moved\r\nLocation: http://[::1/\r\n\r\n",
    ],
    "embedding_body": [
        b'{"data": [{"index": 1, "embedding": [0.6, 0.8]}, {"index": 0, "embedding": [1, 0]}]}',
        b'{"data": [{"embedding": "AACAPwAAAAA="}, {"embedding": "AAAAAAAAgD8="}], "usage": {}}',
    ],
    "openai_body": [_OPENAI, b'{"choices": [{"text": "a", "finish_reason": "length"}]}'],
    "anthropic_body": [_ANTHROPIC],
    "error_body": [
        b'\x1d{"error": {"message": "slow", "type": "rate_limit", "code": "insufficient_quota"}}',
        b'\x00{"detail": [{"loc": ["body", "max_tokens"], "msg": "unknown"}]}',
    ],
}
