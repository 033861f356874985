"""How a verb is defined, and the kinds of options. The list of all verbs is in main.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from strop.cli.messages import echo, print_json, warn

Decorator = Callable[[Any], Any]
"""Gives a command an option or an argument, or several."""
_OWN = frozenset(
    ("cache", "cls", "embedder", "spec", "lm", "settings", "into", "limit", "price", "retry",
     "replace", "clock")
)  # fmt: skip
"""Names of arguments of the library, which are not options of an embedder or a model."""


class Answer(NamedTuple):
    """What a verb returns: a JSON value, and the text for people or what prints it.

    ``warnings`` are printed for both, once no progress bar is on the terminal; an ``error`` is
    raised at the end.
    """

    value: Any
    shown: str | Callable[[], None]
    error: Exception | None = None
    warnings: Sequence[str] = ()


def verb(
    *options: Decorator, name: str | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Create a command from a function that returns an ``Answer``; ``--json`` prints its value."""

    def make(function: Callable[..., Answer]) -> click.Command:
        @wraps(function)
        def run(as_json: bool, **values: Any) -> None:
            answer = function(**values)
            for warning in answer.warnings:
                warn(warning)
            if as_json:
                print_json(answer.value)
            elif callable(answer.shown):
                answer.shown()
            elif answer.shown:
                echo(answer.shown)
            if answer.error is not None:
                raise answer.error

        as_json_option = flag("--json", "Print JSON.", "as_json")
        return click.command(name)(together(*options, as_json_option)(run))

    return make


class Verbs(click.Group):
    """Lists verbs with their whole first sentences, under their headings if they have any."""

    headings: Mapping[str, Sequence[click.Command]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs."""
        for heading, verbs in (self.headings or {"Commands": [*self.commands.values()]}).items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(verb.name or "", verb.get_short_help_str(limit=1000)) for verb in verbs]
                )


def together(*options: Decorator) -> Decorator:
    """Return several options as one; ``--help`` lists them in this order."""

    def add(command: Any) -> Any:
        for each in reversed(options):
            command = each(command)
        return command

    return add


# -- kinds of options -------------------------------------------------------------------------


class _Option(click.Option):
    """Shows every default as click shows those that it knows itself: without parentheses."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's part of the help."""
        record = super().get_help_record(ctx)
        if record is None or not isinstance(self.show_default, str):
            return record
        return record[0], record[1].replace(f"({self.show_default})", self.show_default)


def option(name: str, help: str, *names: str, shown: str | None = None, **more: Any) -> Decorator:
    """Return an option; ``shown`` is the default to display if the value None stands for it."""
    return click.option(name, *names, cls=_Option, help=help, show_default=shown, **more)


def flag(name: str, help: str, *names: str) -> Decorator:
    """Return an option without a value."""
    return option(name, help, *names, is_flag=True)


def repeatable(name: str, help: str, *names: str, **more: Any) -> Decorator:
    """Return an option that may be given several times."""
    return option(name, f"{help} (repeatable).", *names, multiple=True, **more)


def split_option(name: str, help: str, separators: str = ",", **more: Any) -> Decorator:
    """Return an option that takes a list separated by commas."""

    def split(_: click.Context, __: click.Parameter, value: str | None) -> list[str]:
        parts = re.split(f"[{separators}]", value or "")
        return [part.strip() for part in parts if part.strip()]

    return option(name, help, callback=split, **more)


def named_values(name: str, help: str, into: str) -> Decorator:
    """Return a repeatable option that takes NAME=VALUE pairs."""
    return repeatable(name, help, into, metavar="NAME=VALUE", callback=_named_values)


def _named_values(_: click.Context, parameter: click.Parameter, pairs: Any) -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value that is valid JSON is read as JSON."""
    options, flag = {}, parameter.opts[0]
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"{flag} takes NAME=VALUE, not {pair!r}")
        if name in _OWN:
            raise click.UsageError(f"{flag} {name}: there is no such option")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def output_option(help: str, into: str = "output", default: Path | None = None) -> Decorator:
    """Return the option of the file or folder that a verb writes."""
    more: dict[str, Any] = {"required": True} if default is None else {"default": default}
    return option("-o", help, "--output", into, type=Path, **more)


def source_option(effect: str) -> Decorator:
    """Return the option of a query to PostgreSQL that returns documents."""
    returns = "SQL query that returns the columns id, text (or body), optionally title and metadata"
    return option("--source", f"{returns}{effect}", metavar="SELECT")


def refuse_given(names: Collection[str], reason: str) -> None:
    """Refuse options that the user gave and that would have no effect: the user relies on them."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in names and given is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} {reason}")
