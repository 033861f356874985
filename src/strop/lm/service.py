"""What the services over HTTP share: options, keys, and what their errors mean."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from strop.errors import BadInput, MissingExtra, ServiceError
from strop.lm.base import (
    Answer,
    BaseLM,
    CallFailed,
    Request,
    check_seconds,
    check_whole,
    differing,
    one_line,
)
from strop.lm.gate import LONGEST_WAIT, Clock, Policy, Steps, Stopped
from strop.lm.lean import Refused, Site, Unreachable, goes_direct
from strop.lm.loop import Loop, Mistake, check_connections
from strop.lm.runner import MANY, Run, Threads, Workers

LEAN_ABOVE = MANY
_DEFAULTS = {"concurrency": 16, "retries": 8, "timeout": 120.0, "backoff": 0.5}
_PASSING = frozenset({408, 409, 429})
_CROWDED = frozenset({429, 529})
_NO_MONEY = re.compile(r"insufficient_quota|billing_")


class ServiceLM(BaseLM):
    """A model behind HTTP, called through its vendor's client by several threads.

    ``concurrency`` calls at most are under way at a time; fewer while the service refuses some
    for crowding. Above 32 they go out by ``lean`` from one thread, unless through a proxy: the
    vendor's client takes too much time of the processor for so many. ``retries`` and ``backoff``
    say how often and after how many seconds a call is repeated, ``timeout`` after how many seconds
    without any progress one is given up.
    ``extra`` holds further fields for the body of each call, such as {"reasoning_effort": "low"}.
    ``clock`` is for tests.
    """

    package: str
    """The client's package."""
    extra_name: str
    """The extra that installs it."""
    unkeyed_options = frozenset({"concurrency", "retries", "timeout", "backoff", "max_tokens_name"})
    key_variables: tuple[str, ...]
    """Where the key is looked for, the first that is set."""

    def _configure(
        self,
        name: str,
        url: str,
        given: Mapping[str, Any],
        *,
        concurrency: int,
        retries: int,
        timeout: float,
        backoff: float,
        extra: Mapping[str, Any] | None,
        clock: Clock | None,
    ) -> None:
        """Check and keep what all services have."""
        check_whole(concurrency=(concurrency, 1), retries=(retries, 0))
        check_seconds(timeout=timeout, backoff=backoff)
        if concurrency > MANY:
            check_connections(concurrency)
        try:
            self.extra: dict[str, Any] = json.loads(json.dumps(dict(extra or {})))
        except (TypeError, ValueError):
            raise BadInput(f"extra is {extra!r}; it must be JSON fields by name") from None
        if importlib.util.find_spec(self.package) is None:
            raise MissingExtra(name, self.extra_name)
        self.name = name
        self.model = name.partition(":")[2]
        self.url = checked_url(url, self.key_variables[0])
        self.host = urlsplit(self.url).netloc
        shared = {
            "concurrency": concurrency,
            "retries": retries,
            "timeout": timeout,
            "backoff": backoff,
        }
        own = {key: value for key, value in given.items() if value}
        self.options = {**own, **differing(shared, _DEFAULTS)}
        if self.extra:
            self.options["extra"] = self.extra
        self.timeout, self.concurrency = timeout, concurrency
        self.policy = Policy(retries, backoff, clock or Clock())

    @abstractmethod
    def client(self, timeout: float | None = None) -> Any:
        """The vendor's client, which repeats nothing itself and has a ``post`` and a ``close``."""

    @abstractmethod
    def _answer(self, request: Request) -> Steps[Answer]:
        """Make one call, in steps."""

    @abstractmethod
    def lean_headers(self) -> dict[str, str] | None:
        """What the service wants to be told with each call; None where that is not so simple."""

    def complete(self, requests: Iterable[Request]) -> Run:
        """Answer requests, ``concurrency`` at a time."""
        many = self.concurrency > LEAN_ABOVE and goes_direct(self.url)
        headers = self.lean_headers() if many else None
        workers: Workers
        if headers is not None:
            workers = Loop(Site(self.url, headers, self.timeout))
        else:
            client = self.client()

            def post(path: str, body: Any) -> str:
                # As text: the client's own models cost more time than the rest of the call.
                text: str = client.post(path, body=body, cast_to=str)
                return text

            workers = Threads(post, client.close)
        return Run(
            requests, self._answer, workers, concurrency=self.concurrency, policy=self.policy
        )

    def key(self, vendor: str) -> str:
        """The key in the environment; services other than the vendor's own may need none."""
        for variable in self.key_variables:
            if value := os.environ.get(variable):
                if not value.isascii() or not value.isprintable():
                    raise BadInput(f"{variable} holds characters that no key has; set it again")
                return value
        if self.url.startswith(vendor):
            raise BadInput(f"{self.host} needs a key; set {' or '.join(self.key_variables)}")
        return "none"

    def fetch(self, call: Callable[[], str]) -> str:
        """Make a call and return the text that came; ``CallFailed`` or ``ServiceError``."""
        try:
            return call()
        except Exception as error:
            raise self._meaning(error) from None

    def send(self, call: Callable[[], str]) -> Any:
        """Make a call and return the JSON that came; ``CallFailed`` or ``ServiceError``."""
        return self._parsed(self.fetch(call))

    def _exchange(self, path: str, body: dict[str, Any]) -> Steps[Any]:
        """As ``send``, for a call in steps."""
        try:
            text: str = yield path, body
        except Exception as error:
            raise self._meaning(error) from None
        return self._parsed(text)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # the latter if it is nested too deeply
            said = one_line(text) or "nothing"
            raise CallFailed(f"{self.host} sent no JSON but: {said}", garbled=True) from None

    def _meaning(self, error: Exception) -> Exception:
        """What an error of a call means for it, or for the run.

        It is raised "from None": a client's errors hold the request, and may repeat the key.
        """
        if isinstance(error, CallFailed | BadInput | Stopped | Mistake):
            return error
        if isinstance(error, Refused):
            return self.refused(error.status, error.body, error.headers)
        if isinstance(error, Unreachable):
            return self._unreachable(str(error), error.timeout)
        if isinstance(error, UnicodeError):
            return CallFailed(f"the text cannot be sent: {one_line(str(error))}")
        response = getattr(error, "response", None)
        if response is not None and isinstance(status := getattr(error, "status_code", 0), int):
            return self.refused(status, getattr(error, "body", None), response.headers)
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "APIConnectionError" in kinds:
            cause = error.__cause__ or error
            return self._unreachable(f"{type(cause).__name__}: {cause}", "APITimeoutError" in kinds)
        return ServiceError(f"{self.host}: {one_line(f'{type(error).__name__}: {error}')}")

    def _unreachable(self, message: str, timeout: bool) -> CallFailed:
        if timeout:
            said = f"{self.host} did not answer within {self.timeout:g} seconds"
        else:
            said = f"{self.host} cannot be reached ({one_line(message)})"
        return CallFailed(said, passing=True)

    def refused(self, status: int, body: Any, headers: Mapping[str, str]) -> Exception:
        """What a status other than success means for the call, or for the run."""
        message, code = _message(body)
        said = f"{self.host} answered {status}: {one_line(message)}"
        if status in (401, 403):
            return ServiceError(f"{said}. Set {' or '.join(self.key_variables)}")
        if status == 402 or _NO_MONEY.search(code) or "credit balance is too low" in message:
            return ServiceError(f"{said}. The account has no money or quota left")
        if status not in _PASSING and status < 500:
            about_setting = status == 400 and "temperature" in f"{code} {message}"
            if about_setting:
                said += ". If the model takes no temperature, leave it out (None)"
            return CallFailed(said, general=about_setting or status == 404)
        wait = retry_after(headers)
        if wait is not None and wait > LONGEST_WAIT:
            return ServiceError(f"{said}. It wants no more for {wait:,.0f} seconds; resume then")
        return CallFailed(said, passing=True, crowded=status in _CROWDED, wait=wait)


def checked_url(url: object, key_variable: str) -> str:
    """An address of a service, or what is wrong with it."""
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
        raise BadInput(f"base_url is {url!r}; it must start with http:// or https://")
    if urlsplit(url).username or urlsplit(url).password:
        raise BadInput(f"base_url holds a password; put the key in {key_variable}")
    return url.rstrip("/")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a service asks to wait: a number, a date, or milliseconds."""
    try:
        return max(float(headers["retry-after-ms"]) / 1000, 0.0)
    except (KeyError, ValueError):
        pass
    asked = headers.get("retry-after")
    if asked is None:
        return None
    try:
        seconds = float(asked)
    except ValueError:
        try:
            date = parsedate_to_datetime(asked)
        except ValueError:
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        seconds = (date - datetime.now(timezone.utc)).total_seconds()
    return max(seconds, 0.0) if seconds == seconds else None


def _message(body: Any) -> tuple[str, str]:
    """The message and the code in the body of an error, in whichever of the usual forms."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or json.dumps(error)
        return str(message), f"{error.get('code')} {error.get('type')} {error.get('param')}"
    return str(error if error is not None else "no explanation"), ""
