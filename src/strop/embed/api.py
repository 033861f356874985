"""Embeddings from a server that speaks OpenAI's protocol, as most of them do."""

from __future__ import annotations

import base64
import os
import random
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from strop.embed.base import BaseEmbedder
from strop.errors import BadInput, ServiceError
from strop.types import Kind

if TYPE_CHECKING:
    import httpx

PREFIX = "api:"
KEY_VARIABLES = ("STROP_API_KEY", "OPENAI_API_KEY")
_OPENAI = "https://api.openai.com/v1"
_BATCH_CHARACTERS = 200_000
_LONGEST_WAIT = 60.0
_PASSING = frozenset({408, 409, 429})
_TOO_MUCH = frozenset({400, 413, 422})


class ApiEmbedder(BaseEmbedder):
    """``POST {base_url}/embeddings``, several batches at a time, repeated when it fails.

    ``base_url`` is by default that of the variable OPENAI_BASE_URL, else OpenAI's. The key
    comes from STROP_API_KEY or OPENAI_API_KEY and is kept nowhere else; servers on one's own
    machine need none. ``input_type`` {"query": …, "document": …} is sent as such to servers
    that tell the two apart. ``max_chars`` cuts texts. ``backoff`` is the first wait in seconds
    before a request is repeated; it doubles each time. ``transport`` is for tests.
    """

    unkeyed_options = frozenset(
        {"backoff", "batch_size", "concurrency", "prompts", "retries", "timeout"}
    )

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        dimensions: int | None = None,
        batch_size: int = 64,
        input_type: Mapping[str, str] | None = None,
        prompts: Mapping[str, str] | None = None,
        max_chars: int | None = None,
        timeout: float = 60.0,
        retries: int = 6,
        concurrency: int = 4,
        backoff: float = 0.5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.name = name
        if base_url is not None and not isinstance(base_url, str):
            raise BadInput(f"base_url is {base_url!r}; it must start with http:// or https://")
        url = (base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI).rstrip("/")
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
            usable = usable and (parts.port or 1) > 0
        except ValueError:  # a bracket or a port that is none
            usable = False
        if not usable:
            raise BadInput(f"base_url is {url!r}; it must be like http://127.0.0.1:8080/v1")
        if urlsplit(url).username:
            raise BadInput(f"base_url holds a password; put the key in {KEY_VARIABLES[0]}")
        for option, by_kind in (("input_type", input_type), ("prompts", prompts)):
            if unknown := set(by_kind or {}) - set(get_args(Kind)):
                raise BadInput(f"{option} has {sorted(unknown)}; it may have query and document")
        for option, number, least in (
            ("batch_size", batch_size, 1), ("concurrency", concurrency, 1), ("retries", retries, 0),
            ("dimensions", dimensions or 1, 1), ("max_chars", max_chars or 1, 1),
        ):  # fmt: skip
            if not isinstance(number, int) or number < least:
                what = f"it must be a whole number, at least {least}"
                raise BadInput(f"{option} is {number!r}; {what}")
        given = {
            "base_url": None if url == _OPENAI else url,
            "dimensions": dimensions,
            "batch_size": batch_size if batch_size != 64 else None,
            "input_type": dict(input_type) if input_type else None,
            "prompts": dict(prompts) if prompts else None,
            "max_chars": max_chars,
            "timeout": timeout if timeout != 60.0 else None,
            "retries": retries if retries != 6 else None,
            "concurrency": concurrency if concurrency != 4 else None,
            "backoff": backoff if backoff != 0.5 else None,
        }
        self.options = {key: value for key, value in given.items() if value is not None}
        self._model = name.removeprefix(PREFIX)
        self._url = f"{url}/embeddings"
        self._host = urlsplit(url).netloc
        self._prompts, self._input_type = prompts or {}, input_type or {}
        self._dim = dimensions
        self._dimensions, self._batch_size, self._max_chars = dimensions, batch_size, max_chars
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._concurrency, self._transport = concurrency, transport

    @property
    def dim(self) -> int:
        """The length of a vector, found by embedding one word if it is not known yet."""
        if self._dim is None:
            self.embed(["word"], "document")
        assert self._dim is not None
        return self._dim

    def prompt(self, kind: Kind) -> str:
        """The text put before an input of this kind, "" if none."""
        return self._prompts.get(kind, "")

    def _vectors(self, texts: list[str], kind: Kind) -> NDArray[np.float32]:
        prompt = self.prompt(kind)
        inputs = [prompt + text[: self._max_chars] for text in texts]
        batches = list(_batches(inputs, self._batch_size))
        stop = threading.Event()
        with self._client() as client:
            if len(batches) == 1:
                return self._batch(client, batches[0], kind, stop)
            pool = ThreadPoolExecutor(min(self._concurrency, len(batches)))
            try:
                jobs = [pool.submit(self._batch, client, batch, kind, stop) for batch in batches]
                return np.concatenate([job.result() for job in jobs])
            finally:
                # After a failure nothing more is waited for, repeated or begun.
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _client(self) -> httpx.Client:
        import httpx

        key = _key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(headers=headers, timeout=self._timeout, transport=self._transport)

    def _batch(
        self, client: httpx.Client, inputs: list[str], kind: Kind, stop: threading.Event
    ) -> NDArray[np.float32]:
        """Vectors (n, dim) of one batch, halved where the server finds it too much."""
        body: dict[str, Any] = {"model": self._model, "input": inputs, "encoding_format": "float"}
        if self._dimensions:
            body["dimensions"] = self._dimensions
        if kind in self._input_type:
            body["input_type"] = self._input_type[kind]
        response = self._post(client, body, stop)
        if response.status_code in _TOO_MUCH and len(inputs) > 1:
            middle = len(inputs) // 2
            halves = (inputs[:middle], inputs[middle:])
            return np.concatenate([self._batch(client, half, kind, stop) for half in halves])
        if response.status_code in _TOO_MUCH:
            raise ServiceError(
                f"{self._said(response)}. The text begins {inputs[0][:80]!r} and has "
                f"{len(inputs[0]):,} characters; if it is too long, max_chars=… cuts texts"
            )
        if response.status_code in (401, 403):
            raise ServiceError(f"{self._said(response)}. Set {' or '.join(KEY_VARIABLES)}")
        if not response.is_success:
            raise ServiceError(self._said(response))
        return self._rows(response, len(inputs))

    def _post(
        self, client: httpx.Client, body: dict[str, Any], stop: threading.Event
    ) -> httpx.Response:
        """The response, after as many tries as passing failures ask for."""
        import httpx

        for attempt in range(self._retries + 1):
            response, failure = None, ""
            try:
                response = client.post(self._url, json=body)
                if response.status_code not in _PASSING and response.status_code < 500:
                    return response
            except httpx.TransportError as error:
                failure = f"{type(error).__name__}: {error}"
            if attempt < self._retries and stop.wait(self._wait(attempt, response)):
                break
        if response is not None:
            failure = self._said(response)
        else:
            failure = f"{self._host} cannot be reached ({failure})"
        raise ServiceError(f"{failure}; gave up after {attempt + 1} tries")

    def _wait(self, attempt: int, response: httpx.Response | None) -> float:
        """Seconds to wait: what the server asks for, else twice as long each time, jittered."""
        asked = response.headers.get("retry-after") if response is not None else None
        seconds = _seconds(asked) if asked else None
        if seconds is None:
            seconds = self._backoff * 2**attempt * random.uniform(0.5, 1.5)
        return min(max(seconds, 0.0), _LONGEST_WAIT)

    def _rows(self, response: httpx.Response, count: int) -> NDArray[np.float32]:
        """The vectors (count, dim) in a response, in the order of the inputs."""
        try:
            data = response.json()["data"]
            rows = {int(item.get("index", i)): item["embedding"] for i, item in enumerate(data)}
            if len(data) != count or sorted(rows) != list(range(count)):
                raise ServiceError(
                    f"{self._host} sent {len(data)} embeddings for {count} texts, "
                    f"numbered {_short(str(sorted(rows)))}"
                )
            vectors = np.array([_numbers(rows[i]) for i in range(count)], np.float32)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServiceError(
                f"{self._host} did not send embeddings but: {_short(response.text)}"
            ) from error
        if vectors.ndim != 2 or vectors.shape[1] == 0:
            raise ServiceError(f"{self._host} sent embeddings without numbers")
        if self._dim is None:
            self._dim = vectors.shape[1]
        if vectors.shape[1] != self._dim:
            raise ServiceError(
                f"{self._host} sent vectors of {vectors.shape[1]} numbers where {self._dim} "
                "were expected"
            )
        return vectors

    def _said(self, response: httpx.Response) -> str:
        """What the server answered, in one line; never what was sent to it."""
        try:
            body = response.json()
            error = body.get("error", body)
            message = str(error.get("message", error))
        except (AttributeError, KeyError, TypeError, ValueError):
            message = response.text
        return f"{self._host} answered {response.status_code}: {_short(message)}"


def _key() -> str | None:
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)


def _batches(inputs: list[str], size: int) -> Iterator[list[str]]:
    """Batches of at most ``size`` texts and, unless one text is longer, 200,000 characters."""
    batch: list[str] = []
    characters = 0
    for text in inputs:
        if batch and (len(batch) == size or characters + len(text) > _BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    yield batch


def _numbers(embedding: Any) -> NDArray[np.float32]:
    """A vector sent as a list of numbers or as base64 of little-endian floats."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return np.asarray(embedding, np.float32)


def _seconds(retry_after: str) -> float | None:
    """The seconds that a Retry-After header asks for; it holds a number or a date."""
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return (date - datetime.now(timezone.utc)).total_seconds()


def _short(text: str) -> str:
    """One line of at most 200 characters, without the key, which some servers repeat."""
    line = " ".join(text.split())
    if key := _key():
        line = line.replace(key, "***")
    return line if len(line) <= 200 else line[:200] + "…"
