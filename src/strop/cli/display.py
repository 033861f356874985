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
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from strop.methods import settings_line
from strop.types import Document, Progress

if TYPE_CHECKING:  # what it shows, not what it needs
    from strop.cli.demo import DemoResult
    from strop.evaluation.grid import Grid
    from strop.evaluation.scoring import Report
    from strop.evaluation.tune import Choice
    from strop.generate.generation import Estimate, Generation, Summary
    from strop.references.store import Selected


# Texts come from files: what would steer a terminal is shown as �, and carriage returns not at all.
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "�")
_CONTROLS[13] = ""
_WIDE = 10_000
_MUCH_WASTE, _LITTLE_WASTE = 0.2, 1_000_000
"""A share of an index that is too much to waste, and bytes that never are."""
_COMPACT = {"levels15": "compact (15 levels)", "levels5": "compact (5 levels)"}


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
            f"{told['score']:.4f} = {told['plain']:.4f} plain"
            f" {told['score'] - told['words'] - told['plain']:+.4f}"
            + (f" {told['words']:+.4f} words" if told["words"] else ""),
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
    if report.gated is not None:
        counts = ", ".join(f"{count:,} {name}" for name, count in report.left_out.items())
        standard_output().print(
            plain(
                f"\nWithout generated queries of cosine {report.leak_gate:g} or more to a test"
                f" query (left out: {counts or 'none'})"
            )
        )
        print_report(report.gated)


def print_grid(grid: Grid) -> None:
    """Print query methods by scoring methods, in percent, with the change against no expansion."""
    measures = grid.first.measures
    shown = plain_table("", "", *measures)
    shown.columns[0].header = plain(grid.first.dataset)
    for column in shown.columns[2:]:
        column.justify = "right"
    for step, report in grid.reports.items():
        best = {name: max(of[name] for of in report.results.values()) for name in measures}
        for method, values in report.results.items():
            cells = []
            for measure, value in values.items():
                mark = "^" if len(report.results) > 1 and value == best[measure] else " "
                cell = f"[bold]{100 * value:.2f}[/]^" if mark == "^" else f"{100 * value:.2f} "
                if step in grid.p_values:
                    change = 100 * (value - grid.reports["none"].results[method][measure])
                    star = "*" if grid.p_values[step][method][measure] < 0.05 else " "
                    cell += f" {change:+6.2f}{star}"
                elif grid.p_values:
                    cell += " " * 8
                cells.append(cell)
            shown.add_row(plain(step), plain(method), *cells)
        shown.add_section()
    shown.caption = f"{grid.first.queries:,} queries, percent; ^ best with its query method"
    if grid.p_values:
        shown.caption += (
            "; change against the same scoring method without expansion, * p < 0.05 (paired t-test,"
            " Holm)"
        )
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


def print_choice(choice: Choice) -> None:
    """Print what was chosen for an index, what it should gain and how sure that is."""
    out = standard_output()
    best = settings_line(choice.to_json()["method"])
    if choice.taken:
        out.print(plain(f"sharp is now {best}", "bold"))
    else:
        tried = f"; the best tried was {best}" if choice.asked else ""
        out.print(plain(f"sharp keeps its defaults{tried}", "bold"))
    if choice.gain is not None:
        out.print(
            f"{choice.gain:+.2f} nDCG@10 against the defaults, 95% sure of {choice.low:+.2f} to"
            f" {choice.high:+.2f} ({choice.asked:,} queries)"
        )
    out.print(plain(choice.why))


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
            + f", {_COMPACT.get(of['vectors'], of['vectors'])}"
            + _aside(older_than_their_text=old),
        )
    if about["references"]:
        of = about["references"]
        shown.add_row(
            "references",
            f"of {of['documents']:,} documents, {of['neighbors']} neighbours, "
            f"k {of['smallest']}:{of['largest']}{_aside(changes_since=of['out_of_date'])}",
        )
    if about["tuned"]:
        unused = "" if about["tuned"]["in_use"] else " (not in use: the query sets are others now)"
        shown.add_row("tuned", plain(settings_line(about["tuned"]["method"]) + unused))
    waiting = waiting_for_vectors(about)
    if waiting:
        finish = f"strop finish {shlex.quote(about['path'])}"
        shown.add_row("waiting", plain(f"{waiting:,} to embed: {finish}"))
    for label, said in _size_rows(about["sizes"], about["path"]):
        shown.add_row(plain(label), plain(said))
    standard_output().print(shown)


def waiting_for_vectors(about: dict[str, Any]) -> int:
    """Return how many documents and lists of queries ``strop finish`` would embed."""
    # Expanded text is embedded when a method asks for it, not by finish.
    sets = [of for of in about["sets"].values() if of["source"] != "expanded"]
    return int(about["waiting"] + sum(of["waiting"] for of in sets))


