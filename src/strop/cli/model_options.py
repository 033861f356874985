"""The options that name a language model, for the verbs that call one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import F, named_options

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.generate.templates import Profile
    from strop.lm import LM, Price

PROFILE = click.option(
    "--profile",
    type=click.Choice(["instruct", "small"]),
    help="small: a text to complete, for models that do not follow instructions."
    "  [instruct; small for smollm2]",
)


def model_options(command: F) -> F:
    """Add the options that say which model is called, and how."""
    for option in reversed(
        [
            click.option("--lm", help="openai:MODEL, anthropic:MODEL, llama:FILE.gguf or smollm2."),
            click.option("--base-url", help="Address of the server, for openai: and anthropic:."),
            click.option(
                "--lm-option",
                "lm_options",
                multiple=True,
                metavar="NAME=VALUE",
                help="An option of the model, such as timeout=60 or bedrock=true (repeatable).",
            ),
            click.option("--concurrency", type=click.IntRange(1), help="Calls at a time.  [16]"),
            click.option(
                "--price",
                metavar="IN,OUT[,CACHED]",
                help="USD per million tokens, for models without a known price.",
            ),
            click.option(
                "--budget",
                type=click.FloatRange(0),
                help="Stop before spending more than this (USD).",
            ),
        ]
    ):
        command = option(command)
    return command


def profile_of(given: dict[str, Any]) -> Profile:
    """Return the profile that was given, else the one that suits the model."""
    small = given["lm"] == "smollm2" if given["profile"] is None else given["profile"] == "small"
    return "small" if small else "instruct"


def load_model(given: dict[str, Any], profile: Profile) -> LM:
    """Load the model that the options name."""
    from strop.lm import load

    options = named_options(given["lm_options"], "--lm-option")
    if profile == "small" and not given["lm"].startswith("anthropic:"):
        options.setdefault("completion", True)
    for name in ("base_url", "concurrency"):
        if given[name] is not None:
            options[name] = given[name]
    return load(given["lm"], **options)


def given_price(given: dict[str, Any]) -> Price | None:
    """Return the price that was given."""
    from strop.lm import Price

    return Price.parse(given["price"]) if given["price"] else None
