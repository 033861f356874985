"""Calls to services over HTTP: all calls of language models and embedders use this module.

A call is bounded in time and bytes, and goes to one host only. It returns a body, or raises
``CallFailed`` (its attributes tell ``retries.call_with_retries`` what to do) or ``ServiceError``
(nothing more is sent). Keys are removed from every message.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from email.utils import mktime_tz, parsedate_tz
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from strop.common.retries import LONGEST_WAIT, CallFailed
from strop.common.secrets import one_line
from strop.errors import BadInput, ServiceError

if TYPE_CHECKING:
    import httpx

Headers = Mapping[str, str]

REPLY_BYTES = 16 << 20
"""The default limit on the size of a body."""
HEAD_BYTES = 1 << 20
"""The maximum number of bytes before a body: headers, and interim responses."""
_ERROR_BYTES = 64 << 10
"""How much of the body of a refusal is read."""
_WIRE_FACTOR = 8
"""The maximum number of bytes on the wire per byte of a body; a chunk of one byte takes six."""
_PIECE_BYTES = 256 << 10
"""The maximum size of a decoded piece of a body."""
_MAX_REDIRECTS = 3
_CONNECT_SECONDS = 10.0
RETRYABLE = frozenset({408, 409, 429})
"""Statuses below 500 after which the same request may succeed later."""
_RATE_LIMITED = frozenset({429, 529})
_NO_MONEY = re.compile(r"insufficient_quota|billing_")
"""Error codes of an account without money or quota."""


class Client:
    """Calls to one service.

    ``headers``, which include the key, are sent with every call; if the service refuses the key,
    the error names ``key_variables``. ``timeout`` limits the seconds of a complete call. Threads
    may share a client. ``transport`` is for tests.
    """

    def __init__(
        self,
        url: str,
        headers: Headers,
        timeout: float,
        *,
        key_variables: Sequence[str] = (),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        from strop.common.transport import Transport

        self.url, self.host = url, urlsplit(url).netloc
        self._headers = {"User-Agent": "strop", "Accept-Encoding": "gzip", **headers}
        self._timeout = timeout
        self._timeouts = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)).as_dict()
        self._key_variables = key_variables
        self._transport = transport or Transport(url)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def post(self, path: str, body: Any, limit: int = REPLY_BYTES) -> Any:
        """Send JSON to a path below the address; return the JSON of the response."""
        return self.parsed(self.send("POST", path, content=self.encoded(body), limit=limit))

    def get(self, path: str) -> Any:
        """Return the JSON at a path below the address."""
        return self.parsed(self.send("GET", path))

    def encoded(self, body: Any) -> bytes:
        """Return a value as the bytes of JSON."""
        try:
            return json.dumps(body, ensure_ascii=False).encode()
        except UnicodeError as error:
            raise CallFailed(f"the text cannot be sent: {one_line(error)}") from None

    def parsed(self, data: bytes) -> Any:
        """Parse the bytes of a body as JSON."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError):  # the latter if it is nested too deeply
            text = one_line(data[:_ERROR_BYTES].decode("utf-8", "replace")) or "nothing"
            raise self.malformed(f"sent no JSON but: {text}") from None

    def malformed(self, problem: str) -> CallFailed:
        """Return the error for a malformed reply."""
        return CallFailed(f"{self.host} {problem}", malformed=True)

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Headers | None = None,
        form: Mapping[str, str] | None = None,
        file: IO[bytes] | None = None,
        limit: int = REPLY_BYTES,
        into: IO[bytes] | None = None,
    ) -> bytes:
        """Make a call and return the body of the response, of at most ``limit`` bytes.

        It sends ``content``, which is JSON, or a form with a file. If the file ``into`` is given,
        the body is written to it instead.
        """
        import httpx

        from strop.common.transport import ERRORS, NOT_CONNECTED, TIMEOUT, TooLong, bounded

        all_headers = {**self._headers, **(headers or {})}
        if content is not None:
            all_headers["Content-Type"] = "application/json"
        files = None if file is None else {"file": ("requests.jsonl", file, "application/jsonl")}
        request = httpx.Request(
            method, f"{self.url}{path}", headers=all_headers, content=content, data=form,
            files=files, extensions={"timeout": self._timeouts},
        )  # fmt: skip
        try:
            with bounded(self._timeout, HEAD_BYTES):
                return self._exchange(request, limit, into)
        except TooLong:
            bounds = f"{HEAD_BYTES:,} bytes of headers or {limit:,} of a body"
            raise self.malformed(f"sent more than {bounds}") from None
        except ERRORS as error:
            # "from None": errors of httpx contain the request, and so the key.
            reason = one_line(f"{type(error).__name__}: {error}")
            unreachable = isinstance(error, NOT_CONNECTED)
            if unreachable:
                problem = f"cannot be reached ({reason}); is it running, and is base_url right?"
            elif isinstance(error, TIMEOUT):
                problem = f"did not answer within {self._timeout:g} seconds"
            else:
                problem = f"broke off ({reason})"
            raise CallFailed(
                f"{self.host} {problem}", retryable=True, unreachable=unreachable
            ) from None

    def _exchange(self, request: httpx.Request, limit: int, into: IO[bytes] | None) -> bytes:
        """Send, follow redirects within the service, and read the body."""
        from strop.common.transport import allow_bytes

        for _ in range(_MAX_REDIRECTS + 1):
            response = self._transport.handle_request(request)
            with closing(response.stream):  # type: ignore[type-var]
                status = response.status_code
                if response.has_redirect_location:
                    request.url = self._redirect_target(
                        request, status, response.headers["location"]
                    )
                    continue
                allow_bytes(limit * _WIRE_FACTOR + HEAD_BYTES)
                if response.is_success:
                    return self._body(response, limit, into)
                raise self.refused(status, self._explanation(response), response.headers)
        raise ServiceError(f"{self.host} redirects in a circle; check base_url")

    def _redirect_target(self, request: httpx.Request, status: int, location: str) -> httpx.URL:
        """Return the address of a redirect; refuse another host: it must get no text and no key."""
        import httpx

        try:
            target = request.url.join(location)
        except (ValueError, httpx.InvalidURL):
            raise ServiceError(
                f"{self.host} redirects to an invalid address ({one_line(location)}); "
                "check base_url"
            ) from None
        shown = one_line(target.copy_with(query=None, fragment=None))
        if (target.scheme, target.netloc) != (request.url.scheme, request.url.netloc):
            raise ServiceError(
                f"{self.host} redirects to {shown}, and texts are sent to no other host than the "
                "given one. If that address is right, give it as base_url"
            )
        if request.method != "GET" and status not in (307, 308):
            raise ServiceError(f"{self.host} answered {status}: its address is {shown} now")
        return target

    def _body(self, response: httpx.Response, limit: int, into: IO[bytes] | None) -> bytes:
        pieces, size = [], 0
        if into is not None:
            into.seek(0)
            into.truncate()
        for piece in self._decoded(response):
            size += len(piece)
            if size > limit:
                raise self.malformed(f"sent more than {limit:,} bytes")
            pieces.append(piece) if into is None else into.write(piece)
        return b"".join(pieces)

    def _explanation(self, response: httpx.Response) -> Any:
        """Return the explanation of a refusal, as JSON or text; a very long one is cut."""
        data = b""
        with suppress(CallFailed):  # the status is enough for an error
            for piece in self._decoded(response):
                data += piece
                if len(data) > _ERROR_BYTES:
                    break
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return data.decode("utf-8", "replace") or None

    def _decoded(self, response: httpx.Response) -> Iterator[bytes]:
        """Yield the bytes of a body without its gzip encoding, in pieces of bounded size."""
        encoding = response.headers.get("content-encoding", "").strip().lower()
        stream: Iterator[bytes] = iter(response.stream)  # type: ignore[arg-type]
        if encoding in ("", "identity"):
            yield from stream
            return
        if encoding not in ("gzip", "x-gzip"):
            raise self.malformed(f"sent a body encoded as {one_line(encoding)}, not gzip")
        decoder = zlib.decompressobj(wbits=31)
        try:
            for data in stream:
                while data and not decoder.eof:  # bytes after the end are ignored
                    yield decoder.decompress(data, _PIECE_BYTES)
                    data = decoder.unconsumed_tail
            yield decoder.flush()
        except zlib.error as error:
            raise self.malformed(f"sent a damaged body ({error})") from None
        if not decoder.eof:
            raise self.malformed("sent half a body")

    def refused(self, status: int, body: Any, headers: Headers) -> CallFailed | ServiceError:
        """Return the error of a status other than success, for the call or for the run."""
        message, code, fields = _explained(body)
        answer = f"{self.host} answered {status}: {one_line(message)}"
        if status in (401, 403):
            return ServiceError(f"{answer}. Set {' or '.join(self._key_variables)}")
        # Anthropic has no code for an empty account. A wrong guess only ends the run.
        if status == 402 or _NO_MONEY.search(code) or "credit balance is too low" in message:
            return ServiceError(f"{answer}. The account has no money or quota left")
        if status not in RETRYABLE and status < 500:
            about_temperature = "temperature" in fields or "temperature" in message
            bad_temperature = status == 400 and about_temperature
            if bad_temperature:
                answer += ". If the model accepts no temperature, leave it out (None)"
            configuration = bad_temperature or status == 404
            return CallFailed(answer, configuration=configuration, status=status, fields=fields)
        wait = retry_after(headers)
        if wait is not None and wait > LONGEST_WAIT:
            return ServiceError(f"{answer}. It wants no more for {wait:,.0f} seconds; resume then")
        rate_limited = status in _RATE_LIMITED
        return CallFailed(
            answer, retryable=True, rate_limited=rate_limited, wait=wait, status=status
        )


