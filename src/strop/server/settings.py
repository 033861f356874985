"""Settings of a server: the collection, who may access it, and limits."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from strop.errors import BadInput

Access = Literal["open", "read", "write"]
"""Who may call an operation: anybody, holders of a read key, holders of a write key."""
Keys: TypeAlias = tuple[tuple[Access, str], ...]
"""The keys of a server, each with its level. A key may have both: then it may write."""

KEYS = "STROP_API_KEYS"
_SHORTEST_KEY = 16


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    body: int = 8_000_000
    """Bytes of a request."""
    k: int = 1000
    queries: int = 256
    """Queries, or texts to embed or rank, in a request."""
    documents: int = 1000
    """Documents in a request that writes."""
    explained: int = 50
    """Hits of a request that are explained."""
    waiting: int = 2048
    """Queries that wait for a search at the same time; more are refused with 429."""
    connections: int = 1000
    seconds: float = 30.0
    """The longest that a request may take, and the longest that its body may take to arrive."""


LIMITS = Limits()


def parse_keys(text: str) -> Keys:
    """Read ``read:KEY,write:KEY``, any number of each."""
    keys: list[tuple[Access, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        level, _, key = part.partition(":")
        # The value may be a key: it is never shown.
        if level not in ("read", "write") or not re.fullmatch(r"[!-~]+", key):
            raise BadInput(
                f"{KEYS} must look like read:KEY,write:KEY, with keys of printable ASCII"
                " characters without spaces and commas"
            )
        if len(key) < _SHORTEST_KEY:
            raise BadInput(
                f"{KEYS}: a {level} key has {len(key)} characters; use {_SHORTEST_KEY} or"
                " more, such as the output of: openssl rand -hex 32"
            )
        keys.append(("write" if level == "write" else "read", key))
    return tuple(keys)


def level_of(key_to_check: str, keys: Keys) -> Access:
    """Return what a key allows; all keys are compared, each in constant time."""
    allowed: Access = "open"
    for level, key in keys:
        if hmac.compare_digest(key.encode(), key_to_check.encode("utf-8", "replace")):
            allowed = level if allowed != "write" else allowed
    return allowed


@dataclass(frozen=True)
class Settings:
    """What to serve, and to whom. Keys are not part of it: they stay in the environment."""

    collection: str
    host: str = "127.0.0.1"
    port: int = 8765
    hosts: tuple[str, ...] = ()
    """Names by which others reach the server, such as that of a proxy."""
    origins: tuple[str, ...] = ()
    """Other web pages that may call it."""

    @property
    def public(self) -> bool:
        """Whether other machines may reach it."""
        return not is_loopback(self.host) or bool(self.hosts)


def is_loopback(host: str) -> bool:
    """Return whether a host to listen on can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_keys(settings: Settings) -> Keys:
    """Return the keys in the environment; a server that others can reach must have some."""
    keys = parse_keys(os.environ.get(KEYS, ""))
    if settings.public and not keys:
        where = settings.host if not is_loopback(settings.host) else settings.hosts[0]
        raise BadInput(
            f"others can reach {where}, so the server needs keys: set {KEYS}=read:KEY,write:KEY"
            " (docs/server.md), or leave out --host and --allow-host"
        )
    return keys
