"""The verbs about query sets: from a file, from the text, or written by a language model."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import AS_JSON, F, open_index
from strop.cli.messages import echo, print_json, say, warn
from strop.cli.model_options import PROFILE, given_price, load_model, model_options, profile_of
from strop.cli.progress import end_progress, progress_bars
from strop.errors import BadInput
from strop.io.files import atomic_write, filled_lines, json_records
from strop.types import Progress

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.generate import Generation, GenerationSettings, Summary
    from strop.index import Index

STYLES = ("contrastive", "simple", "negative")
_SMALL = {"max_tokens": 40, "temperature": 0.3, "samples": 3}
"""What suits models of the small profile: short replies, little variation, several samples."""


def generation_options(command: F) -> F:
    """Add the options that say what the model is asked for."""
    number = click.IntRange(1)
    for option in reversed(
        [
            click.option("--set", "into", help="The set they go to.  [that of the style]"),
            click.option(
                "--packed",
                is_flag=True,
                help="One call per document with all its references, not one per reference: far"
                " fewer tokens.",
            ),
            click.option(
                "--examples",
                help="Queries of the domain, one per line (or JSONL), as models of style.",
            ),
            click.option(
                "--noun", default="query", show_default=True, help='Such as "counter-argument".'
            ),
            PROFILE,
            click.option(
                "--max-queries",
                type=number,
                help="Queries per document at most.  [as many as are good]",
            ),
            click.option(
                "--document-chars",
                type=click.IntRange(20),
                help="Longer texts are cut in prompts.  [8000; small: 2000]",
            ),
            click.option("--max-tokens", type=number, help="Tokens per reply at most.  [2000]"),
            click.option(
                "--temperature", type=click.FloatRange(0), help="LM sampling temperature."
            ),
            click.option("--samples", type=number, help="Samples per prompt.  [1; small: 3]"),
            click.option("--limit", type=number, help="Only the first N documents."),
            click.option("--replace", is_flag=True, help="Replace lists that came from a file."),
            click.option("--retry-failed", is_flag=True, help="Send only requests that failed."),
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
@click.option("--show-dropped", is_flag=True, help="Show dropped queries and replies, and why.")
@click.option(
    "--batch",
    type=click.Choice(["submit", "status", "collect"]),
    help="Use the vendor's batch service: half the price, within a day.",
)
@click.option(
    "--again",
    is_flag=True,
    help="With --batch submit: after a submission that was cut off; with collect: give up batches"
    " that the service does not know.",
)
@click.option("--requests-out", type=Path, help="Write the requests to a file instead.")
@click.option("--replies-in", help="Read the replies from a file in either vendor's form.")
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
    sentences. Every reply is stored as it comes: run the command again after any interruption, and
    only what is missing is requested. Keys are read from the environment (OPENAI_API_KEY,
    ANTHROPIC_API_KEY, STROP_API_KEY) and stored nowhere.
    """
    _check_usage(ctx, given)
    if given["lm"] is None:
        if given["queries_out"] is not None and given["file"] is None:
            _write_set(path, given["into"] or given["style"], given["queries_out"], as_json)
        else:
            _import(path, given["style"], given["file"], given["n"], as_json)
        return
    with open_index(path) as index, progress_bars() as progress:
        generation = _generation(index, given)
        if given["dry_run"]:
            _estimate(generation, given, as_json)
        elif given["show_dropped"]:
            _show_dropped(generation, as_json)
        elif given["batch"]:
            _batch(generation, given, as_json, progress)
        elif given["requests_out"] is not None:
            file = given["requests_out"]
            written = generation.write_requests(file, progress)
            message = f"{written:,} requests written to {file}; read the replies with --replies-in"
            _result(as_json, {"requests": written, "file": str(file)}, message)
        elif given["replies_in"] is not None:
            _report(generation, generation.read_replies(given["replies_in"], progress), as_json)
        else:
            summary = generation.run(
                budget=given["budget"], again=given["again"], progress=progress
            )
            _report(generation, summary, as_json)
        if given["queries_out"] is not None:
            _write_lists(index, generation.name, given["queries_out"])


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
        triples = index.triplets(name, negatives)
        written = _write_lines(output, (one._asdict() for one in triples))
    message = f"{written:,} triplets written to {output}"
    _result(as_json, {"triplets": written, "file": str(output)}, message)


# -- options --------------------------------------------------------------------------------

_WITHOUT_LM = frozenset({"path", "style", "file", "n", "into", "queries_out", "as_json"})


