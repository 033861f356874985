"""What the verb ``queries`` reports: the estimate before, the summary after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from strop.cli.messages import echo, say, warn
from strop.cli.tables import plain, standard_output

if TYPE_CHECKING:
    from strop.generate.generation import Estimate, Generation, Summary


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
    echo(f"set {plan.name}: {summary.queries:,} queries for {summary.lists:,} documents; {now}")
    if summary.dropped:
        echo("dropped: " + _counted(summary.dropped))
    if summary.unverified:
        echo(f"dropped by --verify: {summary.unverified:,}")
    if summary.problems:
        held = f" ({summary.unparsed:,} replies held no query)" if summary.unparsed else ""
        echo("in the replies: " + _counted(summary.problems) + held)
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
        echo(f"contrast rate of the set: {summary.contrast:.1%} nearer {where}")
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
