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
_LONG_ENOUGH = 8
"""Characters. Users give local servers keys such as "none" or "ollama", which are ordinary words in
replies."""
_SHORTEST = 4
_LONGEST_LINE = 200
_READ_FOR_A_LINE = 4000
_MARKS = ("\\", "%", "&#")
_ESCAPE = re.compile(
    r"\\u00([0-9a-f]{2})|\\x([0-9a-f]{2})|%([0-9a-f]{2})|&\#x0{0,6}([0-9a-f]{1,2});"
    r"|&\#0{0,6}([0-9]{1,3});|\\([\\\"'/])",
    re.IGNORECASE,
)
_TIMES = 6
"""How many levels of nested escapes are undone."""


def key_for(host: str, variables: Sequence[str]) -> str | None:
    """Return the key for a host: that of the first variable that is set, None if none is.

    Every key that leaves this process comes from here.
    """
    for variable in variables:
        if value := os.environ.get(variable):
            if not value.isascii() or not value.isprintable():
                raise BadInput(f"{variable} holds characters that no key has; set it again")
            return value
    return None


def redact(text: str, shortest: int = _LONG_ENOUGH) -> str:
    """Return a text without the keys in the environment, plain, escaped or encoded.

    Escapes are those of JSON, URLs and HTML, also mixed; encodings are base64 and hexadecimal.
    """
    for variable in _VARIABLES:
        secret = os.environ.get(variable, "")
        if len(secret) < shortest:
            continue
        text = text.replace(secret, HIDDEN)
        for form in _encoded(secret):
            if form in text:
                text = re.sub(re.escape(form) + r"(?:[\w+/-]?={1,2})?", HIDDEN, text)
        if any(mark in text for mark in _MARKS):
            text = _without_escaped(text, secret)
    return text


@lru_cache(maxsize=16)
def _encoded(secret: str) -> tuple[str, ...]:
    """The parts of any base64 or hexadecimal text with the secret in it that hold the secret."""
    data = secret.encode("utf-8", "replace")
    forms = {data.hex(), data.hex().upper()}
    for before in range(3):  # where the secret may begin within a group of three bytes
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            code = encode(b"\0" * before + data).decode().rstrip("=")
            # The first and last characters may also depend on what stands before and after.
            first, last = (0, 2, 3)[before], 1 if (before + len(data)) % 3 else 0
            forms.add(code[first : len(code) - last])
    return tuple(form for form in forms if len(form) >= _SHORTEST)


def _without_escaped(text: str, secret: str) -> str:
    """Hide a secret of which characters are escaped. The time is linear in the text."""
    sought, plain = _unescaped(secret), _unescaped(text)
    if sought not in plain:
        return text
    # Where each character of the plain text begins in the original one.
    begins, view = list(range(len(text) + 1)), text
    for _ in range(_TIMES):
        kept: list[int] = []
        last = 0
        for match in _ESCAPE.finditer(view):
            kept += begins[last : match.start() + 1]
            last = match.end()
        begins, view = kept + begins[last:], _ESCAPE.sub(_character, view)
    parts, last = [], 0
    for found in re.finditer(re.escape(sought), plain):
        parts.append(text[last : begins[found.start()]])
        last = begins[found.end()]
    return HIDDEN.join([*parts, text[last:]])


def _unescaped(text: str) -> str:
    for _ in range(_TIMES):
        text = _ESCAPE.sub(_character, text)
    return text


def _character(match: re.Match[str]) -> str:
    *hexadecimal, decimal, itself = match.groups()
    if itself:
        return itself
    return chr(int(decimal) if decimal else int(next(filter(None, hexadecimal)), 16))


def storable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can hold and a catalog cannot."""
    return text.encode("utf-8", "replace").decode()


def one_line(value: object) -> str:
    """Return a value as one line of at most ``_LONGEST_LINE`` characters without any key."""
    try:
        text = str(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested deeply"
    line = redact(" ".join(storable(text[:_READ_FOR_A_LINE]).split()), _SHORTEST)
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"
