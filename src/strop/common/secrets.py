"""Keys of services: where they are read, and how they are removed from messages and replies."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from functools import lru_cache

from strop.errors import BadInput

HIDDEN = "***"
_VARIABLES = (
    "STROP_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
)  # fmt: skip
_MIN_KEY_CHARS = 8
"""Shorter keys are not removed from replies: users give local servers keys such as "none" or
"ollama", which are ordinary words there."""
_MIN_SECRET_CHARS = 4
"""A shorter secret, or a shorter encoded form of a secret, is removed from no text."""
_MAX_LINE_CHARS = 200
_MAX_READ_CHARS = 4000
"""How much of a value ``one_line`` reads."""
_ESCAPE_MARKS = ("\\", "%", "&#")
_ESCAPE = re.compile(
    r"\\u00([0-9a-f]{2})|\\x([0-9a-f]{2})|%([0-9a-f]{2})|&\#x0{0,6}([0-9a-f]{1,2});"
    r"|&\#0{0,6}([0-9]{1,3});|\\([\\\"'/])",
    re.IGNORECASE,
)
_ESCAPE_LEVELS = 6
"""How many levels of nested escapes are undone."""


def key_for(host: str, variables: Sequence[str]) -> str | None:
    """Return the key for a host: that of the first variable that is set, None if none is.

    Every key that this process sends comes from here.
    """
    for variable in variables:
        if value := os.environ.get(variable):
            if not value.isascii() or not value.isprintable():
                raise BadInput(f"{variable} holds characters that no key has; set it again")
            return value
    return None


def redact(text: str, shortest: int = _MIN_KEY_CHARS) -> str:
    """Return a text without the keys in the environment, plain, escaped or encoded.

    Escapes are those of JSON, URLs and HTML, even mixed; encodings are base64 and hexadecimal. Keys
    with fewer than ``shortest`` characters stay.
    """
    for variable in _VARIABLES:
        secret = os.environ.get(variable, "")
        if len(secret) < shortest:
            continue
        text = text.replace(secret, HIDDEN)
        for form in _encoded(secret):
            if form in text:
                text = re.sub(re.escape(form) + r"(?:[\w+/-]?={1,2})?", HIDDEN, text)
        if any(mark in text for mark in _ESCAPE_MARKS):
            text = _without_escaped(text, secret)
    return text


@lru_cache(maxsize=16)
def _encoded(secret: str) -> tuple[str, ...]:
    """Return the forms that a secret has within a longer base64 or hexadecimal text."""
    data = secret.encode("utf-8", "replace")
    forms = {data.hex(), data.hex().upper()}
    for offset in range(3):  # where the secret may begin within a group of three bytes
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            code = encode(b"\0" * offset + data).decode().rstrip("=")
            # The first and last characters may depend on the text before and after the secret.
            skipped, dropped = (0, 2, 3)[offset], 1 if (offset + len(data)) % 3 else 0
            forms.add(code[skipped : len(code) - dropped])
    return tuple(form for form in forms if len(form) >= _MIN_SECRET_CHARS)


def _without_escaped(text: str, secret: str) -> str:
    """Hide a secret with escaped characters. The time is linear in the length of the text."""
    plain_secret, plain = _unescaped(secret), _unescaped(text)
    if plain_secret not in plain:
        return text
    # The position in the original text at which each character of the plain text begins.
    origins, view = list(range(len(text) + 1)), text
    for _ in range(_ESCAPE_LEVELS):
        kept: list[int] = []
        end = 0
        for match in _ESCAPE.finditer(view):
            kept += origins[end : match.start() + 1]
            end = match.end()
        origins, view = kept + origins[end:], _ESCAPE.sub(_character, view)
    between, end = [], 0
    for match in re.finditer(re.escape(plain_secret), plain):
        between.append(text[end : origins[match.start()]])
        end = origins[match.end()]
    return HIDDEN.join([*between, text[end:]])


def _unescaped(text: str) -> str:
    for _ in range(_ESCAPE_LEVELS):
        text = _ESCAPE.sub(_character, text)
    return text


def _character(match: re.Match[str]) -> str:
    *hexadecimal, decimal, itself = match.groups()
    if itself:
        return itself
    return chr(int(decimal) if decimal else int(next(filter(None, hexadecimal)), 16))


def storable(text: str) -> str:
    """Return a text without lone surrogates, which JSON can contain and a catalog cannot."""
    return text.encode("utf-8", "replace").decode()


def one_line(value: object) -> str:
    """Return a value as one line of at most ``_MAX_LINE_CHARS`` characters without any key."""
    try:
        text = str(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested deeply"
    line = redact(" ".join(storable(text[:_MAX_READ_CHARS]).split()), _MIN_SECRET_CHARS)
    return line if len(line) <= _MAX_LINE_CHARS else line[:_MAX_LINE_CHARS] + "…"
