"""The options of the verbs that can have a language model refine the queries."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from strop.cli.messages import say, warn
from strop.cli.options import MODEL, given_price, load_model, profile_of
from strop.cli.verbs import Decorator, named_values, option, refuse_given, split_option, together
from strop.common.text import counted
from strop.errors import BadInput

if TYPE_CHECKING:  # loaded where a model is called, so that --help is quick
    from strop.expand.methods import QueryMethod
    from strop.expand.refining import Refined

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
            raise click.UsageError(f"--expand-option {key} is no setting of {', '.join(kinds)}")
    common = {"profile": profile_of(options), **options["settings"]}
    if options["task"] is not None:
        common["task"] = options["task"]
    lm = load_model(options)
    steps: dict[str, QueryMethod | None] = {}
    for name, kind in kinds.items():
        settings = {key: value for key, value in common.items() if kind and key in own[name]}
        steps[name] = kind(lm, **settings) if kind else None
    return steps


def limits(options: dict[str, Any]) -> dict[str, Any]:
    """Return what refining may cost, as ``Index.refine`` takes it."""
    return {"budget": options["budget"], "price": given_price(options)}


def report_expansion(name: str, refined: Refined) -> None:
    """Say what refining cost, and for how many queries it failed."""
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
        f"p95 {seconds['p95']:.2f} (stored replies as long as they took)"
        + (f"; no relevant candidate for {counted(without, 'query')}" if without else "")
    )
