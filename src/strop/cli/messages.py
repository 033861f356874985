"""Messages to people and JSON for programs. Nothing here loads rich: ``--help`` must be quick.

Everything that goes to a terminal passes ``escape_controls``: documents, queries, replies and
arguments come from elsewhere and must not steer it.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click

from strop.common.text import escape_controls


def echo(text: str) -> None:
    """Print a line of the answer on standard output."""
    click.echo(escape_controls(text))


def say(message: str, label: str = "", color: str | None = None) -> None:
    """Print a message on standard error, on one line."""
    line = escape_controls(" ".join(message.splitlines()))
    click.echo((click.style(label, fg=color) + " " if label else "") + line, err=True)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    say(message, "warning:", "yellow")


def print_json(value: Any) -> None:
    """Print a value for programs; control characters are escaped, so a terminal may show it."""
    value = _finite(value)
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # the terminal has no Unicode, or an argument has a lone surrogate
        text = json.dumps(value, indent=2)
    echo(text)


def _finite(value: Any) -> Any:
    """Return a JSON value with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
