"""A language-model service on the loopback interface whose answers are scripted.

It speaks OpenAI's protocol (chat, completions, files, batches) and Anthropic's (messages, message
batches, and Bedrock's form of them) over real sockets, and records all requests. By default every
request succeeds; ``script`` has other answers, used in turn.

In a process of its own, for measurements: ``python scripted_server.py --latency 0.05`` prints its
address and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import selectors
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

Json = dict[str, Any]


@dataclass
class Seen:
    """A request that was received; ``at`` and ``answered`` are times of ``time.monotonic``."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    at: float
    answered: float = 0.0

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Answer:
    """What to send. ``cut``: send only so many bytes of the content, then close the connection.

    ``drop``: close the connection without an answer. ``hang``: never answer.
    """

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: int | None = None
    drop: bool = False
    hang: bool = False


Act = Callable[[Seen], Answer]


def answer(status: int, content: Any = None, **headers: str) -> Act:
    """Return a function that always gives the same answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda seen: Answer(status, content if content is not None else {}, named)


def drop(seen: Seen) -> Answer:
    return Answer(drop=True)


def hang(seen: Seen) -> Answer:
    return Answer(hang=True)


def user_text(body: Json) -> str:
    """The user's text of a request of any protocol."""
    if "prompt" in body:
        return str(body["prompt"])
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


