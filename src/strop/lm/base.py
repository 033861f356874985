"""What every language model promises: requests in, replies and failures out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from strop.common.retries import CallFailed
from strop.common.secrets import one_line, redact, storable

Body = dict[str, Any]
"""JSON fields by name, of a request or a reply."""
Options = Mapping[str, Any]
"""JSON values by name: what is stored to load a model again."""

THIS_PROCESS = "this process"
"""The host of models that send the text nowhere."""


@dataclass(frozen=True)
class Request:
    """One prompt. The part that many requests share comes first, so that services can cache it.

    ``system`` contains the instructions, ``shared`` the beginning that several requests of one
    document share, ``rest`` the request's own part; the user's text is ``shared + rest``.
    ``key`` is returned with the reply. With a ``temperature`` of None the service chooses:
    several newer models accept nothing else.
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
    """Tokens that a service counted; all 0 if it does not report them.

    ``input_tokens`` is the whole prompt. ``cached_tokens`` of it were read from the service's
    cache and ``written_tokens`` written to it; both have separate prices.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    written_tokens: int = 0


class Answer(NamedTuple):
    """The result of one call."""

    text: str
    truncated: bool
    model: str
    usage: Usage


@dataclass(frozen=True)
class Reply:
    """The text of a model. ``truncated``: it reached ``max_tokens``.

    ``model`` is the service's name of the model that answered. ``seconds`` count from the first
    try, with waits and repetitions.
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

    ``final``: the same request would fail again; otherwise it may work later.
    """

    key: str
    error: str
    final: bool
    seconds: float


class Replies(Protocol):
    """An iterator over replies and failures, in any order, each as soon as it arrives.

    Requests are pulled in the thread that iterates, and only when a call may be sent: the number
    of open requests is at most the concurrency (above 32, one and a half times that). So the end
    of the iterable of requests ends the run, after the results of all that were pulled. An error
    of the whole run (a refused key) is raised after every reply in flight has been returned.
    """

    def __iter__(self) -> Replies: ...

    def __next__(self) -> Reply | Failure: ...

    def ready(self) -> list[Reply | Failure]:
        """Return the results that have arrived, without waiting and without sending more."""

    def send_more(self) -> None:
        """Send as many requests as the concurrency allows, as taking the next reply would."""

    def close(self) -> list[Reply | Failure]:
        """End the run early: send and repeat nothing more, wait for calls in flight.

        Returns the results not returned yet, so that no paid reply is lost;
        requests that were waiting come as failures that are not final. A second call returns
        an empty list.
        """


class LM(Protocol):
    """A language model. ``load(lm.name, **lm.options)`` makes the same one again."""

    @property
    def name(self) -> str:
        """The spec that loads it, such as ``openai:gpt-5-mini``."""

    @property
    def options(self) -> Options:
        """The other arguments of ``load``; JSON values, never a secret."""

    @property
    def host(self) -> str:
        """The host that receives the text, such as ``api.openai.com`` or ``this process``."""

    def complete(self, requests: Iterable[Request]) -> Replies:
        """Answer requests, several at a time."""


# -- reading replies -------------------------------------------------------------------------

_MAX_NAME_CHARS = 200
MOST_TOKENS = 10**9
"""Upper limit of a token count; larger counts reported by a service are ignored."""


Fields = tuple[str, bool, str | None]
"""Text of a vendor's reply, whether it was truncated, why the model declined (None: it did not)."""


def read_answer(
    host: str, body: Any, fields: Callable[[Any], Fields], usage: Callable[[Any], Usage]
) -> Answer:
    """Read a reply and remove API keys from it; raise ``CallFailed`` if there is no text."""
    try:
        text, truncated, declined = fields(body)
        model = body.get("model")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        message = f"{host} sent no reply but: {one_line(body)}"
        raise CallFailed(message, malformed=True) from error
    if declined is not None:
        raise CallFailed(f"{host} declined to answer: {one_line(declined)}")
    if not text.strip() and truncated:
        raise CallFailed(f"{host} reached max_tokens before any text; raise it")
    if not text.strip():
        raise CallFailed(f"{host} sent an empty reply", malformed=True)
    try:
        counts = usage(body.get("usage"))
    except (AttributeError, TypeError, ValueError):  # the reply is used without its counts
        counts = Usage(0, 0)
    name = redact(storable(str(model or "")))[:_MAX_NAME_CHARS]
    return Answer(redact(storable(text)), truncated, name, counts)


def text_of(content: Any) -> str:
    """Return a text, or the joined texts of a list of blocks, without the model's reasoning."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block["text"] for block in content if block.get("type", "text") == "text")


def token_count(usage: Mapping[str, Any], name: str) -> int:
    """Read a number of tokens; ``ValueError`` for an impossible one."""
    number = usage.get(name)
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{name} is no number")
    if not 0 <= number <= MOST_TOKENS:  # also refuses NaN
        raise ValueError(f"{name} is out of bounds")
    return int(number)
