"""Options that several verbs share, and the objects that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import argument

from strop.cli.messages import say, warn
from strop.cli.verbs import (
    Decorator,
    flag,
    named_values,
    option,
    refuse_given,
    repeatable,
    split_option,
    together,
)
from strop.common.text import counted, is_url
from strop.errors import BadInput

if TYPE_CHECKING:  # loaded where they are needed, so that --help is quick
    from strop.engines.published import Published
    from strop.expand.methods import QueryMethod
    from strop.expand.refining import Refined
    from strop.generate.templates import Profile
    from strop.index import Index
    from strop.lm import LM, Price
    from strop.types import Dataset

COUNT = click.IntRange(1)
VECTOR_FORM = click.Choice(["int8", "float32"])


def _folder(_: click.Context, __: click.Parameter, value: str) -> Path:
    if is_url(value):
        raise click.BadParameter("this command needs the folder of an index, not a published copy")
    return Path(value)


INDEX = argument("path", metavar="INDEX", callback=_folder)
INDEX_OR_URL = argument(
    "path",
    metavar="INDEX_OR_URL",
    callback=lambda _, __, value: value if is_url(value) else Path(value),
)
WAIT = option(
    "--wait",
    "Seconds to wait if another process is writing to the same index.",
    type=click.FloatRange(0),
    default=0,
    metavar="SECONDS",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update(wait=value),
)
WRITTEN_INDEX = together(INDEX, WAIT)


def waiting_time() -> float:
    """Return the seconds of ``--wait``, 0 if the verb has no such option."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else float(context.meta.get("wait", 0))


def open_index(path: Path, **options: Any) -> Index:
    """Open an index; ``options`` are passed to its embedder."""
    from strop.index import Index

    return Index.open(path, wait=waiting_time(), **options)


def open_readable(target: Path | str) -> Index | Published:
    """Open an index, or a published copy by its URL."""
    from strop.opening import connect

    return connect(target)


EMBEDDER = together(
    option(
        "--embedder",
        "Embedder; `strop build --help` lists them.",
        shown="the existing one; for a new index or folder wordllama",
    ),
    named_values("--option", "Option of the embedder, such as max_length=512", "options"),
)
NEIGHBOUR_METHOD = option(
    "--method",
    "How neighbours are searched; cells is approximate, for very large corpora.",
    type=click.Choice(["auto", "exact", "cells"]),
    shown="auto: cells above 300,000 documents",
)

READING = ("format", "id_field", "text_field", "title_field", "delimiter", "max_document_bytes")
"""The options of ``CORPUS`` that describe a file."""
CORPUS = together(
    argument("corpus"),
    option(
        "--format",
        "Corpus format, if not clear from the extension; text: a folder, one document per file.",
        type=click.Choice(["beir", "jsonl", "csv", "tsv", "parquet", "text"]),
    ),
    option("--id-field", "Name of the id field.", shown="_id, id"),
    option("--text-field", "Name of the text field.", shown="text"),
    option("--title-field", "Name of the title field.", shown="title"),
    option(
        "--delimiter",
        "Column separator of a CSV file, such as ';' or tab.",
        callback=lambda _, __, value: "\t" if value in ("tab", "\\t") else value,
        metavar="CHARACTER",
        shown="guessed from the header",
    ),
    repeatable(
        "--include", "In a folder, read only files such as '*.md' or 'docs/*'", metavar="PATTERN"
    ),
    repeatable(
        "--exclude",
        "In a folder, skip files or folders such as drafts or '*.pdf'",
        metavar="PATTERN",
    ),
    option(
        "--max-document-bytes", "Refuse longer lines and documents.", type=COUNT, default=64_000_000
    ),
)

SETS = split_option("--sets", "Query sets to use, such as simple+contrastive.", "+,", shown="all")
SETTINGS = ("alpha", "temperature", "sets", "n", "words")
"""The options of ``SCORING``, under the names that ``Index.method`` has for them."""
SCORING = together(
    option("--alpha", "Strength of sharpening.", type=float, shown="1"),
    option(
        "--temperature",
        "Softmax temperature over a document's queries: 0 uses only the most similar"
        " query, inf their mean.",
        type=float,
        shown="sharp 0.1, simsharp and consharp 1",
    ),
    SETS,
    option("--n", "Use the first N queries per document and set.", type=int, shown="all"),
    option(
        "--words",
        "Weight of keyword matching (BM25) in sharp; 0 turns it off.",
        type=float,
        shown="wordllama 1.1; others 0.45, or 2 if they do not support the language",
    ),
)

LABELLED = together(
    option("--split", "Split of DATASET's qrels to use.", default="test"),
    split_option("--exclude-queries", "Ids of queries to leave out, such as 1,3."),
    flag(
        "--ignore-same-id",
        "Exclude the document that has the same id as the query (as in ArguAna).",
    ),
)
MEASURES = split_option("--measures", "Any measures of ir_measures.", default="nDCG@10,R@50,AP@50")


def read_labelled(folder: str, options: Mapping[str, Any]) -> Dataset:
    """Read the labelled queries that the options describe."""
    from strop.evaluation.scoring import select_queries
    from strop.io.datasets import read_dataset

    data = read_dataset(folder, options["split"])
    return select_queries(data, options["exclude_queries"], options.get("limit_queries"))