def _size_rows(sizes: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield an index's size, what it is made of, and what of it is waste."""
    per = sizes["per_document"]
    yield "size", human_bytes(sizes["total"]) + (f", {human_bytes(per)} a document" if per else "")
    sets = {f"vectors of {name}": size for name, size in sizes["sets"].items()}
    for label, size in {
        "catalog": sizes["catalog"], "vectors of documents": sizes["documents"], **sets,
        "cache": sizes["cache"],
    }.items():  # fmt: skip
        yield f"  {label}", human_bytes(size)
    if sizes["times_plain"]:
        yield (
            "  vectors in all",
            f"{sizes['times_plain']:.2f} times a plain float32 index "
            f"({human_bytes(sizes['plain'])})",
        )
    if sizes["waste"]:
        remedy = f": strop compact {shlex.quote(path)}" if worth_compacting(sizes) else ""
        yield "  of it waste", human_bytes(sizes["waste"]) + remedy


def worth_compacting(sizes: dict[str, Any]) -> bool:
    """Tell whether so much of an index is waste that people should hear of it."""
    return bool(sizes["waste"] > max(_LITTLE_WASTE, _MUCH_WASTE * sizes["total"]))


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


_bars: list[Bars] = []
"""Those on the terminal now."""


class _Rate(ProgressColumn):
    """How many a second, or a minute where that is below one."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.0f}/s" if speed >= 1 else f"{speed * 60:,.1f}/min")


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
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def show(label: str, done: int, total: int) -> None:
        label, _, note = label.partition("\t")  # what stands behind a tab may change
        if label not in tasks:
            tasks[label] = bars.add_task(label, total=total, note=note)
        bars.update(tasks[label], completed=done, total=total, note=note)

    _bars.append(bars)
    try:
        with bars:
            yield show
    finally:
        _bars.remove(bars)


def end_progress() -> None:
    """Take progress bars off the terminal: what is printed beside them would be wiped out."""
    for bars in _bars:
        bars.stop()


# -- generation -------------------------------------------------------------------------------


def print_estimate(plan: Generation, found: Estimate, packed: Estimate | None, batch: bool) -> None:
    """Print what a run would cost and who would receive the text."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    roughly = "about " if found.guessed else ""
    rows = {
        "queries": f"{plan.style}, for the set {plan.name}, by {plan.lm.name}",
        "text goes to": found.host,
        "documents": f"{found.documents:,}",
        "calls": f"{found.calls:,}" + (f" ({found.stored:,} answered)" if found.stored else ""),
        "tokens in": f"about {found.input_tokens:,}",
        "tokens out": f"about {found.output_tokens:,}" + (" (a guess)" if found.guessed else ""),
        "price": _price(plan, found, batch),
        "time": "within a day" if batch else f"{roughly}{_duration(found.seconds)}",
    }
    if found.without_references:
        rows["left out"] = f"{found.without_references:,} documents have no references"
    if packed is not None and found.calls:
        share = packed.input_tokens / max(1, found.input_tokens)
        cost = "" if packed.cost is None else f", {_money(packed.cost)}"
        rows["with --packed"] = f"{packed.calls:,} calls, {share:.0%} of the tokens in{cost}"
    for name, value in rows.items():
        table.add_row(name, Text(value))
    standard_output().print(table)


def print_generated(plan: Generation, summary: Summary, again: str) -> None:
    """Print what a run did, and the command that goes on where something is left."""
    spent = summary.spent
    now = f"{spent.replies:,} replies now"
    if spent.replies:
        tokens = f"{spent.input_tokens:,} tokens in, {spent.output_tokens:,} out"
        now += f" ({tokens}" + ("" if spent.cost is None else f", {_money(spent.cost)}") + ")"
    click.echo(
        f"set {plan.name}: {summary.queries:,} queries for {summary.lists:,} documents; {now}"
    )
    if summary.dropped:
        click.echo("dropped: " + _counted(summary.dropped))
    if summary.unverified:
        click.echo(f"dropped by --verify: {summary.unverified:,}")
    if summary.problems:
        held = f" ({summary.unparsed:,} replies held no query)" if summary.unparsed else ""
        click.echo("in the replies: " + _counted(summary.problems) + held)
    if spent.unknown:
        warn(f"{spent.unknown:,} replies are of no question asked here and were left out")
    if summary.replaced:
        lists, back = "that another generator wrote", "its replies are kept, and the same command"
        if summary.replaced_source == "file":
            lists, back = "that came from a file", "importing it again, into a set of another name,"
        warn(
            f"{summary.replaced:,} lists {lists} are gone from the set; {back}"
            + (" as then" if summary.replaced_source != "file" else "")
            + " brings them back for nothing"
        )
    if summary.contrast is not None:
        where = "their document than all of its references"
        if plan.style == "negative":
            where = "a reference than their document"
        click.echo(f"contrast rate of the set: {summary.contrast:.1%} nearer {where}")
    if summary.in_batches:
        say(f"{summary.in_batches:,} questions are out in a batch: fetch them with --batch collect")
    if summary.refused and not spent.failures:
        say(f"{summary.refused:,} questions were refused before; to ask them again: --retry-failed")
    if spent.stopped:
        say(f"stopped: {spent.stopped}. To go on, give more: {again}")
    if spent.errors:
        say(f"{spent.failures:,} questions failed: {_counted(spent.errors)}")
    if spent.failures:
        say(f"to ask just these again: {again} --retry-failed")


def _counted(counts: Mapping[str, int]) -> str:
    shown = sorted(counts.items(), key=lambda item: -item[1])
    more = f", and {len(shown) - 5} other kinds" if len(shown) > 5 else ""
    return ", ".join(f"{count:,} {plain(name).plain}" for name, count in shown[:5]) + more


def _price(plan: Generation, found: Estimate, batch: bool) -> str:
    if found.cost is None:
        if found.host == "this process":
            return "nothing"
        return "unknown: give --price INPUT,OUTPUT in USD per million tokens"
    known = plan.asking.price
    source = f" (list price of {known.read}" if known and known.read else " (the given price"
    return f"about {_money(found.cost)}{source}{', batch' if batch else ''})"


def _money(cost: float) -> str:
    return f"{cost:,.2f} USD" if cost >= 0.1 or not cost else f"{cost:.4f} USD"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
