"""The verbs for corpora that one machine cannot hold: plan, run, import."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import Choice

from strop.cli import options as opt
from strop.cli.generate import PROMPT, STYLES, prompt_settings
from strop.cli.messages import progress_bars
from strop.cli.verbs import Answer, Verbs, option, output_option, repeatable, verb
from strop.common.text import counted

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.distributed.run import Settings

_SHARD = option("--shard-documents", "Documents per shard.", type=opt.COUNT, shown="50000")


@click.group(cls=Verbs)
def cluster() -> None:
    """Run the indexing stages on many machines.

    Each stage reads and writes shard files.

    \b
    plan CORPUS --machines 16            time, storage and cost of each stage
    run CORPUS -o FOLDER                 up to contrastive references
    run CORPUS -o FOLDER --stage queries
    import FOLDER my.index               the result as an index
    """


@verb(
    output_option("Folder of shards.", "folder"),
    option(
        "--stage",
        "Run this stage and the stages that it needs.",
        type=Choice(["vectors", "references", "requests", "replies", "queries"]),
        default="references",
    ),
    option(
        "--style",
        "Kind of queries; all except sentences need --lm.",
        type=Choice(["sentences", *STYLES]),
        default="sentences",
    ),
    opt.EMBEDDER,
    option(
        "--workers",
        "Number of parallel processes.",
        type=opt.COUNT,
        shown="number of cores; with --ray, all of the cluster",
    ),
    option("--ray", "Ray cluster; local starts one on this machine.", metavar="ADDRESS"),
    _SHARD,
    opt.NEIGHBOUR_METHOD,
    option(
        "--recall",
        "Required recall of the approximate neighbours (cells), estimated on a sample.",
        type=click.FloatRange(0, 1),
        shown="0.96",
    ),
    opt.MODEL,
    PROMPT,
    opt.CORPUS,
)
def run(corpus: str, folder: Path, **options: Any) -> Answer:
    """Run the stages up to --stage on CORPUS, and write shard files.

    CORPUS is what `strop build` accepts, or a folder of such files, which are read in parallel.
    Shards are written atomically: after an interruption, run the same command again, and only
    missing shards are computed. New files in CORPUS add their own shards, and all references are
    selected again. All machines must see the output folder and CORPUS under the same path.

    \b
    vectors     documents in shards, embedded
    references  cells, one shuffle by cell, neighbours, references
    requests    requests/STYLE/*.jsonl for a batch service; put its results,
                under the same names, into replies/STYLE
    replies     or send them to the service (--lm, --base-url)
    queries     the queries in the replies, or sentences, embedded
    """
    from strop.distributed.run import Cluster
    from strop.distributed.runners import LocalRunner, RayRunner

    settings = _settings(corpus, folder, options)
    ray, workers = options["ray"], options["workers"]
    chosen = RayRunner(ray, workers) if ray else LocalRunner(workers or os.cpu_count() or 1)
    with closing(chosen) as runner, progress_bars() as progress:
        run_ = Cluster(folder, settings, runner, progress)
        run_.run(options["stage"], options["style"], options["budget"])
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


def _settings(corpus: str, folder: Path, options: dict[str, Any]) -> Settings:
    """Return the settings: those of this command, else those of the last run in the folder."""
    from strop.distributed.run import Settings

    known = Settings.read(folder) if (folder / "settings.json").exists() else None
    if known is not None and not options["embedder"] and not options["options"]:
        embedder = known.trusted_embedder(folder)
    else:
        embedder = _embedder(options)
    chosen = {name: options[name] for name in ("shard_documents", "method", "recall")}
    settings = replace(
        known or Settings(corpus, embedder),
        corpus=corpus,
        embedder=embedder,
        reading=_reading(options),
        **{name: value for name, value in chosen.items() if value is not None},
    )
    if options["stage"] in ("vectors", "references") or options["style"] == "sentences":
        return settings
    if options["lm"] is None:
        raise click.UsageError(f"--style {options['style']} needs a language model: --lm SPEC")
    lm, price = opt.load_model(options), opt.given_price(options)
    generated = {
        "lm": {"name": lm.name, "options": dict(lm.options)},
        "settings": prompt_settings(options).to_json(),
        "price": None if price is None else list(astuple(price)),
    }
    return replace(settings, sets={**settings.sets, options["style"]: generated})


def _embedder(options: dict[str, Any]) -> dict[str, Any]:
    return {"name": options["embedder"] or "wordllama", "options": options["options"]}


def _reading(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in opt.READING}


@verb(click.argument("folder", type=Path), opt.WRITTEN_INDEX, opt.EMBEDDER, name="import")
def import_(folder: Path, path: Path, embedder: str | None, options: dict[str, Any]) -> Answer:
    """Import the finished shards of FOLDER into INDEX.

    INDEX is created if it does not exist. Documents, vectors, references, query sets and replies
    are imported; no text is embedded again. Run it again after more stages or an interruption.
    """
    from strop.distributed.importing import import_shards

    spec = {"name": embedder, "options": options} if embedder else None
    with progress_bars() as progress:
        result = import_shards(folder, path, spec, progress, opt.waiting_time())
    sets = f", sets {', '.join(result.sets)}" if result.sets else ""
    message = f"{path}: {counted(result.documents, 'document')}, {result.references:,} with"
    message += f" references{sets}"
    return Answer(asdict(result), message, warnings=result.notes)


@verb(
    option("--machines", "Number of machines.", type=opt.COUNT, default=1),
    option("--cores", "Cores per machine.", type=opt.COUNT, shown="as on this machine"),
    option("--documents", "Number of documents.", type=opt.COUNT, shown="as in CORPUS"),
    _SHARD,
    repeatable(
        "--rate",
        "Override a measured rate (per core and second) or size (per document), such as embed=400",
        "rates",
        metavar="NAME=VALUE",
    ),
    option("--style", "Kind of queries.", type=Choice(STYLES), default="contrastive"),
    option("--lm", "Language model for the cost estimate, such as openai:gpt-5-mini."),
    opt.PRICE,
    opt.EMBEDDER,
    opt.CORPUS,
)
def plan(corpus: str, documents: int | None, **options: Any) -> Answer:
    """Estimate time, storage and cost of each stage for CORPUS.

    Rates are measured on the first 2,000 documents, on one core of this machine. The API cost
    assumes one packed request per document, sent to a batch service.
    """
    from strop.cli.tables import print_plan
    from strop.distributed.plan import given_rates, measure, stages_of
    from strop.lm import price

    rates, estimated = measure(
        Path(corpus), _embedder(options), _reading(options), options["style"]
    )
    rates, n = given_rates(rates, options["rates"]), documents or estimated
    known = price(options["lm"].partition(":")[2]) if options["lm"] else None
    cost = opt.given_price(options) or known
    stages = stages_of(
        rates, n, machines=options["machines"], cores=options["cores"] or os.cpu_count() or 1,
        shard_documents=options["shard_documents"] or 50_000, price=cost,
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
