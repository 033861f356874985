"""What the verb ``queries`` reports: the estimate before, the summary after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from strop.cli.messages import echo, say, warn
from strop.cli.tables import plain, print_pairs
from strop.common.text import counted
from strop.generate.plan import EXPECTED_REFERENCES
from strop.lm.base import THIS_PROCESS

if TYPE_CHECKING:
    from strop.generate import Estimate, Generation, Summary


def print_estimate(generation: Generation, estimate: Estimate, batch: bool) -> None:
    """Print what a run would cost and who would receive the text."""
    about, guessed = ("about ", " (a guess)") if estimate.guessed else ("", "")
    cut = ""
    if estimate.cut_documents:
        limit = generation.plan.settings.prompt.text_limit
        cut = f" ({estimate.cut_documents:,} truncated at {limit:,} characters: --document-chars)"
    answered = f" ({estimate.stored:,} answered)" if estimate.stored else ""
    rows = {
        "queries": f"{generation.style}, for the set {generation.name}, by {generation.lm.name}",
        "text goes to": estimate.host,
        "documents": f"{estimate.documents:,}{cut}",
        "calls": f"{estimate.calls:,}{answered}",
        "tokens in": f"about {estimate.input_tokens:,}",
        "tokens out": f"about {estimate.output_tokens:,}{guessed}",
        "price": _price(generation, estimate, batch),
        "time": "within a day" if batch else about + _duration(estimate.seconds),
    }
    if estimate.unchosen_references:
        rows["references"] = (
            f"not selected yet for {counted(estimate.unchosen_references, 'document')}: estimated"
            f" at {EXPECTED_REFERENCES} each; exact after strop references"
        )
    if estimate.without_references:
        rows["left out"] = f"no references: {counted(estimate.without_references, 'document')}"
    packed = estimate.packed
    if packed is not None and estimate.calls:
        share = packed.input_tokens / max(1, estimate.input_tokens)
        cost = "" if packed.cost is None else f", {_money(packed.cost)}"
        rows["with --packed"] = f"{packed.calls:,} calls, {share:.0%} of the tokens in{cost}"
    print_pairs(rows.items())


def print_summary(generation: Generation, summary: Summary, again: str) -> None:
    """Print what a run did, and the command that continues if requests are open."""
    spending = summary.spending
    now = f"{counted(spending.replies, 'new reply', 'new replies')}"
    if spending.replies:
        tokens = f"{spending.input_tokens:,} tokens in, {spending.output_tokens:,} out"
        cost = "" if spending.cost is None else f", {_money(spending.cost)}"
        now += f" ({tokens}{cost})"
    queries = counted(summary.queries, "query")
    documents = counted(summary.documents, "document")
    echo(f"set {generation.name}: {queries} for {documents}; {now}")
    if summary.dropped:
        empty = counted(summary.empty_replies, "reply", "replies") + " without a query; "
        shown = empty if summary.empty_replies else ""
        echo(f"dropped: {_counted(summary.dropped)} ({shown}see them: --show-dropped)")
    if summary.contrast is not None:
        nearer = "nearer to their document than to all of its references"
        if generation.style == "negative":
            nearer = "nearer to a reference than to their document"
        echo(f"contrast rate of the set: {summary.contrast:.1%} of its queries are {nearer}")
    if spending.unknown_replies:
        replies = counted(spending.unknown_replies, "reply", "replies")
        warn(f"{replies} left out: no matching request in this index")
    if summary.replaced:
        warn(_replaced(summary))
    if summary.in_batches:
        requests = counted(summary.in_batches, "request")
        say(f"{requests} in a running batch: fetch the replies with --batch collect")
    if summary.refused and not spending.failures:
        requests = counted(summary.refused, "request")
        say(f"{requests} refused before; to send them again: --retry-failed")
    if spending.stopped and spending.replies:
        say(f"stopped: {spending.stopped}. To spend as much again: {again}")
    if spending.errors:
        say(f"{counted(spending.failures, 'request')} failed: {_counted(spending.errors)}")
    if spending.failures:
        say(f"to send only these again: {again} --retry-failed")


def _replaced(summary: Summary) -> str:
    lists = counted(summary.replaced, "list")
    if summary.replaced_source == "file":
        return (
            f"{lists} from a file were dropped from the set; import the file again, into a set of"
            " another name, to restore them"
        )
    return (
        f"{lists} of another generator were dropped from the set; its replies are kept, and its"
        " command restores them at no cost"
    )


def _counted(counts: Mapping[str, int]) -> str:
    shown = sorted(counts.items(), key=lambda item: -item[1])
    more = f", and {len(shown) - 5} other kinds" if len(shown) > 5 else ""
    return ", ".join(f"{count:,} {plain(name).plain}" for name, count in shown[:5]) + more


def _price(generation: Generation, estimate: Estimate, batch: bool) -> str:
    if estimate.cost is None:
        if estimate.host == THIS_PROCESS:
            return "nothing"
        return "unknown: give --price INPUT,OUTPUT in USD per million tokens"
    known = generation.plan.calls.price
    source = f" (list price of {known.read}" if known and known.read else " (the given price"
    return f"about {_money(estimate.cost)}{source}{', batch' if batch else ''})"


def _money(cost: float) -> str:
    return f"{cost:,.2f} USD" if cost >= 0.1 or not cost else f"{cost:.4f} USD"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
