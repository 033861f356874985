"""The verbs for corpora that one machine cannot hold: plan, run, import."""

from __future__ import annotations

import os
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli.generate import PROMPT, STYLES, prompt_settings
from strop.cli.options import (
    CORPUS,
    COUNT,
    MODEL,
    WAIT,
    Answer,
    Verbs,
    given_price,
    load_model,
    named_values,
    verb,
    waiting_time,
)
from strop.cli.progress import progress_bars
from strop.common.text import counted

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.distributed.run import Settings
    from strop.distributed.runners import Runner

_CORPUS = click.argument("corpus")
_EMBEDDER = click.option("--embedder", help="Embedder, as of strop build.  [wordllama]")
_OPTIONS = named_values("--option", "options", "Option of the embedder, such as max_length=512")
_READING = ("format", "id_field", "text_field", "title_field", "delimiter", "max_document_bytes")


@click.group(cls=Verbs)
def cluster() -> None:
    """Run the offline stages on many machines, from shard files to shard files.

    \b
    plan CORPUS --machines 16            time, storage and money of each stage
    run CORPUS -o FOLDER                 up to contrastive references
    run CORPUS -o FOLDER --stage queries
    import FOLDER my.index               the result as an index
    """


@verb(
    _CORPUS,
    click.option("-o", "--output", "folder", required=True, type=Path, help="Folder of shards."),
    click.option(
        "--stage",
        type=click.Choice(["vectors", "references", "requests", "replies", "queries"]),
        default="references",
        help="Do this stage and what it needs.",
    ),
    click.option(
        "--style",
        type=click.Choice(["sentences", *STYLES]),
        default="sentences",
        help="Which queries; those of a model need --lm.",
    ),
    _EMBEDDER,
    _OPTIONS,
    click.option("--workers", type=COUNT, help="Processes at a time.  [cores; of Ray: all]"),
    click.option("--ray", metavar="ADDRESS", help="Ray cluster; local starts one here."),
    click.option("--shard-documents", type=COUNT, help="Documents per shard.  [50000]"),
    click.option(
        "--method",
        type=click.Choice(["auto", "exact", "cells"]),
        help="How neighbours are found.  [auto: cells above 300,000 documents]",
    ),
    click.option(
        "--recall",
        type=click.FloatRange(0, 1),
        help="Share of neighbours that cells must find, by a sample.  [0.96]",
    ),
    MODEL,
    PROMPT,
    CORPUS,
)
def run(corpus: str, folder: Path, **options: Any) -> Answer:
    """Run the stages of CORPUS up to one of them; shards go to the folder.

    CORPUS is what strop build takes, or a folder of such files, which are read in parallel. Every
    shard is written all or nothing: run the same command again after any stop, and only what is
    missing is done; new files in CORPUS cost their own shards, and new references. All machines
    must see the folder and CORPUS under the same path.

    \b
    vectors     documents in shards, embedded
    references  cells, one shuffle by cell, neighbours, references
    requests    requests/STYLE/*.jsonl for a batch service; put its results,
                of the same names, into replies/STYLE
    replies     or send them to the service (--lm, --base-url)
    queries     the queries in the replies, or sentences, embedded
    """
    from strop.distributed.run import Cluster

    settings = _settings(corpus, folder, options)
    runner = _runner(options)
    try:
        with progress_bars() as progress:
            run_ = Cluster(folder, settings, runner, progress)
            run_.run(options["stage"], options["style"], options["budget"])
    finally:
        runner.close()
    done = ", ".join(f"{stage} {count:,}" for stage, count in run_.ran.items())
    left = {name: int(count) for name, count in run_.unfinished.items() if count}
    warnings = []
    if refused := left.get("vectors:refused"):
        warnings.append(f"the embedder refused {counted(refused, 'document')}: no vectors")
    if open_ := left.get("replies:open") or left.get("queries:open"):
        warnings.append(f"{counted(open_, 'request')} without a reply: run --stage replies again")
    message = f"{folder}: shards done now: {done}" if done else f"{folder}: nothing to do"
    value = {"folder": str(folder), "done": run_.ran, "left": left}
    return Answer(value, message, warnings=warnings)


def _runner(options: dict[str, Any]) -> Runner:
    from strop.distributed.runners import LocalRunner, RayRunner

    if options["ray"]:
        return RayRunner(options["ray"], options["workers"])
    return LocalRunner(options["workers"] or os.cpu_count() or 1)