# -- language models --------------------------------------------------------------------------

LM_OPTIONS = named_values(
    "--lm-option", "Option of the model, such as timeout=60 or bedrock=true", "lm_options"
)
PRICE = option(
    "--price",
    "USD per million tokens, for models without a known price.",
    metavar="IN,OUT[,CACHED]",
)
MODEL = together(
    option("--lm", "openai:MODEL, anthropic:MODEL, llama:FILE.gguf or smollm2."),
    option("--base-url", "Address of the server, for openai: and anthropic:."),
    LM_OPTIONS,
    option("--concurrency", "Number of parallel calls.", type=COUNT, shown="16"),
    PRICE,
    option("--budget", "Stop before spending more than this (USD).", type=click.FloatRange(0)),
    option(
        "--profile",
        "small: prompts to complete, for models that do not follow instructions.",
        type=click.Choice(["instruct", "small"]),
        shown="instruct; small for smollm2",
    ),
)


def profile_of(options: Mapping[str, Any]) -> Profile:
    """Return the profile of ``--profile``, else the one that suits the model."""
    profile: Profile = "small" if options["lm"] == "smollm2" else "instruct"
    return options["profile"] or profile


def load_model(options: Mapping[str, Any]) -> LM:
    """Load the model that the options of ``MODEL`` describe."""
    from strop.lm import load

    lm_options = dict(options["lm_options"])
    if profile_of(options) == "small" and not options["lm"].startswith("anthropic:"):
        lm_options.setdefault("completion", True)
    for name in ("base_url", "concurrency"):
        if options[name] is not None:
            lm_options[name] = options[name]
    return load(options["lm"], **lm_options)


def given_price(options: Mapping[str, Any]) -> Price | None:
    """Return the price of ``--price``."""
    from strop.lm import Price

    return Price.parse(options["price"]) if options["price"] else None


# -- query expansion --------------------------------------------------------------------------

_ALL = "hyde, query2doc, lamer, rede-rf"
_EXPAND_ONLY = (
    "lm", "base_url", "concurrency", "budget", "price", "profile", "task", "settings", "lm_options",
)  # fmt: skip


def expansion_options(several: bool) -> Decorator:
    """Return the options of query methods; ``several`` of them may be named."""
    what = "the queries" if several else "the query"
    which = f"Any of none, {_ALL}" if several else f"One of {_ALL}"
    return together(
        split_option("--expand", f"Have a language model refine {what}. {which}."),
        option(
            "--task",
            "With --expand, the kind of collection: web, science, scifact, nfcorpus, fiqa,"
            " trec-covid, scidocs, arguana, bright, miracl.",
            shown="web",
        ),
        named_values(
            "--expand-option",
            "A setting of --expand: samples, max_tokens, temperature, candidates, first_pass; see"
            " docs/query-expansion.md",
            "settings",
        ),
        MODEL,
    )


def chosen_steps(options: dict[str, Any]) -> dict[str, QueryMethod | None]:
    """Return the query methods named, with their settings; None stands for ``none``."""
    names = options["expand"] or ["none"]
    if names == ["none"]:
        refuse_given(_EXPAND_ONLY, "needs --expand")
        return {"none": None}
    from strop.expand.methods import QUERY_METHODS

    if unknown := [name for name in names if name != "none" and name not in QUERY_METHODS]:
        raise BadInput(f"no query method {unknown[0]!r}: choose from none, {_ALL}")
    if options["lm"] is None:
        raise click.UsageError("--expand needs a language model: --lm SPEC")
    kinds = {name: QUERY_METHODS.get(name) for name in names}
    own = {name: {field.name for field in fields(kind)} for name, kind in kinds.items() if kind}
    for key in options["settings"]:
        if not any(key in known for known in own.values()):
            raise click.UsageError(f"--expand-option {key} is not a setting of {', '.join(kinds)}")
    common = {"profile": profile_of(options), **options["settings"]}
    if options["task"] is not None:
        common["task"] = options["task"]
    lm = load_model(options)
    steps: dict[str, QueryMethod | None] = {}
    for name, kind in kinds.items():
        settings = {key: value for key, value in common.items() if kind and key in own[name]}
        steps[name] = kind(lm, **settings) if kind else None
    return steps


def report_expansion(name: str, refined: Refined) -> None:
    """Report what refining cost, and for how many queries it failed."""
    if refined.failed:
        warn(f"{name}: {refined.failure_message()}")
    if refined.spending.stopped:
        warn(f"{name}: {refined.spending.stopped}")
    about = refined.to_json()
    seconds = about["seconds_per_query"]
    cost = "" if about["cost"] is None else f", {about['cost']:.4f} USD"
    without = about["no_relevant_candidate"]
    say(
        f"{name}: {counted(about['replies_now'], 'new reply', 'new replies')}, "
        f"{about['replies_stored']:,} stored earlier, {about['input_tokens']:,} + "
        f"{about['output_tokens']:,} tokens{cost}; seconds per query: mean {seconds['mean']:.2f}, "
        f"p95 {seconds['p95']:.2f} (for stored replies, the time they took)"
        + (f"; no relevant candidate for {counted(without, 'query')}" if without else "")
    )
