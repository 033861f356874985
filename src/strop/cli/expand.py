"""The options of the verbs that can have a language model refine the queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import F, split_list
from strop.cli.messages import say, warn
from strop.cli.model_options import PROFILE, given_price, load_model, model_options, profile_of
from strop.common.text import counted

if TYPE_CHECKING:  # loaded where a model is called, so that --help is quick
    from strop.expand.methods import QueryMethod
    from strop.expand.refining import Refined

_ALL = "hyde, query2doc, lamer, rede-rf"
# Options of the command, and the settings of the methods that they stand for.
_SETTINGS = {
    "task": "task",
    "profile": "profile",
    "samples": "samples",
    "passage_tokens": "max_tokens",
    "sampling_temperature": "temperature",
    "candidates": "candidates",
    "first_pass": "first_pass",
}


def expansion_options(several: bool) -> Callable[[F], F]:
    """Add the options of query methods; ``several`` of them may be named."""
    number = click.IntRange(1)
    which = f"Any of none, {_ALL}" if several else f"One of {_ALL}"
    options = [
        click.option("--expand", help=f"Have a language model refine the queries. {which}."),
        click.option(
            "--task",
            help="What queries and documents are: web, science, scifact, nfcorpus, fiqa,"
            " trec-covid, scidocs, arguana, bright, miracl.  [web]",
        ),
        PROFILE,
        click.option(
            "--samples", type=number, help="Passages to write.  [hyde, rede-rf 8, lamer 5]"
        ),
        click.option(
            "--passage-tokens", type=number,
            help="Tokens per passage at most.  [hyde, rede-rf 512, query2doc, lamer 128]",
        ),
        click.option(
            "--sampling-temperature", metavar="NUMBER",
            help="LM sampling temperature; none leaves it to the model.  [0.7; query2doc, lamer 1]",
        ),
        click.option(
            "--candidates", type=number, help="Documents of the first pass.  [lamer 10, rede-rf 20]"
        ),
        click.option(
            "--first-pass", metavar="METHOD", help="The method that finds them.  [trad]"
        ),
    ]  # fmt: skip

    def add(command: F) -> F:
        command = model_options(command)
        for option in reversed(options):
            command = option(command)
        return command

    return add


def chosen_steps(given: dict[str, Any]) -> dict[str, QueryMethod | None]:
    """Return the query methods named, with their settings; None stands for ``none``."""
    names = split_list(given["expand"]) or ["none"]
    values = {key: given[key] for key in _SETTINGS if given[key] is not None}
    if names == ["none"]:
        for key in ("lm", "base_url", "concurrency", "budget", "price", *values):
            if given[key] is not None:
                raise click.UsageError(f"--{key.replace('_', '-')} needs --expand")
        return {"none": None}
    from strop.errors import BadInput
    from strop.expand.methods import QUERY_METHODS

    if unknown := [name for name in names if name != "none" and name not in QUERY_METHODS]:
        raise BadInput(f"no query method {unknown[0]!r}: choose from none, {_ALL}")
    if given["lm"] is None:
        raise click.UsageError("--expand needs a language model: --lm SPEC")
    values["profile"] = profile = profile_of(given)
    if "sampling_temperature" in values:
        values["sampling_temperature"] = _temperature(values["sampling_temperature"])
    lm = load_model(given, profile)
    steps: dict[str, QueryMethod | None] = {}
    used: set[str] = set()
    for name in dict.fromkeys(names):
        kind = QUERY_METHODS.get(name)
        if kind is None:
            steps[name] = None
            continue
        own = {field.name for field in fields(kind)}
        settings = {_SETTINGS[key]: values[key] for key in values if _SETTINGS[key] in own}
        used |= settings.keys()
        steps[name] = kind(lm, **settings)
    for key in values:
        if _SETTINGS[key] not in used:
            option = key.replace("_", "-")
            raise click.UsageError(f"--{option} is no option of {', '.join(steps)}")
    return steps


def limits(given: dict[str, Any]) -> dict[str, Any]:
    """Return what refining may cost, as ``Index.refine`` takes it."""
    return {"budget": given["budget"], "price": given_price(given)}


def _temperature(text: str) -> float | None:
    try:
        return None if text == "none" else float(text)
    except ValueError:
        raise click.UsageError(
            f"--sampling-temperature takes a number or none, not {text!r}"
        ) from None


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
        + (f"; no relevant candidate for {counted(without, 'query', 'queries')}" if without else "")
    )
