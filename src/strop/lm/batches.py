"""Batch services, at half the price within a day: OpenAI's batches, Anthropic's message batches.

service = open_batches(load("anthropic:claude-haiku-4-5"))
for batch in service.submit(requests):      # keep batch.id and batch.custom_ids
    ...
service.status([batch.id])
for reply in service.collect({batch.id: batch.custom_ids}):
    ...                                      # reply.key is the custom_id of the request
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, TypeVar

from strop.errors import BadInput, ServiceError
from strop.io.files import Record, short
from strop.lm.anthropic import AnthropicLM
from strop.lm.base import LM, CallFailed, Failure, Reply, Request, one_line
from strop.lm.gate import Gate, persist
from strop.lm.lines import Form, custom_id, read_replies, read_result, request_line, write_requests
from strop.lm.openai import OpenAILM

__all__ = [
    "Batches", "MayHaveBegun", "Status", "Submitted", "custom_id", "open_batches", "read_replies",
    "write_requests",
]  # fmt: skip

T = TypeVar("T")
_TIMEOUT = 600.0


class MayHaveBegun(ServiceError):
    """Nobody can say from here whether a batch was begun: the answer did not come."""


@dataclass(frozen=True)
class Submitted:
    """A batch that the service has taken."""

    id: str
    custom_ids: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """How far a batch is. ``state`` is the service's own word, ``error`` why it failed."""

    id: str
    state: str
    ended: bool
    total: int
    succeeded: int
    failed: int
    error: str = ""


