"""What people see: tables, one-line messages and progress bars; and JSON for machines."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from strop.types import Document, Progress

if TYPE_CHECKING:  # what it shows, not what it needs
    from strop.demo import DemoResult
    from strop.reference_store import Selected
    from strop.scoring import Report


# Texts come from files: what would steer a terminal is shown as �, and carriage returns not at all.
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "�")
_CONTROLS[13] = ""
_WIDE = 10_000


def say(message: str, label: str = "", style: str = "") -> None:
    """Say something to the person, on standard error, on one line."""
    line = Text.assemble((label and f"{label} ", style), plain(" ".join(message.splitlines())))
    Console(stderr=True, soft_wrap=True).print(line)


def warn(message: str) -> None:
    """Say what may be wrong."""
    say(message, "warning:", "yellow")


def print_json(value: Any) -> None:
    """Print a value for machines."""
    value = _finite(value)
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # no Unicode there, or half a character in an argument
        text = json.dumps(value, indent=2)
    click.echo(text)


def _finite(value: Any) -> Any:
    """Return a JSON value without NaN, which JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def standard_output() -> Console:
    """Return a console that never folds lines when piped."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE, soft_wrap=True)
    return console


def plain(text: str, style: str = "") -> Text:
    """Return a text to be shown as it is: no markup, no emoji codes, no control characters."""
    return Text(text.translate(_CONTROLS), style)


def plain_table(*columns: str) -> Table:
    """Return an empty table in the house style."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def print_hits(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents."""
    shown = plain_table("", "score", "id", "document")
    for row in rows:
        shown.add_row(
            str(row["rank"]),
            f"{row['score']:.4f}",
            plain(row["id"]),
            plain(shorten(f"{row['title']} {row['text']}", 160)),
        )
    standard_output().print(shown)


def print_document(
    document: Document, queries: Mapping[str, Sequence[str]], selected: Selected | None
) -> None:
    """Print one document, its stored queries and its references."""
    out = standard_output()
    out.print(plain(document.id, "bold"), plain(document.title), sep="  ")
    out.print(plain(document.text))
    for key, value in document.metadata.items():
        out.print(plain(f"{key}:", "dim"), plain(str(value)))
    for name, texts in queries.items():
        out.print()
        out.print(plain(name, "bold"), f"({len(texts)})")
        for text in texts:
            out.print(plain(f"  - {text}"))
    if selected is not None:
        out.print()
        out.print(plain("references", "bold"), f"(silhouette {selected.silhouette:.3f})")
        for one in selected.references:
            line = f"  {one.similarity:.3f}  {one.id}  (for {one.cluster_size} neighbours)"
            out.print(plain(line))


def print_explained(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents, each with the stored queries that moved it most."""
    out = standard_output()
    for row in rows:
        told = row["explanation"]
        out.print(
            plain(f"{row['rank']}. {row['id']} ", "bold"),
            f"{told['score']:.4f} = {told['plain']:.4f} plain {told['score'] - told['plain']:+.4f}",
        )
        shown = plain_table("moved", "weight", "similarity", "set", "stored query")
        for part in told["queries"][:5]:
            shown.add_row(
                f"{part['moved']:+.4f}",
                f"{part['weight']:.2f}",
                f"{part['similarity']:.3f}",
                plain(part["set"]),
                plain(shorten(part["text"], 90)),
            )
        out.print(shown)


def print_report(report: Report) -> None:
    """Print methods side by side, in percent, with their change against the baseline."""
    shown = plain_table("", *report.measures)
    shown.columns[0].header = plain(report.dataset)
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, values in report.results.items():
        cells = []
        for measure, value in values.items():
            cell = f"{100 * value:.2f}"
            if name != report.baseline:
                change = 100 * (value - report.results[report.baseline][measure])
                star = "*" if report.p_values[name][measure] < 0.05 else " "
                cell += f" [green]{change:+.2f}[/]{star}" if change > 0 else f" {change:+.2f}{star}"
            cells.append(cell)
        shown.add_row(plain(name), *cells)
    shown.caption = f"{report.queries:,} queries, percent"
    if len(report.results) > 1:
        shown.caption += f"; change against {report.baseline}, * p < 0.05 (paired t-test, Holm)"
    standard_output().print(shown)


def print_demo(result: DemoResult, path: Path, command: str) -> None:
    """Print what the demo found and the line to type next."""
    out = standard_output()
    out.print(
        f"\n{result.documents:,} documents of the Python {result.version} standard library, "
        f"{result.report.queries} questions written by hand\n"
    )
    print_report(result.report)
    out.print("\nThe two answers that gained most and the one that lost most, and why:")
    for change in result.changes:
        before, after = (str(place or "beyond 50") for place in (change.before, change.after))
        out.print()
        out.print(plain(f"  {change.question}", "bold"))
        how = (
            "moved by its own text"
            if change.moved == change.answer
            else (f"overtaken by {change.moved}, moved by its own text")
        )
        out.print(plain(f"  {change.answer}: place {before} -> {after}, {how}"))
        for part in change.why:
            out.print(plain(f"    {part.moved:+.3f}  {shorten(part.text, 84)}"))
    out.print("\nSearch it yourself:\n")
    question = result.changes[0].question if result.changes else "copy a file"
    words = [command, "search", shlex.quote(str(path)), shlex.quote(question), "--explain"]
    click.echo(f"  {' '.join(words)}\n")


def print_info(about: dict[str, Any]) -> None:
    """Print what an index holds."""
    made = about["embedder"]
    shown = plain_table("", "")
    shown.show_header = False
    shown.add_row("index", plain(f"{about['path']} (format {about['format']})"))
    shown.add_row("embedder", plain(f"{made['name']}, {made['dim']} dimensions"))
    shown.add_row("documents", f"{about['documents']:,}{_aside(empty=about['empty'])}")
    for name, of in about["sets"].items():
        old = 0 if of["waiting"] else of["older_than_text"]
        shown.add_row(
            plain(f"set {name}"),
            f"{of['queries']:,} texts for {of['documents']:,} documents"
            + f", {of['vectors']} {human_bytes(of['bytes'])}"
            + _aside(older_than_their_text=old),
        )
    # Expanded text is embedded when a method asks for it, not by finish.
    sets = [of for of in about["sets"].values() if of["source"] != "expanded"]
    if about["references"]:
        of = about["references"]
        shown.add_row(
            "references",
            f"of {of['documents']:,} documents, {of['neighbors']} neighbours, "
            f"k {of['smallest']}:{of['largest']}{_aside(changes_since=of['out_of_date'])}",
        )
    waiting = about["waiting"] + sum(of["waiting"] for of in sets)
    if waiting:
        finish = f"strop finish {shlex.quote(about['path'])}"
        shown.add_row("waiting", plain(f"{waiting:,} to embed: {finish}"))
    shown.add_row("size", human_bytes(about["total_bytes"]))
    standard_output().print(shown)


def human_bytes(size: float) -> str:
    """Return a size as people read it: 1.2 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def shorten(text: str, most: int) -> str:
    """Return the text on one line, cut to ``most`` characters."""
    folded = " ".join(text.split())
    return folded if len(folded) <= most else folded[: most - 1].rstrip() + "…"


def _aside(**counts: int) -> str:
    said = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return f" ({', '.join(said)})" if said else ""


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Show progress bars on a terminal; nothing where output is piped."""
    if not sys.stderr.isatty():
        yield None
        return
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def show(label: str, done: int, total: int) -> None:
        if label not in tasks:
            tasks[label] = bars.add_task(label, total=total)
        bars.update(tasks[label], completed=done, total=total)

    with bars:
        yield show
