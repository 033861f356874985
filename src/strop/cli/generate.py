"""The verbs about query sets: taken from a file, from the text, or written by a language model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strop.cli.common import AS_JSON, named_options, open_index
from strop.cli.messages import echo, print_json, say, warn
from strop.cli.progress import end_progress, progress_bars
from strop.errors import BadInput
from strop.io.files import atomic_write, filled_lines, json_records
from strop.types import Progress

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.generate.generation import Generation, GenerationSettings, Summary
    from strop.generate.prompts import Profile
    from strop.index import Index

F = TypeVar("F", bound=Callable[..., Any])

STYLES = ("contrastive", "simple", "negative")
_SMALL = {"max_tokens": 40, "temperature": 0.3, "samples": 3}
"""What suits models of the small profile: short, nearly sure of themselves, asked repeatedly."""


def model_options(command: F) -> F:
    """Add the options that say which model is asked, and how."""
    for option in reversed(
        [
            click.option("--lm", help="openai:MODEL, anthropic:MODEL, llama:FILE.gguf or smollm2."),
            click.option("--base-url", help="Where openai: or anthropic: finds its server."),
            click.option(
                "--lm-option",
                "lm_options",
                multiple=True,
                metavar="NAME=VALUE",
                help="A model's option, such as timeout=60 or bedrock=true (repeatable).",
            ),
            click.option("--concurrency", type=click.IntRange(1), help="Calls at a time.  [16]"),
            click.option(
                "--price",
                metavar="IN,OUT[,CACHED]",
                help="USD per million tokens, where the built-in table has none.",
            ),
            click.option("--budget", type=click.FloatRange(0), help="USD not to be passed."),
        ]
    ):
        command = option(command)
    return command


def generation_options(command: F) -> F:
    """Add the options that say what is asked for."""
    for option in reversed(
        [
            click.option("--set", "into", help="The set they go to.  [that of the style]"),
            click.option(
                "--packed",
                is_flag=True,
                help="One call for each document with all its references, not one for each"
                " reference: far fewer tokens.",
            ),
            click.option(
                "--examples", help="Queries of the domain, a line each (or JSONL), for style."
            ),
            click.option(
                "--noun", default="query", show_default=True, help='Such as "counter-argument".'
            ),
            click.option(
                "--profile",
                type=click.Choice(["instruct", "small"]),
                help="small has texts completed, for models that follow no instructions.",
            ),
            click.option(
                "--max-queries",
                type=click.IntRange(1),
                default=10,
                show_default=True,
                help="At most so many for each document.",
            ),
            click.option("--max-tokens", type=click.IntRange(1), help="Of a reply.  [2000]"),
            click.option("--temperature", type=click.FloatRange(0), help="Of the model."),
            click.option(
                "--samples", type=click.IntRange(1), help="Ask each question so often.  [1]"
            ),
            click.option("--limit", type=click.IntRange(1), help="Only the first N documents."),
            click.option(
                "--replace", is_flag=True, help="Let these take the place of lists from a file."
            ),
            click.option("--retry-failed", is_flag=True, help="Ask just what failed before."),
            click.option(
                "--verify",
                is_flag=True,
                help="Drop queries nearer a reference than their document. Usually makes search"
                " worse: those are the ones to learn from.",
            ),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--style", help="contrastive, simple, negative; sentences; or a name for --file.")
@click.option("--file", help='Lines {"id": …, "queries": […]}; - for standard input.')
@click.option("--n", type=int, help="From a file or sentences: at most N for each document.")
@model_options
@generation_options
@click.option("--dry-run", is_flag=True, help="Say what it would cost, and who would get the text.")
@click.option(
    "--batch",
    type=click.Choice(["submit", "status", "collect"]),
    help="By the vendor's batch service: half the price, within a day.",
)
@click.option("--batch-id", help="With --batch collect: a batch this index does not know of.")
@click.option(
    "--again",
    is_flag=True,
    help="With --batch submit: after one that was cut off; with collect: give up those that the"
    " service does not know.",
)
@click.option("--requests-out", type=Path, help="Write the questions to a file instead.")
@click.option("--replies-in", help="Take the replies from a file in either vendor's form.")
@click.option("--queries-out", type=Path, help="Write the set to a file that --file reads.")
@AS_JSON
@click.pass_context
def queries(ctx: click.Context, /, path: Path, as_json: bool, **given: Any) -> None:
    """Sharpen INDEX with a set of queries.

    \b
    strop queries INDEX --lm openai:gpt-4.1-mini --style contrastive --dry-run
    strop queries INDEX --lm openai:gpt-4.1-mini --style contrastive --budget 5
    strop queries INDEX --file simple.jsonl --style simple
    strop queries INDEX --style sentences

    A language model writes them (--lm), a file has them (--file), or they are the documents' own
    sentences. Every reply is kept as it comes: run the command again after any interruption, and
    only what is missing is asked. Keys are read from the environment (OPENAI_API_KEY,
    ANTHROPIC_API_KEY, STROP_API_KEY) and stored nowhere.
    """
    style = given["style"]
    _check_usage(ctx, given)
    if given["lm"] is None:
        if given["queries_out"] is not None and given["file"] is None:
            _write_set(path, given["into"] or style, given["queries_out"], as_json)
        else:
            _take_in(path, style, given["file"], given["n"], as_json)
        return
    with open_index(path) as index, progress_bars() as progress:
        plan = _plan(index, given, progress)
        if given["dry_run"]:
            _estimate(index, plan, given, as_json)
        elif given["batch"]:
            _batch(index, plan, given, as_json, progress)
        elif given["requests_out"] is not None:
            written = index.write_requests(plan, given["requests_out"])
            _told(as_json, {"requests": written, "file": str(given["requests_out"])},
                  f"{written:,} requests written to {given['requests_out']}; bring the replies"
                  " back with --replies-in")  # fmt: skip
        elif given["replies_in"] is not None:
            spent = index.read_replies(plan, given["replies_in"])
            _report(ctx, index.take_replies(plan, spent, progress), plan, as_json)
        else:
            summary = index.generate(
                plan, budget=given["budget"], again=given["again"], progress=progress
            )
            _report(ctx, summary, plan, as_json)
        if given["queries_out"] is not None:
            _write_lists(index, plan.name, given["queries_out"])


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--style", default="contrastive", show_default=True, type=click.Choice(STYLES))
@model_options
@generation_options
@click.option("--batch", is_flag=True, help="At the price of the vendor's batch service.")
@AS_JSON
def estimate(path: Path, as_json: bool, **given: Any) -> None:
    """Say what having queries written would cost; the same as `strop queries … --dry-run`."""
    if given["lm"] is None:
        raise click.UsageError("name the model: --lm openai:MODEL, anthropic:MODEL, …")
    with open_index(path) as index, progress_bars() as progress:
        _estimate(index, _plan(index, given, progress), given, as_json)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("-o", "--output", required=True, type=Path, help="The file, JSON lines.")
@click.option("--set", "name", default="contrastive", show_default=True, help="Which query set.")
@click.option(
    "--negatives", type=click.IntRange(1), default=1, show_default=True, help="For each query."
)
@AS_JSON
def triplets(path: Path, output: Path, name: str, negatives: int, as_json: bool) -> None:
    """Write (query, positive, negative) texts for training, as sentence-transformers takes them.

    Negatives are the references a query was written against, or its document's. Load the file with
    datasets.load_dataset("json", data_files=FILE).
    """
    with open_index(path) as index:
        made = index.triplets(name, negatives)
        written = _write_lines(output, (one._asdict() for one in made))
    _told(as_json, {"triplets": written, "file": str(output)},
          f"{written:,} triplets written to {output}")  # fmt: skip


# -- a model --------------------------------------------------------------------------------


def profile_of(given: dict[str, Any]) -> Profile:
    """Return how to ask: as told, else as suits the model."""
    small = given["lm"] == "smollm2" if given["profile"] is None else given["profile"] == "small"
    return "small" if small else "instruct"


def options_of_model(given: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """Return what ``model_options`` say of a model."""
    options = named_options(given["lm_options"], "--lm-option")
    if profile == "small" and not given["lm"].startswith("anthropic:"):
        options.setdefault("completion", True)
    for name in ("base_url", "concurrency"):
        if given[name] is not None:
            options[name] = given[name]
    return options


# -- a plan ---------------------------------------------------------------------------------

_WITHOUT_LM = frozenset({"path", "style", "file", "n", "into", "queries_out", "as_json"})


def _check_usage(ctx: click.Context, given: dict[str, Any]) -> None:
    """Refuse options that would be of no effect: someone counts on them."""
    if given["lm"] is None:
        for option in ctx.command.params:
            name = option.name or ""
            source = ctx.get_parameter_source(name)
            if name not in _WITHOUT_LM and source is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{option.opts[0]} is for --lm")
        if given["file"] is not None and given["queries_out"] is not None:
            raise click.UsageError("--queries-out writes what is in the index: not with --file")
        if given["into"] is not None and given["queries_out"] is None:
            raise click.UsageError(
                "--set is for --lm and --queries-out; else --style names the set"
            )
        return
    if given["file"] is not None:
        raise click.UsageError("--file and --lm are two sources: give one")
    if given["n"] is not None:
        raise click.UsageError("--n is for --file and sentences; with --lm it is --max-queries")
    ways = [name for name in ("dry_run", "batch", "requests_out", "replies_in") if given[name]]
    if len(ways) > 1:
        shown = " and ".join("--" + name.replace("_", "-") for name in ways)
        raise click.UsageError(f"{shown} exclude each other")
    if given["batch_id"] is not None and given["batch"] != "collect":
        raise click.UsageError("--batch-id is for --batch collect")
    if given["again"] and (given["batch"] == "status" or (ways and not given["batch"])):
        raise click.UsageError("--again is for asking, --batch submit and --batch collect")
    if given["budget"] is not None and given["requests_out"] is not None:
        raise click.UsageError("--budget cannot be kept where a file is answered elsewhere")
    made = not ways or given["replies_in"] or given["batch"] == "collect"
    if given["queries_out"] is not None and not made:
        raise click.UsageError("--queries-out is for where queries are made: not now")


def _plan(index: Index, given: dict[str, Any], progress: Progress | None) -> Generation:
    """Make the plan that the options describe; references are chosen first if it needs them."""
    from strop.lm import load
    from strop.lm.prices import Price

    if given["style"] not in STYLES:
        raise click.UsageError(f"with --lm the style is one of {', '.join(STYLES)}")
    settings = _settings(given)
    # Whatever is wrong comes to light before references are chosen, which may take long.
    lm = load(given["lm"], **options_of_model(given, settings.prompt.profile))
    price = Price.parse(given["price"]) if given["price"] else None
    if given["style"] != "simple":
        index.select_references(progress=progress)
    return index.generation(
        lm,
        settings,
        into=given["into"],
        limit=given["limit"],
        price=price,
        retry=given["retry_failed"],
        verify=given["verify"],
        replace=given["replace"],
    )


def _settings(given: dict[str, Any]) -> GenerationSettings:
    from strop.generate.generation import GenerationSettings
    from strop.generate.prompts import PromptSettings

    profile = profile_of(given)
    prompt = PromptSettings(
        style=given["style"],
        examples=tuple(_examples(given["examples"])) if given["examples"] else (),
        noun=given["noun"],
        packed=given["packed"],
        profile=profile,
        max_queries=given["max_queries"],
    )
    further: dict[str, Any] = dict(_SMALL) if profile == "small" else {}
    for name in ("max_tokens", "temperature", "samples"):
        if given[name] is not None:
            further[name] = given[name]
    return GenerationSettings(prompt, **further)


def _examples(file: str) -> list[str]:
    """Read example queries: lines of text, or JSON lines with a field text or query."""
    if not file.endswith((".jsonl", ".jsonl.gz")):
        found = [line.strip() for _, line in filled_lines(file)]
    else:
        found = []
        for where, record in json_records(file):
            text = record.get("text", record.get("query"))
            if not isinstance(text, str):
                raise BadInput(f"{where}: an example query needs a field text or query")
            found.append(text)
    if not found:
        raise BadInput(f"{file} holds no example queries")
    if len(found) > 20:
        warn(f"{len(found):,} examples go into every call; 5 are usual")
    return found


# -- what is done with it ---------------------------------------------------------------------


def _estimate(index: Index, plan: Generation, given: dict[str, Any], as_json: bool) -> None:
    from dataclasses import replace

    batch = bool(given["batch"])
    found = plan.estimate(batch)
    packed = None
    if plan.style != "simple" and not plan.settings.prompt.packed:
        settings = replace(plan.settings, prompt=replace(plan.settings.prompt, packed=True))
        other = index.generation(  # it replaces nothing: it is only counted
            plan.lm, settings, into=plan.name, limit=given["limit"], price=plan.asking.price,
            retry=given["retry_failed"], replace=True,
        )  # fmt: skip
        packed = other.estimate(batch)
    end_progress()
    if as_json:
        told = {**asdict(found), "packed": asdict(packed) if packed else None}
        print_json({"lm": plan.lm.name, "style": plan.style, "set": plan.name, **told})
    else:
        from strop.cli.generation_tables import print_estimate

        print_estimate(plan, found, packed, batch)
    budget = given["budget"]
    if budget is not None and found.cost is not None and found.cost > budget:
        warn(f"that is more than the budget of {budget:g} USD: a run would stop before")


def _batch(
    index: Index, plan: Generation, given: dict[str, Any], as_json: bool, progress: Progress | None
) -> None:
    verb = given["batch"]
    with index.batches(plan) as service:
        if verb == "submit":
            sent = service.submit(budget=given["budget"], again=given["again"])
            told = [f"batch {id_}: {count:,} requests" for id_, count in sent.batches.items()]
            told += [f"not all were sent: {sent.stopped}"] if sent.stopped else []
            said = "\n".join(told) or "nothing is open: all is answered, or out in a batch"
            _told(as_json, asdict(sent), said)
            return
        if verb == "status":
            states = service.status()
            lines = [
                f"{one.id}: {one.state}, {one.succeeded:,} of {one.total:,} answered"
                + (f", {one.failed:,} failed" if one.failed else "")
                + (f" ({one.error})" if one.error else "")
                for one in states
            ]
            said = "\n".join(lines) or "no batch is out"
            _told(as_json, {"batches": [asdict(one) for one in states]}, said)
            return
        spent, running = service.collect(given["batch_id"], again=given["again"])
    end_progress()
    for state in running:
        say(f"{state.id} is still running ({state.succeeded:,} of {state.total:,}); collect later")
    summary = index.take_replies(plan, spent, progress)
    _report(click.get_current_context(), summary, plan, as_json)


def _report(ctx: click.Context, summary: Summary, plan: Generation, as_json: bool) -> None:
    end_progress()
    again = shlex.join(["strop", *_again(ctx.meta.get("strop.args", []))])
    if as_json:
        print_json({"set": plan.name, "lm": plan.lm.name, **summary.to_json()})
    else:
        from strop.cli.generation_tables import print_generated

        print_generated(plan, summary, again)
    spent = summary.spent
    if spent.failures and not spent.replies and not summary.queries:
        raise BadInput("every question failed; nothing was written")


def _again(args: list[str]) -> list[str]:
    """The arguments that ask what is left: a batch is submitted again, a file of replies is not."""
    kept: list[str] = []
    rest = iter(args)
    for arg in rest:
        name, _, value = arg.partition("=")
        if name in ("--replies-in", "--batch-id"):
            if not value:
                next(rest, None)
        elif name == "--batch":
            value = value or next(rest, "")
            kept += ["--batch", "submit"]
        elif arg not in ("--retry-failed", "--again"):
            kept.append(arg)
    return kept


def _take_in(path: Path, style: str | None, file: str | None, n: int | None, as_json: bool) -> None:
    """Take a set from a file, or from the documents' sentences."""
    from strop.io.datasets import read_query_lists
    from strop.io.sentences import MOST

    if style is None:
        raise click.UsageError("--style names the set: sentences, or with --file simple, …")
    if file is None and style in STYLES:
        raise click.UsageError(f"who writes {style} queries? Give --lm SPEC, or --file FILE")
    if (file is None) != (style == "sentences"):
        raise click.UsageError("give --file with every --style but sentences, which needs none")
    if n is not None and n < 1:
        raise click.UsageError("--n must be 1 or more")
    with open_index(path) as index, progress_bars() as progress:
        unknown: list[str] = []
        if file is None:
            index.sharpen("sentences", n=n or MOST, progress=progress)
        else:
            *_, unknown = index.import_queries(
                read_query_lists(file), style, n=n, progress=progress
            )
        whole = index.info()
        about = whole["sets"][style]
    if whole["tuned"] and not whole["tuned"]["in_use"]:
        warn(f"sharp was tuned for other sets and has its defaults again: strop tune {path}")
    if unknown:
        warn(
            f"{len(unknown):,} lists are for ids that are not in the index and were left out"
            f" (first: {unknown[0]})"
        )
    said = f"set {style}: {about['queries']:,} queries for {about['documents']:,} documents"
    _told(as_json, {"set": style, **about, "unknown_ids": len(unknown)}, said)


def _write_set(path: Path, name: str | None, output: Path, as_json: bool) -> None:
    if name is None:
        raise click.UsageError("--queries-out needs --style or --set: which set?")
    with open_index(path) as index:
        written = _write_lists(index, name, output)
    _told(as_json, {"lists": written, "file": str(output)}, f"{written:,} lists in {output}")


def _write_lists(index: Index, name: str, output: Path) -> int:
    lists = index.query_lists(name)
    return _write_lines(output, ({"id": id_, "queries": texts} for id_, texts in lists))


def _write_lines(output: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write records as JSON lines, all or nothing; how many."""
    written = 0
    with atomic_write(output) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += 1
    return written


def _told(as_json: bool, told: dict[str, Any], said: str) -> None:
    end_progress()
    if as_json:
        print_json(told)
    else:
        echo(said)