def _check_usage(ctx: click.Context, given: dict[str, Any]) -> None:
    """Refuse options that would have no effect: someone counts on them."""
    if given["lm"] is None:
        _check_usage_without_lm(ctx, given)
        return
    if given["file"] is not None:
        raise click.UsageError("--file and --lm are two sources: give one")
    if given["n"] is not None:
        raise click.UsageError("--n is for --file and sentences; with --lm it is --max-queries")
    actions = ("dry_run", "show_dropped", "batch", "requests_out", "replies_in")
    chosen = [name for name in actions if given[name]]
    if len(chosen) > 1 and (chosen != ["dry_run", "batch"] or given["batch"] != "submit"):
        shown = " and ".join("--" + name.replace("_", "-") for name in chosen)
        raise click.UsageError(f"{shown} exclude each other")
    if given["again"] and (chosen not in ([], ["batch"]) or given["batch"] == "status"):
        raise click.UsageError("--again is for a run, --batch submit and --batch collect")
    if given["budget"] is not None and given["requests_out"] is not None:
        raise click.UsageError("--budget cannot be kept for a file that is answered elsewhere")
    writes = (
        not chosen or given["replies_in"] or (chosen == ["batch"] and given["batch"] == "collect")
    )
    if given["queries_out"] is not None and not writes:
        raise click.UsageError("--queries-out needs a command that makes queries")


def _check_usage_without_lm(ctx: click.Context, given: dict[str, Any]) -> None:
    for option in ctx.command.params:
        name = option.name or ""
        source = ctx.get_parameter_source(name)
        if name not in _WITHOUT_LM and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} is for --lm")
    if given["file"] is not None and given["queries_out"] is not None:
        raise click.UsageError("--queries-out writes what is in the index: not with --file")
    if given["into"] is not None and given["queries_out"] is None:
        raise click.UsageError("--set is for --lm and --queries-out; else --style names the set")


def _generation(index: Index, given: dict[str, Any]) -> Generation:
    """Return the generation that the options describe."""
    if given["style"] not in STYLES:
        raise click.UsageError(f"with --lm the style is one of {', '.join(STYLES)}")
    settings = _settings(given)
    return index.generation(
        load_model(given, settings.prompt.profile),
        settings,
        into=given["into"],
        limit=given["limit"],
        price=given_price(given),
        retry=given["retry_failed"],
        replace=given["replace"] or given["dry_run"] or given["show_dropped"],
    )


def _settings(given: dict[str, Any]) -> GenerationSettings:
    from strop.generate import GenerationSettings, PromptSettings
    from strop.generate.prompts import DOCUMENT_CHARS

    profile = profile_of(given)
    prompt = PromptSettings(
        style=given["style"],
        examples=tuple(_examples(given["examples"])) if given["examples"] else (),
        noun=given["noun"],
        packed=given["packed"],
        profile=profile,
        max_queries=given["max_queries"],
        document_chars=given["document_chars"] or DOCUMENT_CHARS,
    )
    more: dict[str, Any] = dict(_SMALL) if profile == "small" else {}
    for name in ("max_tokens", "temperature", "samples"):
        if given[name] is not None:
            more[name] = given[name]
    return GenerationSettings(prompt, **more)


def _examples(file: str) -> list[str]:
    """Read example queries: lines of text, or JSON lines with a field text or query."""
    if not file.endswith((".jsonl", ".jsonl.gz")):
        texts = [line.strip() for _, line in filled_lines(file)]
    else:
        texts = []
        for where, record in json_records(file):
            text = record.get("text", record.get("query"))
            if not isinstance(text, str):
                raise BadInput(f"{where}: an example query needs a field text or query")
            texts.append(text)
    if not texts:
        raise BadInput(f"{file} holds no example queries")
    if len(texts) > 20:
        warn(f"{len(texts):,} examples go into every call; 5 are usual")
    return texts


# -- actions --------------------------------------------------------------------------------


def _estimate(generation: Generation, given: dict[str, Any], as_json: bool) -> None:
    batch = bool(given["batch"])
    estimate = generation.estimate(batch)
    end_progress()
    if as_json:
        about = {"lm": generation.lm.name, "style": generation.style, "set": generation.name}
        limit = generation.plan.settings.prompt.text_limit
        print_json({**about, "document_chars": limit, **asdict(estimate)})
    else:
        from strop.cli.generation_tables import print_estimate

        print_estimate(generation, estimate, batch)
    budget = given["budget"]
    if budget is not None and estimate.cost is not None and estimate.cost > budget:
        warn(f"that is more than the budget of {budget:g} USD: a run would stop before")


def _show_dropped(generation: Generation, as_json: bool) -> None:
    dropped = [
        {"id": one.document.id, "reason": reason, "text": text}
        for one in generation.lists()
        for reason, text in one.dropped
    ]
    lines = [f"{row['id']}: {row['reason']}: {' '.join(row['text'].split())}" for row in dropped]
    _result(as_json, {"set": generation.name, "dropped": dropped}, "\n".join(lines))


