"""Messages and progress bars for people, JSON for programs; rich is loaded only for bars.

Everything that goes to a terminal passes ``escape_controls``: documents, queries, replies and
arguments come from elsewhere and must not control it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from strop.common.text import escape_controls
from strop.types import Progress


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


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Show progress bars on a terminal; yield None if standard error is piped."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Items per second, or per minute if that is below one."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed or 0.0
            shown = f"{speed:,.0f}/s" if speed >= 1 else f"{speed * 60:,.1f}/min"
            return Text(shown if speed else "")

    bars = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, progress.TaskID] = {}

    def show(label: str, done: int, total: int) -> None:
        label, _, note = escape_controls(label).partition("\t")  # the note may change, no label
        if label not in tasks:
            tasks[label] = bars.add_task(label, total=total, note=note)
        bars.update(tasks[label], completed=done, total=total, note=note)

    with bars:
        yield show