class Batches(ABC):
    """One service. Ids of batches are kept by the caller; nothing is remembered here.

    ``max_requests`` and ``max_bytes`` bound one batch, by default as the service does.
    """

    form: Form
    most_requests: int
    most_bytes: int

    def __init__(
        self,
        lm: OpenAILM | AnthropicLM,
        *,
        max_requests: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.lm = lm
        self._max_requests = max_requests or self.most_requests
        self._max_bytes = max_bytes or self.most_bytes

    def submit(self, requests: Iterable[Request]) -> Iterator[Submitted]:
        """Submit requests, in as many batches as the service's limits ask for.

        Each batch is yielded as soon as the service has taken it and before the next is made:
        keep its id at once. Requests are pulled as batches are filled.
        """
        with closing(self.lm.client(_TIMEOUT)) as client:
            for names, lines in self._grouped(requests):
                yield Submitted(self._begin(client, lines), names)

    def status(self, ids: Iterable[str]) -> list[Status]:
        """Ask how far batches are, in the order of ``ids``."""
        with closing(self.lm.client()) as client:
            return [self._read_status(self._look(client, id)) for id in ids]

    def collect(
        self, ids: Iterable[str] | Mapping[str, Collection[str]]
    ) -> Iterator[Reply | Failure]:
        """Fetch what came of batches that have ended; of others nothing.

        ``ids`` is best given as a mapping of ids to the custom ids submitted: then whatever the
        service does not answer (expired, cancelled, refused as a whole) comes as a failure too.
        Without, a batch that failed as a whole raises ``ServiceError`` after all the others.
        """
        expected = ids if isinstance(ids, Mapping) else {}
        errors = []
        with closing(self.lm.client(_TIMEOUT)) as client:
            for id in ids:
                found = self._look(client, id)
                status = self._read_status(found)
                if not status.ended:
                    continue
                waiting = set(expected.get(id, ()))
                problem = f"batch {status.state}" + (f": {status.error}" if status.error else "")
                for line in self._result_lines(client, found):
                    try:
                        result = read_result(json.loads(line))
                    except (KeyError, TypeError, ValueError):
                        problem = f"{self.lm.host} sent no result but: {one_line(line)}"
                        errors.append(f"{id}: {problem}")
                        continue
                    waiting.discard(result.key)
                    yield result
                for name in sorted(waiting):
                    yield Failure(name, f"no result ({problem})", False, 0.0)
                if status.error and id not in expected:
                    errors.append(f"{id}: {status.error}")
        if errors and not isinstance(ids, Mapping):
            raise ServiceError("; ".join(errors))

    def cancel(self, ids: Iterable[str]) -> None:
        """Ask the service to end batches; what is done by then can still be collected."""
        with closing(self.lm.client()) as client:
            for id in ids:
                self._try(partial(self.lm.send, partial(self._cancel, client, id)))

    def _grouped(self, requests: Iterable[Request]) -> Iterator[tuple[tuple[str, ...], IO[bytes]]]:
        """Fill files with lines up to the limits; yield each with the ids in it, at its start."""
        encoded = self._encoded(requests)
        item = next(encoded, None)
        while item is not None:
            with tempfile.TemporaryFile() as lines:
                names: list[str] = []
                while (
                    item is not None
                    and len(names) < self._max_requests
                    and lines.tell() + len(item[1]) <= self._max_bytes
                ):
                    names.append(item[0])
                    lines.write(item[1])
                    item = next(encoded, None)
                lines.seek(0)
                yield tuple(names), lines

    def _encoded(self, requests: Iterable[Request]) -> Iterator[tuple[str, bytes]]:
        """Yield the id and the line of each request."""
        seen: set[str] = set()
        for request in requests:
            line = request_line(self.form, request, self.lm.body(request), self._url(), seen)
            data = line.encode()
            if len(data) > self._max_bytes:
                limit = f"the service takes {self._max_bytes:,}"
                raise BadInput(f"request {short(request.key)} has {len(data):,} bytes; {limit}")
            yield custom_id(request.key), data

    def _begin(self, client: Any, lines: IO[bytes]) -> str:
        """Submit one batch; return its id."""
        call = self._prepared(client, lines)
        batch = self._try(partial(self._once, call))
        if not isinstance(batch, dict) or not batch.get("id"):
            raise MayHaveBegun(f"{self.lm.host} sent no batch but: {one_line(str(batch))}")
        return str(batch["id"])

    def _once(self, call: Callable[[], str]) -> Any:
        """Begin a batch; repeat only what was surely refused, since a second one costs money."""
        try:
            return self.lm.send(call)
        except CallFailed as failure:
            if failure.passing and not failure.crowded:
                advice = "it may have begun all the same: look at the service's list of batches"
                raise MayHaveBegun(f"{failure}; {advice}, then submit again") from None
            raise

    def _look(self, client: Any, id: str) -> Record:
        found = self._try(partial(self.lm.send, partial(self._retrieve, client, id)))
        if not isinstance(found, dict):
            raise ServiceError(f"{self.lm.host} said of batch {id}: {one_line(str(found))}")
        return found

    def _try(self, call: Callable[[], T]) -> T:
        """Call, repeating what may work later."""
        try:
            return persist(call, Gate(1, self.lm.policy.clock), self.lm.policy)
        except CallFailed as failure:
            raise ServiceError(str(failure)) from None

    @abstractmethod
    def _url(self) -> str:
        """The endpoint named in each line."""

    @abstractmethod
    def _prepared(self, client: Any, lines: IO[bytes]) -> Callable[[], str]:
        """The call that begins a batch of these lines."""

    @abstractmethod
    def _retrieve(self, client: Any, id: str) -> str:
        """The service's JSON about a batch."""

    @abstractmethod
    def _cancel(self, client: Any, id: str) -> str:
        """Ask for the end of a batch; the service's JSON about it."""

    @abstractmethod
    def _read_status(self, found: Record) -> Status:
        """What that JSON says."""

    @abstractmethod
    def _result_lines(self, client: Any, found: Record) -> Iterator[str]:
        """The lines of results of a batch that has ended."""

    def _lines(self, client: Any, path: str) -> Iterator[str]:
        headers = {"headers": {"Accept": "application/binary"}}
        call = partial(client.get, path, cast_to=str, options=headers)
        # Not splitlines: JSON may hold other characters that it takes for line breaks.
        for line in self._try(partial(self.lm.fetch, call)).split("\n"):
            if line.strip():
                yield line


class OpenAIBatches(Batches):
    """A file of requests is uploaded, a batch made of it, and files of results fetched."""

    form = "openai"
    most_requests = 50_000
    most_bytes = 200_000_000

    def _url(self) -> str:
        assert isinstance(self.lm, OpenAILM)
        return self.lm.endpoint

    def _prepared(self, client: Any, lines: IO[bytes]) -> Callable[[], str]:
        def upload() -> str:
            lines.seek(0)
            file = ("requests.jsonl", lines, "application/jsonl")
            headers = {"Content-Type": "multipart/form-data"}
            text: str = client.post(
                "/files", body={"purpose": "batch"}, files=[("file", file)],
                options={"headers": headers}, cast_to=str,
            )  # fmt: skip
            return text

        file = self._try(partial(self.lm.send, upload))
        body = {
            "input_file_id": file.get("id") if isinstance(file, dict) else None,
            "endpoint": self._url(),
            "completion_window": "24h",
        }
        return partial(client.post, "/batches", body=body, cast_to=str)

    def _retrieve(self, client: Any, id: str) -> str:
        text: str = client.get(f"/batches/{id}", cast_to=str)
        return text

    def _cancel(self, client: Any, id: str) -> str:
        text: str = client.post(f"/batches/{id}/cancel", cast_to=str)
        return text

    def _read_status(self, found: Record) -> Status:
        counts = found.get("request_counts") or {}
        errors = (found.get("errors") or {}).get("data") or []
        state = str(found.get("status"))
        return Status(
            str(found.get("id")),
            state,
            state in ("completed", "failed", "expired", "cancelled"),
            int(counts.get("total") or 0),
            int(counts.get("completed") or 0),
            int(counts.get("failed") or 0),
            one_line("; ".join(str(error.get("message")) for error in errors)),
        )

    def _result_lines(self, client: Any, found: Record) -> Iterator[str]:
        for name in ("output_file_id", "error_file_id"):
            if file := found.get(name):
                yield from self._lines(client, f"/files/{file}/content")


class AnthropicBatches(Batches):
    """Requests are sent in one call, and results fetched in one once all have been dealt with."""

    form = "anthropic"
    most_requests = 100_000
    most_bytes = 256_000_000
    _path = "/v1/messages/batches"

    def _url(self) -> str:
        return ""

    def _prepared(self, client: Any, lines: IO[bytes]) -> Callable[[], str]:
        body = {"requests": [json.loads(line) for line in lines]}
        return partial(client.post, self._path, body=body, cast_to=str)

    def _retrieve(self, client: Any, id: str) -> str:
        text: str = client.get(f"{self._path}/{id}", cast_to=str)
        return text

    def _cancel(self, client: Any, id: str) -> str:
        text: str = client.post(f"{self._path}/{id}/cancel", cast_to=str)
        return text

    def _read_status(self, found: Record) -> Status:
        counts = found.get("request_counts") or {}
        state = str(found.get("processing_status"))
        failed = sum(int(counts.get(name) or 0) for name in ("errored", "canceled", "expired"))
        succeeded = int(counts.get("succeeded") or 0)
        total = int(counts.get("processing") or 0) + succeeded + failed
        return Status(str(found.get("id")), state, state == "ended", total, succeeded, failed)

    def _result_lines(self, client: Any, found: Record) -> Iterator[str]:
        # Not from the address in results_url: the key would go wherever that points.
        yield from self._lines(client, f"{self._path}/{found.get('id')}/results")


def open_batches(
    lm: LM, *, max_requests: int | None = None, max_bytes: int | None = None
) -> Batches:
    """The batch service of a model's vendor."""
    limits = {"max_requests": max_requests, "max_bytes": max_bytes}
    if isinstance(lm, OpenAILM):
        return OpenAIBatches(lm, **limits)
    if isinstance(lm, AnthropicLM) and not lm.bedrock:
        return AnthropicBatches(lm, **limits)
    raise BadInput(f"{lm.name} has no batch service; openai:<model> and anthropic:<model> have")
