"""Progress bars, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strop.common.text import escape_controls
from strop.types import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Show progress bars on a terminal; yield None where standard error is piped."""
    if not sys.stderr.isatty():
        yield None
        return
    bars = _new_bars()
    tasks: dict[str, Any] = {}

    def show(label: str, done: int, total: int) -> None:
        label, _, note = escape_controls(label).partition("\t")  # the note may change, no label
        if label not in tasks:
            tasks[label] = bars.add_task(label, total=total, note=note)
        bars.update(tasks[label], completed=done, total=total, note=note)

    with bars:
        yield show


def _new_bars() -> Bars:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """How many a second, or a minute where that is below one."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            if not speed:
                return Text("")
            return Text(f"{speed:,.0f}/s" if speed >= 1 else f"{speed * 60:,.1f}/min")

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
