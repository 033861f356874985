"""Keys of services: where they are read, and how they are taken out of what services send back."""

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
"""Characters. Servers of one's own get words such as "none" or "ollama" for a key. In replies they
are words like any other."""
_SHORTEST = 4
_READ_FOR_A_LINE = 4000
_ESCAPES = ("\\", "%", "&#")
_BACK = r"\\{1,8}"
"""Repetitions are bounded, here and below: a text made of backslashes must not take for ever."""


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
        encoded, escaped = _disguises(secret)
        for form in encoded:
            if form in text:
                text = text.replace(form, HIDDEN)
        if any(mark in text for mark in _ESCAPES):
            text = escaped.sub(HIDDEN, text)
    return text


@lru_cache(maxsize=16)
def _disguises(secret: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """The encoded forms of a secret, and a pattern of its escaped forms."""
    data = secret.encode("utf-8", "replace")
    forms = {data.hex(), data.hex().upper()}
    for before in range(3):  # where the secret may begin within a group of three bytes
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            code = encode(b"\0" * before + data).decode().rstrip("=")
            # The first and last characters may also depend on what stands before and after.
            first, last = (0, 2, 3)[before], 1 if (before + len(data)) % 3 else 0
            forms.add(code[first : len(code) - last])
    characters = []
    for character in secret:
        point = ord(character)
        characters.append(
            rf"(?:{re.escape(character)}|{_BACK}u00{point:02x}|{_BACK}x{point:02x}"
            rf"|%(?:25){{0,4}}{point:02x}|&\#(?:x0{{0,6}}{point:x}|0{{0,6}}{point});"
            rf"|{_BACK}{re.escape(character)})"
        )
    # Hexadecimal digits have no case; letting the whole pattern ignore it hides no more than that.
    return tuple(form for form in forms if len(form) >= _SHORTEST), re.compile(
        "".join(characters), re.IGNORECASE
    )


def storable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can hold and a catalog cannot."""
    return text.encode("utf-8", "replace").decode()


def one_line(text: str, longest: int = 200) -> str:
    """Return one line of at most ``longest`` characters without any key."""
    line = redact(" ".join(storable(text[:_READ_FOR_A_LINE]).split()), _SHORTEST)
    return line if len(line) <= longest else line[:longest] + "…"
