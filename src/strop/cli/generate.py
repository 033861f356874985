"""The verbs about query sets: from a file, from the text, or written by a language model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli import options as opt
from strop.cli.messages import progress_bars, warn
from strop.cli.verbs import Answer, flag, option, output_option, refuse_given, together, verb
from strop.common.text import counted
from strop.errors import BadInput
from strop.io.files import atomic_write, filled_lines, json_records
from strop.types import Progress

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.generate import Generation, GenerationSettings, Summary
    from strop.generate.generation import Submission
    from strop.index import Index
    from strop.lm.batches import Status

STYLES = ("contrastive", "simple", "negative")
_SMALL = {"max_tokens": 40, "temperature": 0.3, "samples": 3}
"""What suits models of the small profile: short replies, little variation, several samples."""

PROMPT = together(
    flag(
        "--packed",
        "One call per document with all its references, not one per reference: far fewer tokens.",
    ),
    option("--examples", "Queries of the domain, one per line (or JSONL), as examples of style."),
    option(
        "--noun", 'What is written about a document: "query", "counter-argument" …', default="query"
    ),
    option(
        "--max-queries",
        "Queries per document at most.",
        type=opt.COUNT,
        shown="as many as are good",
    ),
    option(
        "--document-chars",
        "Longer texts are cut in prompts.",
        type=click.IntRange(20),
        shown="8000; small: 2000",
    ),
    option("--max-tokens", "Tokens per reply at most.", type=opt.COUNT, shown="2000; small: 40"),
    option(
        "--temperature",
        "LM sampling temperature.",
        type=click.FloatRange(0),
        shown="the service's; small: 0.3",
    ),
    option("--samples", "Samples per prompt.", type=opt.COUNT, shown="1; small: 3"),
)


@verb(
    opt.WRITTEN_INDEX,
    option("--style", "Kind of queries: contrastive, simple, negative; sentences."),
    option("--file", 'Lines {"id": …, "queries": […]}; - for standard input.'),
    option("--n", "From a file or sentences: at most N for each document.", type=opt.COUNT),
    opt.MODEL,
    option("--set", "The set they go to.", "into", shown="that of the style"),
    PROMPT,
    option("--limit", "Only the first N documents.", type=opt.COUNT),
    flag("--replace", "Replace lists that came from a file."),
    flag("--retry-failed", "Send only requests that failed."),
    flag("--dry-run", "Show the cost and the host that would receive the texts."),
    flag("--show-dropped", "Show dropped queries and replies, and why."),
    option(
        "--batch",
        "Use the vendor's batch service: half the price, within a day.",
        type=click.Choice(["submit", "status", "collect"]),
    ),
    flag(
        "--again",
        "Send although a batch whose submission was cut off may be running. With --batch"
        " collect: give up batches that the service does not know.",
    ),
    option("--requests-out", "Write the requests to a file instead.", type=Path),
    option("--replies-in", "Read the replies from a file in either vendor's form."),
    option("--queries-out", "Write the set to a file that --file reads.", type=Path),
)
def queries(path: Path, **options: Any) -> Answer:
    """Sharpen INDEX with a set of queries.

    \b
    strop queries INDEX --lm openai:gpt-5-mini --style contrastive --dry-run
    strop queries INDEX --lm openai:gpt-5-mini --style contrastive --budget 5
    strop queries INDEX --file simple.jsonl --set simple
    strop queries INDEX --style sentences

    A language model writes them (--lm), a file has them (--file), or they are the documents' own
    sentences. Every reply is stored as it comes: run the command again after any interruption, and
    only what is missing is requested. Keys are read from the environment (OPENAI_API_KEY,
    ANTHROPIC_API_KEY, STROP_API_KEY) and stored nowhere.
    """
    _check_usage(options)
    out = options["queries_out"]
    with opt.open_index(path) as index, progress_bars() as progress:
        if options["lm"] is None:
            name = options["into"] or options["style"]
            if out is not None:
                return _written(index, name, out)
            return _imported(index, name, options["file"], options["n"], progress)
        generation = index.generation(
            opt.load_model(options),
            prompt_settings(options),
            into=options["into"],
            limit=options["limit"],
            price=opt.given_price(options),
            retry=options["retry_failed"],
            replace=options["replace"] or options["show_dropped"],
        )
        answer = _run(generation, options, progress)
        if out is not None:
            _written(index, generation.name, out)
    return answer


@verb(
    opt.INDEX,
    output_option("The file, JSON lines."),
    option("--set", "Which query set.", "name", default="contrastive"),
    option("--negatives", "Negatives per query.", type=opt.COUNT, default=1),
)
def triplets(path: Path, output: Path, name: str, negatives: int) -> Answer:
    """Write (query, positive, negative) texts for training sentence-transformers.

    Negatives are the references a query was written against, or its document's. Load the file with
    datasets.load_dataset("json", data_files=FILE).
    """
    with opt.open_index(path) as index:
        triples = index.triplets(name, negatives)
        written = _write_lines(output, (triplet._asdict() for triplet in triples))
    message = f"{counted(written, 'triplet')} written to {output}"
    return Answer({"triplets": written, "file": str(output)}, message)


# -- options --------------------------------------------------------------------------------

_WITHOUT_LM = frozenset({"path", "style", "file", "n", "into", "queries_out", "as_json", "wait"})


def _check_usage(options: dict[str, Any]) -> None:
    """Refuse options that would have no effect: someone counts on them."""
    style, file, out = options["style"], options["file"], options["queries_out"]
    if options["lm"] is not None:
        actions = ("dry_run", "show_dropped", "batch", "requests_out", "replies_in")
        chosen = [name for name in actions if options[name]]
        both = " and ".join("--" + name.replace("_", "-") for name in chosen)
        batch = options["batch"]
        priced = chosen == ["dry_run", "batch"] and batch == "submit"
        makes = not chosen or chosen == ["replies_in"] or (batch == "collect" and len(chosen) == 1)
        wrong = {
            f"with --lm give --style, one of {', '.join(STYLES)}"
            + (f", not {style!r}" if style else ""): style not in STYLES,
            "--file and --lm are two sources: give one": file is not None,
            "--n is for --file and sentences; with --lm it is --max-queries":
                options["n"] is not None,
            f"{both} exclude each other": len(chosen) > 1 and not priced,
            "--again is for a run, --batch submit and --batch collect":
                options["again"] and (chosen not in ([], ["batch"]) or batch == "status"),
            "--budget cannot be kept for a file that is answered elsewhere":
                options["budget"] is not None and options["requests_out"] is not None,
            "--queries-out needs a command that makes queries": out is not None and not makes,
        }  # fmt: skip
    else:
        refuse_given(options.keys() - _WITHOUT_LM, "is for --lm")
        makes_sentences = style == "sentences" and out is None
        wrong = {
            "--queries-out writes what is in the index: not with --file":
                file is not None and out is not None,
            "which set? Give --set or --style: sentences, simple with --lm, a name with --file":
                style is None and options["into"] is None,
            "--set names the set; --style does so where there is none: give one":
                style is not None and options["into"] is not None,
            "--style sentences needs no --file": makes_sentences and file is not None,
            f"who writes {style or options['into']} queries? Give --lm SPEC, or --file FILE":
                out is None and file is None and not makes_sentences,
        }  # fmt: skip
    for message, holds in wrong.items():
        if holds:
            raise click.UsageError(message)


def prompt_settings(options: Mapping[str, Any]) -> GenerationSettings:
    """Return what the model is asked for, by the options of ``PROMPT``."""
    from strop.generate import GenerationSettings, PromptSettings
    from strop.generate.prompts import DOCUMENT_CHARS

    profile = opt.profile_of(options)
    prompt = PromptSettings(
        style=options["style"],
        examples=read_examples(options["examples"]),
        noun=options["noun"],
        packed=options["packed"],
        profile=profile,
        max_queries=options["max_queries"],
        document_chars=options["document_chars"] or DOCUMENT_CHARS,
    )
    more: dict[str, Any] = dict(_SMALL) if profile == "small" else {}
    more |= {name: options[name] for name in _SMALL if options[name] is not None}
    return GenerationSettings(prompt, **more)


def read_examples(file: str | None) -> tuple[str, ...]:
    """Read example queries: lines of text, or JSON lines with a field text or query."""
    if file is None:
        return ()
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
    return tuple(texts)


# -- actions --------------------------------------------------------------------------------


def _run(generation: Generation, options: dict[str, Any], progress: Progress | None) -> Answer:
    """Do what the options ask of a generation."""
    if options["dry_run"]:
        return _estimate(generation, bool(options["batch"]), options["budget"])
    if options["show_dropped"]:
        return _dropped(generation)
    how: dict[str, Any] = {"again": options["again"], "progress": progress}
    if options["batch"] == "submit":
        return _submitted(generation.submit(budget=options["budget"], **how))
    if options["batch"] == "status":
        return _status(generation.status())
    if options["batch"] == "collect":
        summary, running = generation.collect(**how)
        waiting = [
            f"{batch.id} is still running ({batch.succeeded:,} of {batch.total:,}); collect later"
            for batch in running
        ]
        return _summary(generation, summary, waiting)
    if options["requests_out"] is not None:
        file = options["requests_out"]
        written = generation.write_requests(file, progress)
        requests = counted(written, "request")
        message = f"{requests} written to {file}; read the replies with --replies-in"
        return Answer({"requests": written, "file": str(file)}, message)
    if options["replies_in"] is not None:
        return _summary(generation, generation.read_replies(options["replies_in"], progress))
    return _summary(generation, generation.run(budget=options["budget"], **how))


def _estimate(generation: Generation, batch: bool, budget: float | None) -> Answer:
    from strop.cli.generation_tables import print_estimate
    from strop.lm.service import ServiceLM

    estimate = generation.estimate(batch)
    about = {"lm": generation.lm.name, "style": generation.style, "set": generation.name}
    limit = generation.plan.settings.prompt.text_limit
    value = {**about, "document_chars": limit, **asdict(estimate)}
    warnings = []
    if budget is not None and estimate.cost is not None and estimate.cost > budget:
        warnings.append(f"more than the budget of {budget:g} USD: a run would stop before")
    if isinstance(generation.lm, ServiceLM):
        try:
            generation.lm.key()
        except BadInput as error:
            warnings.append(f"a run would be refused: {error}")
    return Answer(value, partial(print_estimate, generation, estimate, batch), warnings=warnings)


def _dropped(generation: Generation) -> Answer:
    dropped = [
        {"id": list_.document.id, "reason": reason, "text": text}
        for list_ in generation.lists()
        for reason, text in list_.dropped
    ]
    lines = [f"{row['id']}: {row['reason']}: {' '.join(row['text'].split())}" for row in dropped]
    return Answer({"set": generation.name, "dropped": dropped}, "\n".join(lines))


def _submitted(submission: Submission) -> Answer:
    if submission.stopped and not submission.batches:
        raise _too_small(submission.stopped, submission.next_cost)
    sent = submission.batches.items()
    lines = [f"batch {id_}: {counted(count, 'request')}" for id_, count in sent]
    lines += [f"not all were sent: {submission.stopped}"] if submission.stopped else []
    nothing = "no request is open: all have replies or are in a running batch"
    return Answer(asdict(submission), "\n".join(lines) or nothing)


def _status(batches: Sequence[Status]) -> Answer:
    lines = [
        f"{batch.id}: {batch.state}, {batch.succeeded:,} of {batch.total:,} answered"
        + (f", {batch.failed:,} failed" if batch.failed else "")
        + (f" ({batch.error})" if batch.error else "")
        for batch in batches
    ]
    value = {"batches": [asdict(batch) for batch in batches]}
    return Answer(value, "\n".join(lines) or "no batch is running")


def _summary(generation: Generation, summary: Summary, warnings: Sequence[str] = ()) -> Answer:
    """Return what a run did, and the command that sends what is left."""
    from strop.cli.generation_tables import print_summary

    spending, error = summary.spending, None
    if spending.stopped and not spending.replies and not spending.failures:
        error = _too_small(spending.stopped, spending.next_cost)
    elif spending.failures and not summary.answered:
        error = BadInput("every request failed; nothing was written")
    value = {"set": generation.name, "lm": generation.lm.name, **summary.to_json()}
    args = click.get_current_context().meta.get("strop.args", [])
    again = shlex.join(["strop", *_command_again(args)])
    return Answer(value, partial(print_summary, generation, summary, again), error, warnings)


def _too_small(stopped: str, next_cost: float) -> BadInput:
    """Return the error for a budget that does not allow a single call."""
    needed = 1.1 * next_cost  # in two digits it is still enough
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


def _imported(
    index: Index, name: str, file: str | None, n: int | None, progress: Progress | None
) -> Answer:
    """Make a set from a file, or from the documents' sentences."""
    from strop.io.datasets import read_query_lists
    from strop.io.sentences import MOST

    unknown: list[str] = []
    if file is None:
        index.sharpen("sentences", n=n or MOST, progress=progress)
    else:
        lists = read_query_lists(file)
        *_, unknown = index.import_queries(lists, name, n=n, progress=progress)
    info = index.info()
    about = info["sets"][name]
    warnings = []
    if info["tuned"] and not info["tuned"]["in_use"]:
        again = f"strop tune {shlex.quote(str(index.path))}"
        warnings.append(f"sharp was tuned for other sets and has its defaults again: {again}")
    if unknown:
        lists_of = counted(len(unknown), "list of an unknown id", "lists of unknown ids")
        warnings.append(f"left out {lists_of} (first: {unknown[0]})")
    queries_ = counted(about["queries"], "query")
    message = f"set {name}: {queries_} for {counted(about['documents'], 'document')}"
    value = {"set": name, **about, "unknown_ids": len(unknown)}
    return Answer(value, message, warnings=warnings)


def _written(index: Index, name: str, output: Path) -> Answer:
    """Write a set to a file."""
    lists = index.query_lists(name)
    written = _write_lines(output, ({"id": id_, "queries": texts} for id_, texts in lists))
    value = {"lists": written, "file": str(output)}
    return Answer(value, f"{counted(written, 'list')} in {output}")


def _write_lines(output: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write records as JSON lines, all or nothing; return how many."""
    written = 0
    with atomic_write(output) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += 1
    return written
