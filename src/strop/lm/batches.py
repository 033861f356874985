"""Batch services, at half the price within a day: OpenAI's batches, Anthropic's message batches.

service = open_batches(load("anthropic:claude-sonnet-5"))
for id, names in service.submit(requests):  # store both; the names are custom ids
    ...
service.status([id])
for reply in service.collect(id, names):    # reply.key is the custom id of the request
    ...
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, TypeVar
from urllib.parse import quote

from strop.common.http import Client
from strop.common.retries import CallFailed, ConcurrencyLimit, call_with_retries
from strop.common.secrets import one_line, redact, storable
from strop.errors import BadInput, ServiceError
from strop.io.files import Record, short
from strop.lm.anthropic import AnthropicLM
from strop.lm.base import LM, Failure, Reply, Request, token_count
from strop.lm.batch_files import as_object, custom_id, read_result, request_line
from strop.lm.openai import OpenAILM
from strop.lm.service import ServiceLM

T = TypeVar("T")
_TIMEOUT = 3600.0
"""Timeout in seconds of a call that sends or fetches a file."""
_RESULT_BYTES = 4 << 30


class MayHaveBegun(ServiceError):
    """The service's answer to a submission did not arrive: a batch may be running."""


@dataclass(frozen=True)
class Status:
    """Progress of a batch. ``state`` is the service's term, ``error`` the reason of a failure."""

    id: str
    state: str
    ended: bool
    total: int
    succeeded: int
    failed: int
    error: str = ""


class Batches(ABC):
    """One service. The caller stores the ids of batches; nothing is stored here.

    ``most_requests`` and ``most_bytes`` are the service's limits of one batch.
    """

    most_requests: int
    most_bytes: int
    path: str

    def __init__(self, lm: ServiceLM) -> None:
        self.lm = lm

    def submit(self, requests: Iterable[Request]) -> Iterator[tuple[str, list[str]]]:
        """Submit requests, in as many batches as the service's limits require.

        The id of each batch and the custom ids in it are yielded as soon as the service has
        accepted it, before the next batch is sent: store both at once. Requests are pulled as
        batches are filled.
        """
        with self.lm.client(_TIMEOUT) as client:
            for names, lines in self._grouped(requests):
                yield self._begin(client, lines), names

    def status(self, ids: Iterable[str]) -> list[Status]:
        """Return the status of batches, in the order of ``ids``."""
        with self.lm.client() as client:
            return [self._read_status(id, self._fetch_batch(client, id)) for id in ids]

    def collect(self, id: str, names: Collection[str]) -> Iterator[Reply | Failure]:
        """Fetch the results of a batch; there are none before it has ended.

        ``names`` are the submitted custom ids: a request without an answer (expired, cancelled,
        batch refused) is yielded as a failure.
        """
        with self.lm.client(_TIMEOUT) as client:
            batch = self._fetch_batch(client, id)
            status = self._read_status(id, batch)
            if not status.ended:
                return
            missing = set(names)
            problems = [f"batch {status.state}" + (f": {status.error}" if status.error else "")]
            for result in self._results(client, id, batch, problems):
                missing.discard(result.key)
                yield result
            for name in sorted(missing):
                yield Failure(name, f"no result ({problems[-1]})", False, 0.0)

    def _results(
        self, client: Client, id: str, batch: Record, problems: list[str]
    ) -> Iterator[Reply | Failure]:
        """Yield the results of a batch; lines that are no result are added to ``problems``."""
        for path in self._result_paths(id, batch):
            with tempfile.TemporaryFile() as file:
                self._call_with_retries(
                    partial(client.send, "GET", path, limit=_RESULT_BYTES, into=file)
                )
                file.seek(0)
                for line in file:
                    try:
                        if line.strip():
                            yield read_result(json.loads(line))
                    except (BadInput, ValueError, RecursionError):
                        text = one_line(line[:4000].decode("utf-8", "replace"))
                        problems.append(f"{self.lm.host} sent no result but: {text}")

    def _grouped(self, requests: Iterable[Request]) -> Iterator[tuple[list[str], IO[bytes]]]:
        """Write requests to files up to the service's limits; yield each file with its ids."""
        seen: set[str] = set()
        names: list[str] = []
        with tempfile.TemporaryFile() as lines:
            for request in requests:
                data = request_line(self.lm, request, seen).encode()
                if len(data) > self.most_bytes:
                    limit = f"the service takes {self.most_bytes:,}"
                    raise BadInput(f"request {short(request.key)} has {len(data):,} bytes; {limit}")
                full = lines.tell() + len(data) > self.most_bytes
                if full or len(names) == self.most_requests:
                    yield names, lines
                    names = []
                    lines.seek(0)
                    lines.truncate()
                names.append(custom_id(request.key))
                lines.write(data)
            if names:
                yield names, lines

    def _begin(self, client: Client, lines: IO[bytes]) -> str:
        """Submit one batch; return its id."""
        lines.seek(0)
        body = self._creation_body(client, lines)
        batch = self._call_with_retries(partial(self._create_batch, client, body))
        id = as_object(batch).get("id")
        if not isinstance(id, str) or not id:
            raise MayHaveBegun(f"{self.lm.host} sent no batch but: {one_line(batch)}")
        return redact(storable(id))

    def _create_batch(self, client: Client, body: Record) -> Any:
        """Create a batch; retry only if it was certainly refused: a second batch costs money."""
        try:
            return client.post(self.path, body)
        except CallFailed as failure:
            if failure.retryable and not (failure.rate_limited or failure.unreachable):
                advice = "it may have begun nevertheless: look at the service's list of batches"
                raise MayHaveBegun(f"{failure}; {advice}, then submit again") from None
            raise

    def _fetch_batch(self, client: Client, id: str) -> Record:
        """Return the service's JSON about a batch."""
        batch = self._call_with_retries(partial(client.get, self._path(id)))
        if not isinstance(batch, dict):
            raise ServiceError(f"{self.lm.host} said of batch {id}: {one_line(batch)}")
        return batch

    def _path(self, id: str) -> str:
        return f"{self.path}/{quote(id, safe='')}"

    def _call_with_retries(self, call: Callable[[], T]) -> T:
        """Call a function; retry failures that may be temporary."""
        try:
            return call_with_retries(
                call, ConcurrencyLimit(1, self.lm.policy.clock), self.lm.policy
            )
        except CallFailed as failure:
            raise ServiceError(str(failure), failure.status) from None

    @abstractmethod
    def _creation_body(self, client: Client, lines: IO[bytes]) -> Record:
        """Return the body of the call that creates a batch of these lines."""

    @abstractmethod
    def _read_status(self, id: str, batch: Record) -> Status:
        """Read the service's JSON about a batch."""

    @abstractmethod
    def _result_paths(self, id: str, batch: Record) -> Iterator[str]:
        """Yield the paths of the results of a batch that has ended."""


