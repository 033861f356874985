"""Text for display: control characters escaped, long text cut, plurals, sizes, URLs."""

from __future__ import annotations

import unicodedata


class _Escapes(dict[int, str]):
    """Maps each code point to the text that is shown for it; filled as code points occur."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = character
        if unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t":
            units = character.encode("utf-16-be").hex(" ", 2).split()
            shown = "".join(f"\\u{unit}" for unit in units)
        self[code] = shown
        return shown


_ESCAPES = _Escapes()


def escape_controls(text: str) -> str:
    r"""Return a text in which no character can control a terminal or reorder a line.

    Every character of the Unicode categories Cc (control) and Cf (format, such as the
    bidirectional controls) except newline and tab becomes ``\uXXXX``, as JSON writes it. Applied
    to JSON, the result is JSON of the same value.
    """
    return text.translate(_ESCAPES)


def shorten(text: str, limit: int) -> str:
    """Return the text on one line, cut to ``limit`` characters."""
    folded = " ".join(text.split())
    return folded if len(folded) <= limit else folded[: limit - 1].rstrip() + "…"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: ``1 document``, ``2,000 documents``, ``3 queries``."""
    if plural is None:
        plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def is_url(target: object) -> bool:
    """Return whether a target is the URL of a published copy, and not a folder."""
    return isinstance(target, str) and "://" in target


def human_bytes(size: float) -> str:
    """Return a size in readable form: ``1.2 MB``."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