class ScriptedServer:
    """Use it as a context; ``url`` is for OpenAI's client, ``root`` for Anthropic's.

    ``text`` makes the reply from the user's text, ``usage`` the counts from the body, in the form
    of the protocol. ``key`` is the only one accepted, if set. ``latency`` seconds pass before
    every answer. ``refused_field`` is not accepted in bodies, as OpenAI refuses ``max_tokens``.
    ``act`` answers when the script is empty; by default ``respond``. While ``paused``, nothing is
    sent.

    A batch ends after ``polls`` status requests. ``outcome`` returns for a custom id "succeeded",
    "errored", "invalid", "expired", "canceled" or "missing".
    ``batch_error``: every batch fails as a whole, with this message.
    """

    def __init__(self, latency: float = 0.0, record: bool = True) -> None:
        self.latency, self.record = latency, record
        self.script: deque[Act] = deque()
        self.act: Act = self.respond
        self.paused = False
        self.text: Callable[[str], str] = lambda prompt: f"reply to {prompt[-40:]}"
        self.usage: Callable[[Json], Json] | None = None
        self.key: str | None = None
        self.refused_field: str | None = None
        self.finish = ""
        self.seen: list[Seen] = []
        self.active = self.most_active = 0
        self.polls = 1
        self.outcome: Callable[[str], str] = lambda custom_id: "succeeded"
        self.batch_error: str | None = None
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Json] = {}
        self.port = 0

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def bodies(self) -> list[Json]:
        """The bodies of all POST requests."""
        return [seen.body for seen in self.seen if seen.method == "POST"]

    def __enter__(self) -> ScriptedServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        # epoll wakes at whole milliseconds, which would make every latency longer.
        loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        try:
            loop.run_until_complete(self._serve(ready))
        finally:
            loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.open: set[_Connection] = set()
        server = await self.loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for connection in list(self.open):
            connection.transport.abort()
        await asyncio.sleep(0)

    def decide(self, seen: Seen) -> Answer:
        """The answer to a request; called in the server's thread."""
        if self.key is not None:
            key = seen.headers.get("authorization", "").removeprefix("Bearer ")
            key = seen.headers.get("x-api-key") or key
            if key != self.key:
                return _error(401, f"Incorrect API key provided: {key}", "invalid_api_key")
        return self.script.popleft()(seen) if self.script else self.act(seen)

    def respond(self, seen: Seen) -> Answer:
        """The answer of a service without failures."""
        path = seen.path.removeprefix("/v1")
        if path == "/files":
            return self._upload(seen)
        if path.startswith("/files/"):
            return Answer(200, self.files[path.split("/")[2]])
        if path.startswith("/messages/batches"):
            return self._anthropic_batches(seen, path)
        if path.startswith("/batches"):
            return self._openai_batches(seen, path)
        body = seen.body
        if self.refused_field in body:
            name = self.refused_field
            message = f"Unsupported parameter: '{name}' is not supported with this model."
            return _error(400, message, "unsupported_parameter", param=name)
        if path in ("/chat/completions", "/completions"):
            return Answer(200, self.openai_reply(body))
        if path == "/messages" or path.endswith("/invoke"):
            return Answer(200, self.anthropic_reply(body))
        return _error(404, f"there is nothing at {seen.path}")

    def openai_reply(self, body: Json) -> Json:
        prompt = user_text(body)
        text = self.text(prompt)
        choice: Json = {"index": 0, "finish_reason": self.finish or "stop"}
        if "prompt" in body:
            choice["text"] = text
        else:
            choice["message"] = {"role": "assistant", "content": text}
        counts = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
        usage = self.usage(body) if self.usage else counts
        model = f"{body['model']}-2026-01-01"
        return {"id": "c", "model": model, "choices": [choice], "usage": usage}

    def anthropic_reply(self, body: Json) -> Json:
        prompt = user_text(body)
        text = self.text(prompt)
        counts = {"input_tokens": len(prompt) // 4, "output_tokens": len(text) // 4}
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": f"{body.get('model', 'bedrock')}-20260101",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}],
            "stop_reason": self.finish or "end_turn",
            "usage": self.usage(body) if self.usage else counts,
        }

    def _upload(self, seen: Seen) -> Answer:
        boundary = re.search(r"boundary=\"?([^\";]+)", seen.headers["content-type"])
        assert boundary is not None
        for part in seen.raw.split(b"--" + boundary[1].encode()):
            head, _, content = part.partition(b"\r\n\r\n")
            if b'name="file"' in head:
                return Answer(200, {"id": self._store(content.removesuffix(b"\r\n"))})
        return _error(400, "no file in the form")

    def _store(self, content: bytes) -> str:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return name

    def _openai_batches(self, seen: Seen, path: str) -> Answer:
        if path == "/batches":
            lines = self.files[seen.body["input_file_id"]].splitlines()
            requests = [json.loads(line) for line in lines]
            batch = self._begin([(r["custom_id"], r["body"]) for r in requests])
            assert {request["url"] for request in requests} == {seen.body["endpoint"]}
        else:
            batch = self.batches[path.split("/")[2]]
            self._poll(batch, path.endswith("/cancel"))
        outcomes = batch["outcomes"]
        state = "in_progress"
        if batch["ended"]:
            text = str(outcomes.values())
            others = [name for name in ("expired", "cancelled") if name[:6] in text]
            state = "failed" if self.batch_error else (others or ["completed"])[0]
        good = list(outcomes.values()).count("succeeded")
        counts = {"total": len(outcomes), "completed": good, "failed": len(outcomes) - good}
        shown: Json = {"id": batch["id"], "status": state, "request_counts": counts}
        if batch["ended"] and self.batch_error:
            shown["errors"] = {"data": [{"code": "invalid", "message": self.batch_error}]}
        elif batch["ended"]:
            lines_by_file: dict[str, list[Json]] = {"output_file_id": [], "error_file_id": []}
            for name, body in reversed(batch["requests"]):
                if (line := self.openai_result(name, body, outcomes[name])) is not None:
                    kind = "output_file_id" if outcomes[name] == "succeeded" else "error_file_id"
                    lines_by_file[kind].append(line)
            for kind, lines_ in lines_by_file.items():
                shown[kind] = self._store(_jsonl(lines_)) if lines_ else None
        return Answer(200, shown)

    def openai_result(self, name: str, body: Json, outcome: str) -> Json | None:
        line: Json = {"id": "r", "custom_id": name, "response": None, "error": None}
        if outcome == "succeeded":
            return line | {"response": {"status_code": 200, "body": self.openai_reply(body)}}
        if outcome == "missing":
            return None
        if outcome in ("errored", "invalid"):
            status = 500 if outcome == "errored" else 400
            error = {"error": {"message": f"{outcome}, sorry", "code": None}}
            return line | {"response": {"status_code": status, "body": error}}
        code = "batch_expired" if outcome == "expired" else "batch_cancelled"
        return line | {"error": {"code": code, "message": "This request was not executed."}}

    def _anthropic_batches(self, seen: Seen, path: str) -> Answer:
        parts = path.split("/")
        if len(parts) == 3:
            batch = self._begin([(r["custom_id"], r["params"]) for r in seen.body["requests"]])
        else:
            batch = self.batches[parts[3]]
            if parts[-1] == "results":
                outcomes = batch["outcomes"]
                lines = [self.anthropic_result(n, b, outcomes[n]) for n, b in batch["requests"]]
                return Answer(200, _jsonl([line for line in reversed(lines) if line]))
            self._poll(batch, parts[-1] == "cancel")
        ended = batch["ended"]
        outcomes = batch["outcomes"]
        counts = Counter(outcomes.values() if ended else ["processing"] * len(outcomes))
        counts["errored"] += counts.pop("invalid", 0) + counts.pop("missing", 0)
        state = "ended" if ended else "in_progress"
        url = "http://127.0.0.1:9/elsewhere" if ended else None
        shown = {"id": batch["id"], "processing_status": state, "request_counts": counts}
        return Answer(200, {**shown, "results_url": url})

    def anthropic_result(self, name: str, body: Json, outcome: str) -> Json | None:
        result: Json = {"type": "errored" if outcome == "invalid" else outcome}
        if outcome == "missing":
            return None
        if outcome == "succeeded":
            result["message"] = self.anthropic_reply(body)
        elif outcome in ("errored", "invalid"):
            kind = "api_error" if outcome == "errored" else "invalid_request_error"
            inner = {"type": kind, "message": f"{outcome}, sorry"}
            result["error"] = {"type": "error", "error": inner}
        return {"custom_id": name, "result": result}

    def _begin(self, requests: list[tuple[str, Json]]) -> Json:
        id_ = f"batch_{len(self.batches)}"
        outcomes = {name: self.outcome(name) for name, _ in requests}
        batch: Json = {"id": id_, "requests": requests, "outcomes": outcomes}
        batch |= {"polls": 0, "ended": False}
        self.batches[batch["id"]] = batch
        return batch

    def _poll(self, batch: Json, cancel: bool) -> None:
        batch["polls"] += 1
        if cancel:
            batch["outcomes"] = dict.fromkeys(batch["outcomes"], "canceled")
        batch["ended"] = batch["ended"] or cancel or batch["polls"] > self.polls


