"""``ServiceLM``: the base of models that are called over HTTP, with their options and keys."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from strop.common.http import Client, checked_url
from strop.common.retries import Clock, Policy
from strop.common.secrets import key_for
from strop.common.specs import check_seconds, check_whole, differing
from strop.errors import BadInput
from strop.lm.base import Answer, Body, Request
from strop.lm.runner import BaseLM, Run

_OTHER_OPEN_FILES = 64
"""Open files that a process needs besides its connections."""
_ALWAYS_ALLOWED = 32
"""Up to this concurrency, connections are never refused."""


class ServiceLM(BaseLM):
    """A model behind HTTP.

    At most ``concurrency`` calls are in flight; fewer while the service limits their rate.
    ``retries`` and ``backoff`` are how often and after how many seconds a call is retried,
    ``timeout`` is after how many seconds it fails. ``extra`` contains additional fields for the
    body of each call, such as {"reasoning_effort": "low"}. ``clock`` is for tests.
    """

    unkeyed_options = frozenset({"concurrency", "retries", "timeout", "backoff"})
    key_variables: tuple[str, ...]
    """Environment variables of the key; the first that is set is used."""
    vendor: str
    """The vendor's own address, which needs a key."""
    endpoint: str = ""
    """The path in each line of a batch file; "" if the vendor's lines have none."""

    def __init__(
        self,
        name: str,
        url: str,
        own_options: Mapping[str, Any],
        *,
        concurrency: int = 16,
        retries: int = 8,
        timeout: float = 120.0,
        backoff: float = 0.5,
        extra: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``own_options`` are the options of one provider."""
        check_whole(concurrency=(concurrency, 1), retries=(retries, 0))
        check_seconds(timeout=timeout, backoff=backoff)
        check_connections(concurrency)
        try:
            self.extra: Body = json.loads(json.dumps(dict(extra or {})))
        except (TypeError, ValueError):
            raise BadInput(f"extra is {extra!r}; it must be JSON fields by name") from None
        self.name = name
        self.model = name.partition(":")[2]
        self.url = checked_url(url, self.key_variables[0])
        self.host = urlsplit(self.url).netloc
        shared = {
            "concurrency": concurrency, "retries": retries, "timeout": timeout, "backoff": backoff,
        }  # fmt: skip
        base_url = None if self.at_vendor else self.url
        provider_options = {"base_url": base_url, **own_options, "extra": self.extra}
        self.options = {
            **{option: value for option, value in provider_options.items() if value},
            **differing(shared, ServiceLM.__init__.__kwdefaults__ or {}),
        }
        self.timeout, self.concurrency = timeout, concurrency
        self.policy = Policy(retries, backoff, clock or Clock())

    @property
    def at_vendor(self) -> bool:
        """Whether the vendor itself is called."""
        return self.url == self.vendor

    @abstractmethod
    def headers(self) -> dict[str, str]:
        """Headers of every call, with the key."""

    @abstractmethod
    def body(self, request: Request) -> Body:
        """Return the JSON body of a request."""

    @abstractmethod
    def answer(self, client: Client, request: Request) -> Answer:
        """Make one call."""

    def client(self, timeout: float | None = None) -> Client:
        """Return a client for calls; close it at the end."""
        return Client(
            self.url, self.headers(), timeout or self.timeout, key_variables=self.key_variables
        )

    def complete(self, requests: Iterable[Request]) -> Run:
        """Answer requests, ``concurrency`` at a time."""
        client = self.client()
        return Run(
            requests, partial(self.answer, client), concurrency=self.concurrency,
            policy=self.policy, release=client.close,
        )  # fmt: skip

    def key(self) -> str | None:
        """Return the key in the environment; hosts other than the vendor's may need none."""
        key = key_for(self.host, self.key_variables)
        if key is None and self.at_vendor:
            raise BadInput(f"{self.host} needs a key; set {' or '.join(self.key_variables)}")
        return key


def check_connections(concurrency: int) -> None:
    """Refuse more calls at a time than this process may have connections."""
    if concurrency <= _ALWAYS_ALLOWED or sys.platform == "win32":
        return
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and concurrency + _OTHER_OPEN_FILES > files:
        raise BadInput(
            f"concurrency is {concurrency:,}, but this process may have {files:,} files and "
            f"connections open at a time, and needs {_OTHER_OPEN_FILES} for others; take at most "
            f"{max(files - _OTHER_OPEN_FILES, _ALWAYS_ALLOWED):,}, or raise the limit: "
            f"ulimit -n {concurrency + _OTHER_OPEN_FILES}"
        )
