"""Embeddings from a server that speaks OpenAI's protocol, as most of them do."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from strop.common.http import Client, checked_url
from strop.common.retries import CallFailed, ConcurrencyLimit, Policy, call_with_retries
from strop.common.secrets import key_for, one_line
from strop.common.specs import check_kinds, check_seconds, check_whole, differing
from strop.embed.base import BaseEmbedder
from strop.errors import ServiceError, TextRefused
from strop.types import Kind

if TYPE_CHECKING:
    import httpx

PREFIX = "api:"
KEY_VARIABLES = ("STROP_API_KEY", "OPENAI_API_KEY")
_OPENAI = "https://api.openai.com/v1"
_DEFAULTS = {"batch_size": 64, "timeout": 60.0, "retries": 6, "concurrency": 4, "backoff": 0.5}
_BATCH_CHARACTERS = 200_000
_REPLY_BYTES = 1 << 20
_VECTOR_BYTES = 512 << 10
"""Size limit of a vector in a reply: 16,384 numbers of 32 characters, with punctuation."""
_REFUSED_STATUSES = frozenset({400, 413, 422})


class ApiEmbedder(BaseEmbedder):
    """``POST {base_url}/embeddings``, several batches at a time, repeated when it fails.

    ``base_url`` is by default that of the variable OPENAI_BASE_URL, else OpenAI's. The key
    comes from STROP_API_KEY or OPENAI_API_KEY and is stored nowhere else; servers on the user's
    own machine need none. ``input_type`` {"query": …, "document": …} is sent to servers that
    distinguish the two. ``max_chars`` cuts texts. ``timeout`` is the time limit of a call in
    seconds. ``retries`` and ``backoff`` are those of ``common.retries.Policy``. ``transport`` is
    for tests.
    """

    unkeyed_options = frozenset({"prompts", *_DEFAULTS})

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
        url = checked_url(
            base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI, KEY_VARIABLES[0]
        )
        check_kinds("input_type", input_type or {})
        check_kinds("prompts", prompts or {})
        check_whole(
            batch_size=(batch_size, 1), concurrency=(concurrency, 1), retries=(retries, 0),
            dimensions=(dimensions or 1, 1), max_chars=(max_chars or 1, 1),
        )  # fmt: skip
        check_seconds(timeout=timeout, backoff=backoff)
        options = {
            "base_url": None if url == _OPENAI else url, "dimensions": dimensions,
            "batch_size": batch_size, "input_type": dict(input_type or {}) or None,
            "prompts": dict(prompts or {}) or None, "max_chars": max_chars, "timeout": timeout,
            "retries": retries, "concurrency": concurrency, "backoff": backoff,
        }  # fmt: skip
        self.options = differing(options, _DEFAULTS)
        self._model = name.removeprefix(PREFIX)
        self._url, self._host = url, urlsplit(url).netloc
        self._prompts, self._input_type = prompts or {}, input_type or {}
        self._dim = dimensions
        self._dimensions, self._batch_size, self._max_chars = dimensions, batch_size, max_chars
        self._timeout, self._policy = timeout, Policy(retries, backoff)
        self._concurrency, self._transport = concurrency, transport
        self._reached = False

    def prompt(self, kind: Kind) -> str:
        """The text put before an input of this kind, "" if none."""
        return self._prompts.get(kind, "")

    def _vectors(self, texts: list[str], kind: Kind) -> NDArray[np.float32]:
        prompt, key = self.prompt(kind), key_for(self._host, KEY_VARIABLES)
        inputs = [prompt + text[: self._max_chars] for text in texts]
        batches = list(_batches(inputs, self._batch_size))
        limit = ConcurrencyLimit(self._concurrency, self._policy.clock, self._reached)
        threads = min(self._concurrency, len(batches))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with Client(
            self._url, headers, self._timeout, key_variables=KEY_VARIABLES,
            transport=self._transport,
        ) as client:  # fmt: skip
            embed = partial(self._batch, client, limit, kind)
            if threads == 1:
                return np.concatenate([embed(batch) for batch in batches])
            pool = ThreadPoolExecutor(threads, thread_name_prefix="strop-embed")
            try:
                jobs = [pool.submit(embed, batch) for batch in batches]
                for job in wait(jobs, return_when=FIRST_EXCEPTION).done:
                    job.result()
                return np.concatenate([job.result() for job in jobs])
            finally:
                # After a failure no call is retried or started; those in flight are awaited.
                limit.stop()
                pool.shutdown(cancel_futures=True)

    def _batch(
        self, client: Client, limit: ConcurrencyLimit, kind: Kind, inputs: list[str]
    ) -> NDArray[np.float32]:
        """Return the vectors (n, dim) of one batch; a batch that the server refuses is halved."""
        body: dict[str, Any] = {"model": self._model, "input": inputs, "encoding_format": "float"}
        if self._dimensions:
            body["dimensions"] = self._dimensions
        if kind in self._input_type:
            body["input_type"] = self._input_type[kind]
        max_bytes = _REPLY_BYTES + len(inputs) * _VECTOR_BYTES
        finite = True

        def call() -> NDArray[np.float32]:
            nonlocal finite
            rows = self._rows(client, client.post("/embeddings", body, max_bytes), len(inputs))
            finite = bool(np.isfinite(rows).all())
            if not finite:
                raise client.malformed("sent NaN or infinite numbers")
            self._dim = self._dim or rows.shape[1]
            if rows.shape[1] != self._dim:
                problem = f"sent vectors of {rows.shape[1]} numbers where {self._dim} were expected"
                raise client.malformed(problem)
            return rows

        try:
            vectors = call_with_retries(call, limit, self._policy)
        except CallFailed as failure:
            if finite and failure.status not in _REFUSED_STATUSES:
                raise ServiceError(str(failure), failure.status) from None
            if len(inputs) == 1:
                raise TextRefused(
                    f"{failure}. The text begins {inputs[0][:80]!r} and has "
                    f"{len(inputs[0]):,} characters; if it is too long, max_chars=… cuts texts"
                ) from None
            middle = len(inputs) // 2
            halves = (inputs[:middle], inputs[middle:])
            return np.concatenate([self._batch(client, limit, kind, half) for half in halves])
        self._reached = True
        return vectors

    def _rows(self, client: Client, reply: Any, count: int) -> NDArray[np.float32]:
        """Return the vectors (count, dim) in a reply, in the order of the inputs."""
        try:
            data = reply["data"]
            rows = {int(item.get("index", i)): item["embedding"] for i, item in enumerate(data)}
            if len(data) != count or sorted(rows) != list(range(count)):
                numbers = one_line(sorted(rows))
                problem = f"sent {len(data)} embeddings for {count} texts, numbered {numbers}"
                raise client.malformed(problem)
            vectors = np.array([_numbers(rows[i]) for i in range(count)], np.float32)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            text = one_line(reply)
            raise client.malformed(f"did not send embeddings but: {text}") from None
        if vectors.ndim != 2 or vectors.shape[1] == 0:
            raise client.malformed("sent embeddings without numbers")
        return vectors


def _batches(inputs: list[str], size: int) -> Iterator[list[str]]:
    """Yield batches of up to ``size`` texts and 200,000 characters, unless one text is longer."""
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
    """Read a vector sent as a list of numbers or as base64 of little-endian floats."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return np.asarray(embedding, np.float32)