class _Connection(asyncio.Protocol):
    """One connection; requests on it are answered one after the other."""

    transport: asyncio.Transport

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self)

    def data_received(self, data: bytes) -> None:
        received_at, buffer = time.monotonic(), self._buffer
        buffer += data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = buffer[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        start, length = end + 4, int(headers.get("content-length", 0))
        if len(buffer) < start + length:
            return
        raw = bytes(buffer[start : start + length])
        del buffer[: start + length]
        method, path, _ = head[0].split(" ", 2)
        self._handle(Seen(method, path, headers, raw, received_at))

    def _handle(self, seen: Seen) -> None:
        server = self._server
        server.active += 1
        server.most_active = max(server.most_active, server.active)
        if server.record:
            server.seen.append(seen)
        try:
            decided = server.decide(seen)
        except Exception as error:
            decided = _error(500, f"the script failed: {error!r}")
        message = _message(decided)  # before the delay, so that this work is not added to it
        delay = decided.delay or server.latency
        if delay:
            server.loop.call_at(seen.at + delay, self._send, seen, decided, message)
        else:
            self._send(seen, decided, message)

    def _send(self, seen: Seen, decided: Answer, message: bytes) -> None:
        if self._server.paused:
            self._server.loop.call_later(0.005, self._send, seen, decided, message)
            return
        self._server.active -= 1
        seen.answered = time.monotonic()
        if decided.hang:
            return
        if decided.drop:
            self.transport.abort()
            return
        self.transport.write(message)
        if decided.cut is not None:
            self.transport.close()


def _message(decided: Answer) -> bytes:
    content = decided.content
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = [f"HTTP/1.1 {decided.status} X", f"content-length: {len(data)}"]
    if not isinstance(content, bytes):
        head.append("content-type: application/json")
    head += [f"{name}: {value}" for name, value in decided.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + data[: decided.cut]


def _error(status: int, message: str, code: str | None = None, param: str | None = None) -> Answer:
    error = {"message": message, "type": "error", "code": code, "param": param}
    return Answer(status, {"error": error})


def _jsonl(records: list[Json]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.05)
    with ScriptedServer(parser.parse_args().latency, record=False) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(server.most_active, flush=True)


if __name__ == "__main__":
    main()
