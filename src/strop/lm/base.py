"""What every language model promises: requests in, replies and failures out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from strop.errors import BadInput

Options = Mapping[str, Any]
"""JSON values by name: what is stored to load a model again."""

_SECRETS = (
    "STROP_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
)  # fmt: skip

THIS_PROCESS = "this process"
"""The host of models that send the text nowhere."""


@dataclass(frozen=True)
class Request:
    """One prompt. What many requests have in common stands first, so that services can cache it.

    ``system`` holds the instructions, ``shared`` what several requests of one document begin
    with, ``rest`` what is this one's own; the user's text is ``shared + rest``. ``key`` comes
    back with the reply. A ``temperature`` of None leaves the choice to the service: several
    newer models accept nothing else.
    """

    key: str
    system: str
    shared: str
    rest: str
    max_tokens: int
    temperature: float | None
    stop: tuple[str, ...] = ()

    @property
    def user(self) -> str:
        """The user's text."""
        return self.shared + self.rest

    @property
    def prompt(self) -> str:
        """All of it as one text, for models without roles."""
        return f"{self.system}\n\n{self.user}" if self.system else self.user


@dataclass(frozen=True)
class Usage:
    """Tokens that a service counted; all 0 where it does not say.

    ``input_tokens`` is the whole prompt. ``cached_tokens`` of it were read from the service's
    cache and ``written_tokens`` written to it; both have prices of their own.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    written_tokens: int = 0


@dataclass(frozen=True)
class Reply:
    """What a model wrote. ``truncated``: it ran into ``max_tokens``.

    ``model`` is the name by which the service calls what answered. ``seconds`` run from when
    the request was first taken up, so waits and repetitions are in them.
    """

    key: str
    text: str
    truncated: bool
    model: str
    usage: Usage
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A request without a reply. ``error`` is one line.

    ``final``: sending the same again is pointless; otherwise it may well work later.
    """

    key: str
    error: str
    final: bool
    seconds: float


class Replies(Protocol):
    """An iterator over replies and failures, in any order, each as soon as it is there.

    Requests are pulled in the thread that iterates, and only when a place is free: never more
    are taken and not yet handed over than the concurrency (above 32, a half more). So ending
    the iterable of requests ends the run, and all that was taken still comes. An error that
    concerns the whole run (a refused key) is raised after every reply that was on its way has
    been handed over.
    """

    def __iter__(self) -> Replies: ...

    def __next__(self) -> Reply | Failure: ...

    def ready(self) -> list[Reply | Failure]:
        """Return what has come meanwhile, without waiting and without sending more."""

    def send_more(self) -> None:
        """Fill the places that have become free, as taking the next reply would."""

    def close(self) -> list[Reply | Failure]:
        """End the run early: begin nothing more, repeat nothing, wait for what is on its way.

        Returns what had been taken and not handed over yet, so that no paid reply is lost;
        requests that were waiting come as failures that are not final. A second call returns
        an empty list.
        """


class LM(Protocol):
    """A language model. ``load(lm.name, **lm.options)`` makes the same one again."""

    @property
    def name(self) -> str:
        """The spec that loads it, such as ``openai:gpt-4.1-mini``."""

    @property
    def options(self) -> Options:
        """The further arguments of ``load``; JSON values, never a secret."""

    @property
    def host(self) -> str:
        """Which host receives the text, such as ``api.openai.com`` or ``this process``."""

    def complete(self, requests: Iterable[Request]) -> Replies:
        """Answer requests, several at a time."""


class Answer(NamedTuple):
    """What one call brought."""

    text: str
    truncated: bool
    model: str
    usage: Usage


class CallFailed(Exception):
    """One call failed; what to do about it.

    ``passing``: try again. ``garbled``: the answer made no sense; try again, but not often,
    since such answers are paid for. ``crowded``: the service wants fewer calls at a time.
    ``wait``: seconds for which it wants none. ``general``: if nothing has worked yet, the
    cause is not this request but a setting.
    """

    def __init__(
        self,
        message: str,
        *,
        passing: bool = False,
        garbled: bool = False,
        crowded: bool = False,
        general: bool = False,
        wait: float | None = None,
    ) -> None:
        super().__init__(message)
        self.passing, self.garbled, self.crowded = passing or garbled, garbled, crowded
        self.general, self.wait = general, wait


class BaseLM:
    """The common part: the name, and options that are kept only where they differ."""

    name: str
    options: Options
    host: str = THIS_PROCESS
    unkeyed_options: frozenset[str] = frozenset()
    """Options that do not change what the model says, only how fast or how patiently."""
    identity: Mapping[str, str] = MappingProxyType({})
    """What tells it from another model of the same name and options."""

    def __repr__(self) -> str:
        given = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"<language model {self.name}{given}>"


def storable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can hold and a catalog cannot."""
    return text.encode("utf-8", "replace").decode()


def one_line(text: str, longest: int = 200) -> str:
    """One line of at most 200 characters, without any key, which some servers repeat."""
    line = " ".join(storable(text).split())
    for variable in _SECRETS:
        if secret := os.environ.get(variable):
            line = line.replace(secret, "***")
    return line if len(line) <= longest else line[:longest] + "…"


def check_whole(**numbers: tuple[Any, int]) -> None:
    """Check options that are whole numbers: ``name=(value, least)``."""
    for option, (number, least) in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            what = f"it must be a whole number, at least {least}"
            raise BadInput(f"{option} is {number!r}; {what}")


def check_seconds(**numbers: float) -> None:
    """Check options that are positive numbers of seconds."""
    for option, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise BadInput(f"{option} is {number!r}; it must be a number of seconds above 0")


def differing(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their default."""
    return {key: value for key, value in given.items() if value != defaults.get(key)}