def _settings(corpus: str, folder: Path, options: dict[str, Any]) -> Settings:
    """Return the settings: those of this command, else those of the last run in the folder."""
    from strop.distributed.run import Settings

    known = None
    if (folder / "settings.json").exists():
        known = Settings.read(folder)
    embedder = {"name": options["embedder"] or "wordllama", "options": options["options"]}
    if known is not None and not options["embedder"] and not options["options"]:
        embedder = known.trusted_embedder(folder)
    reading = {name: options[name] for name in _READING}
    settings = replace(known or Settings(corpus, embedder), corpus=corpus, embedder=embedder)
    chosen = {name: options[name] for name in ("shard_documents", "method", "recall")}
    settings = replace(
        settings, reading=reading, **{name: v for name, v in chosen.items() if v is not None}
    )
    if options["stage"] not in ("vectors", "references") and options["style"] != "sentences":
        settings = replace(settings, sets={**settings.sets, options["style"]: _set(options)})
    return settings


def _set(options: dict[str, Any]) -> dict[str, Any]:
    """Return the model and settings of a set of generated queries."""
    if options["lm"] is None:
        raise click.UsageError(f"who writes {options['style']} queries? Give --lm SPEC")
    asks = prompt_settings(options)
    lm, price = load_model(options, asks.prompt.profile), given_price(options)
    return {
        "lm": {"name": lm.name, "options": dict(lm.options)},
        "settings": asks.to_json(),
        "price": None if price is None else list(astuple(price)),
    }


@verb(
    click.argument("folder", type=Path),
    click.argument("path", metavar="INDEX", type=Path),
    WAIT,
    _EMBEDDER,
    _OPTIONS,
    name="import",
)
def import_(folder: Path, path: Path, embedder: str | None, options: dict[str, Any]) -> Answer:
    """Import the finished shards of FOLDER into INDEX, which is made if it does not exist.

    Documents, vectors, references, query sets and replies become those of the index. No text is
    embedded again. Run it again after more stages or an interruption.
    """
    from strop.distributed.load import import_shards

    spec = {"name": embedder, "options": options} if embedder else None
    with progress_bars() as progress:
        result = import_shards(folder, path, spec, progress, waiting_time())
    sets = f", sets {', '.join(result.sets)}" if result.sets else ""
    message = f"{path}: {counted(result.documents, 'document')}, {result.references:,} with"
    message += f" references{sets}"
    return Answer(asdict(result), message, warnings=result.notes)


@verb(
    _CORPUS,
    click.option("--machines", type=COUNT, default=1, help="Machines of the cluster."),
    click.option("--cores", type=COUNT, help="Cores per machine.  [as here]"),
    click.option("--documents", type=COUNT, help="Number of documents.  [as in CORPUS]"),
    click.option("--shard-documents", type=COUNT, default=50_000, help="Documents per shard."),
    click.option(
        "--rate",
        "rates",
        multiple=True,
        metavar="NAME=VALUE",
        help="A rate of one core in place of the measured one, such as embed=400 (repeatable).",
    ),
    click.option(
        "--style", type=click.Choice(STYLES), default="contrastive", help="Which queries."
    ),
    click.option("--lm", help="Model whose price counts, such as openai:gpt-5-mini."),
    click.option("--price", metavar="IN,OUT", help="USD per million tokens, for other models."),
    _EMBEDDER,
    _OPTIONS,
    CORPUS,
)
def plan(corpus: str, documents: int | None, **options: Any) -> Answer:
    """Estimate a run over CORPUS: tasks, time, storage and money of each stage.

    Rates are measured on the first 2,000 documents, on one core of this machine. Money is for one
    packed request per document, sent to a batch service.
    """
    from strop.cli.tables import print_plan
    from strop.distributed.plan import given_rates, measure, stages_of
    from strop.lm import price

    embedder = {"name": options["embedder"] or "wordllama", "options": options["options"]}
    reading = {name: options[name] for name in _READING}
    rates, estimated = measure(Path(corpus), embedder, reading, options["style"])
    rates, n = given_rates(rates, options["rates"]), documents or estimated
    cost = given_price(options) or (
        price(options["lm"].partition(":")[2]) if options["lm"] else None
    )
    stages = stages_of(
        rates, n, machines=options["machines"], cores=options["cores"] or os.cpu_count() or 1,
        shard_documents=options["shard_documents"], price=cost,
    )  # fmt: skip
    value = {
        "documents": n,
        "estimated": documents is None,
        "rates": asdict(rates),
        "stages": [asdict(stage) for stage in stages],
    }
    warnings = [] if cost else ["no price: give --lm or --price to see the model's cost"]
    return Answer(value, partial(print_plan, value), warnings=warnings)


for _verb in (plan, run, import_):
    cluster.add_command(_verb)