def _batch(
    generation: Generation, given: dict[str, Any], as_json: bool, progress: Progress | None
) -> None:
    if given["batch"] == "submit":
        submission = generation.submit(
            budget=given["budget"], again=given["again"], progress=progress
        )
        if submission.stopped and not submission.batches:
            raise _too_small(submission.stopped, submission.next_cost)
        lines = [f"batch {id_}: {count:,} requests" for id_, count in submission.batches.items()]
        lines += [f"not all were sent: {submission.stopped}"] if submission.stopped else []
        message = "\n".join(lines) or "nothing is open: all is answered, or in a running batch"
        _result(as_json, asdict(submission), message)
    elif given["batch"] == "status":
        states = generation.status()
        lines = [
            f"{one.id}: {one.state}, {one.succeeded:,} of {one.total:,} answered"
            + (f", {one.failed:,} failed" if one.failed else "")
            + (f" ({one.error})" if one.error else "")
            for one in states
        ]
        message = "\n".join(lines) or "no batch is running"
        _result(as_json, {"batches": [asdict(one) for one in states]}, message)
    else:
        summary, running = generation.collect(again=given["again"], progress=progress)
        end_progress()
        for one in running:
            say(f"{one.id} is still running ({one.succeeded:,} of {one.total:,}); collect later")
        _report(generation, summary, as_json)


def _report(generation: Generation, summary: Summary, as_json: bool) -> None:
    end_progress()
    if as_json:
        print_json({"set": generation.name, "lm": generation.lm.name, **summary.to_json()})
    else:
        from strop.cli.generation_tables import print_summary

        args = click.get_current_context().meta.get("strop.args", [])
        print_summary(generation, summary, shlex.join(["strop", *_command_again(args)]))
    spending = summary.spending
    if spending.stopped and not spending.replies and not spending.failures:
        raise _too_small(spending.stopped, spending.next_cost)
    if spending.failures and not summary.answered:
        raise BadInput("every request failed; nothing was written")


def _too_small(stopped: str, next_cost: float) -> BadInput:
    """Return the error for a budget that does not allow a single call."""
    unit = 10.0 ** (math.floor(math.log10(next_cost)) - 1)  # rounded up to two digits
    needed = math.ceil(next_cost / unit) * unit
    return BadInput(f"nothing was sent: {stopped}. Give --budget {needed:.2g} or more")


def _command_again(args: list[str]) -> list[str]:
    """Return the arguments that send what is left: a batch again, but not a file of replies."""
    kept: list[str] = []
    rest = iter(args)
    for arg in rest:
        name, _, value = arg.partition("=")
        if name == "--replies-in":
            if not value:
                next(rest, None)
        elif name == "--batch":
            value = value or next(rest, "")
            kept += ["--batch", "submit"]
        elif arg not in ("--retry-failed", "--again"):
            kept.append(arg)
    return kept


# -- without a model ------------------------------------------------------------------------


def _import(path: Path, style: str | None, file: str | None, n: int | None, as_json: bool) -> None:
    """Make a set from a file, or from the documents' sentences."""
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
            lists = read_query_lists(file)
            *_, unknown = index.import_queries(lists, style, n=n, progress=progress)
        info = index.info()
        about = info["sets"][style]
    if info["tuned"] and not info["tuned"]["in_use"]:
        warn(f"sharp was tuned for other sets and has its defaults again: strop tune {path}")
    if unknown:
        warn(
            f"{len(unknown):,} lists are for ids that are not in the index and were left out"
            f" (first: {unknown[0]})"
        )
    message = f"set {style}: {about['queries']:,} queries for {about['documents']:,} documents"
    _result(as_json, {"set": style, **about, "unknown_ids": len(unknown)}, message)


def _write_set(path: Path, name: str | None, output: Path, as_json: bool) -> None:
    if name is None:
        raise click.UsageError("--queries-out needs --style or --set: which set?")
    with open_index(path) as index:
        written = _write_lists(index, name, output)
    _result(as_json, {"lists": written, "file": str(output)}, f"{written:,} lists in {output}")


def _write_lists(index: Index, name: str, output: Path) -> int:
    lists = index.query_lists(name)
    return _write_lines(output, ({"id": id_, "queries": texts} for id_, texts in lists))


def _write_lines(output: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write records as JSON lines, all or nothing; return how many."""
    written = 0
    with atomic_write(output) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += 1
    return written


def _result(as_json: bool, value: dict[str, Any], message: str) -> None:
    end_progress()
    if as_json:
        print_json(value)
    elif message:
        echo(message)