def checked_url(url: object, key_variable: str) -> str:
    """Return the address of a service without a slash at its end; ``BadInput`` if it is invalid."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        usable = usable and (parts.port or 1) > 0
    except ValueError:  # an invalid bracket or port
        usable = False
    if not usable or not isinstance(url, str):
        raise BadInput(f"base_url is {url!r}; it must be like http://127.0.0.1:8080/v1")
    if parts.username or parts.password:
        raise BadInput(f"base_url holds a password; put the key in {key_variable}")
    return url.rstrip("/")


def retry_after(headers: Headers) -> float | None:
    """Return the seconds that a service asks to wait: from a number, a date, or milliseconds."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit
            return max(seconds, 0.0) if seconds == seconds else None
    date = parsedate_tz(headers.get("retry-after", ""))
    with suppress(ValueError, OverflowError):
        return None if date is None else max(mktime_tz(date) - time.time(), 0.0)
    return None


def _explained(body: Any) -> tuple[str, str, frozenset[str]]:
    """Return message, code and named fields from the body of a refusal, in the usual forms."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return str(error if error is not None else "no explanation"), "", frozenset()
    detail = error.get("detail")
    message = error.get("message") or detail or json.dumps(error)
    fields = [error.get("param")]
    for item in detail if isinstance(detail, list) else []:  # as pydantic writes it
        location = item.get("loc") if isinstance(item, dict) else None
        fields += location if isinstance(location, list) else []
    names = frozenset(field for field in fields if isinstance(field, str))
    return str(message), f"{error.get('code')} {error.get('type')}", names