class OpenAIBatches(Batches):
    """A file of requests is uploaded, a batch created from it, and files of results fetched."""

    most_requests = 50_000
    most_bytes = 200_000_000
    path = "/batches"

    def _creation_body(self, client: Client, lines: IO[bytes]) -> Record:
        def upload() -> Any:
            sent = client.send("POST", "/files", form={"purpose": "batch"}, file=lines)
            return client.parsed(sent)

        file = self._call_with_retries(upload)
        return {
            "input_file_id": as_object(file).get("id"),
            "endpoint": self.lm.endpoint,
            "completion_window": "24h",
        }

    def _read_status(self, id: str, batch: Record) -> Status:
        counts = as_object(batch.get("request_counts"))
        problems = as_object(batch.get("errors")).get("data")
        messages = [
            str(as_object(problem).get("message", problem))
            for problem in (problems if isinstance(problems, list) else [])
        ]
        state = one_line(batch.get("status"))
        return Status(
            id,
            state,
            state in ("completed", "failed", "expired", "cancelled"),
            _count(counts, "total"),
            _count(counts, "completed"),
            _count(counts, "failed"),
            one_line("; ".join(messages)),
        )

    def _result_paths(self, id: str, batch: Record) -> Iterator[str]:
        for name in ("output_file_id", "error_file_id"):
            if isinstance(file := batch.get(name), str) and file:
                yield f"/files/{quote(file, safe='')}/content"


class AnthropicBatches(Batches):
    """Requests are sent in one call, and results fetched in one once all are processed."""

    most_requests = 100_000
    most_bytes = 256_000_000
    path = "/v1/messages/batches"

    def _creation_body(self, client: Client, lines: IO[bytes]) -> Record:
        return {"requests": [json.loads(line) for line in lines]}

    def _read_status(self, id: str, batch: Record) -> Status:
        counts = as_object(batch.get("request_counts"))
        state = one_line(batch.get("processing_status"))
        failed = sum(_count(counts, name) for name in ("errored", "canceled", "expired"))
        succeeded = _count(counts, "succeeded")
        total = _count(counts, "processing") + succeeded + failed
        return Status(id, state, state == "ended", total, succeeded, failed)

    def _result_paths(self, id: str, batch: Record) -> Iterator[str]:
        # Not the address in results_url: the API key would be sent to any host named there.
        yield f"{self._path(id)}/results"


def _count(counts: Record, name: str) -> int:
    """Read a number of requests; 0 if it is not a valid number."""
    try:
        return token_count(counts, name)
    except ValueError:
        return 0


def open_batches(lm: LM) -> Batches:
    """Return the batch service of a model's vendor."""
    if isinstance(lm, OpenAILM):
        return OpenAIBatches(lm)
    if isinstance(lm, AnthropicLM) and not lm.bedrock:
        return AnthropicBatches(lm)
    raise BadInput(f"{lm.name} has no batch service; openai:<model> and anthropic:<model> have")
