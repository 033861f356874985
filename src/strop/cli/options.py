"""How a verb is made, and the options that several verbs have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from strop.cli.messages import echo, print_json, warn
from strop.common.text import is_url

if TYPE_CHECKING:  # the verbs load these themselves, so that --help is quick
    from strop.generate.templates import Profile
    from strop.lm import LM, Price
    from strop.types import Dataset

F = TypeVar("F", bound=Callable[..., Any])

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
    *options: Callable[[Any], Any], name: str | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a command of a function that returns an ``Answer``; ``--json`` prints its value."""

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

        return click.command(name)(together(*options, _AS_JSON)(run))

    return make


class Verbs(click.Group):
    """Lists verbs with their whole first sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, under their headings if they have any."""
        for heading, verbs in self.headings().items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(verb.name or "", verb.get_short_help_str(limit=1000)) for verb in verbs]
                )

    def headings(self) -> Mapping[str, Sequence[click.Command]]:
        """Return the verbs by heading."""
        return {"Commands": list(self.commands.values())}


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return several options as one; ``--help`` lists them in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# -- how values are read ----------------------------------------------------------------------


def listed(_: click.Context, __: click.Parameter, value: str | None) -> list[str]:
    """Read a list separated by commas."""
    return [part.strip() for part in (value or "").split(",") if part.strip()]


def _listed_sets(_: click.Context, __: click.Parameter, value: str | None) -> list[str]:
    return [part.strip() for part in re.split("[+,]", value or "") if part.strip()]


def _named_values(_: click.Context, option: click.Parameter, pairs: Any) -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value that is valid JSON is read as JSON."""
    options, flag = {}, option.opts[0]
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


def _delimiter(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Read a separator; ``tab`` and ``\\t`` are a tab, which is hard to type."""
    return "\t" if value in ("tab", "\\t") else value


def named_values(flag: str, name: str, help: str) -> Callable[[F], F]:
    """Return a repeatable option that takes NAME=VALUE pairs."""
    return click.option(
        flag, name, multiple=True, metavar="NAME=VALUE", callback=_named_values,
        help=f"{help} (repeatable).",
    )  # fmt: skip


def split_option(flag: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes a list separated by commas."""
    return click.option(flag, callback=listed, **more)


# -- the options ------------------------------------------------------------------------------

COUNT = click.IntRange(1)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


class _Folder(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The folder of an index; of verbs that only read, also the URL of a published copy."""

    name = "path"

    def __init__(self, urls: bool = False) -> None:
        self._urls = urls

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(value):
            return Path(value)
        if not self._urls:
            self.fail("this verb needs the folder of an index, not a published copy", param, ctx)
        return value


INDEX = click.argument("path", metavar="INDEX", type=_Folder())
INDEX_OR_URL = click.argument("path", metavar="INDEX_OR_URL", type=_Folder(urls=True))


def wait_option(help_: str) -> Any:
    """Return the option that ``waiting_time`` reads."""
    return click.option(
        "--wait",
        type=click.FloatRange(0),
        default=0,
        metavar="SECONDS",
        expose_value=False,
        callback=lambda context, _, value: context.meta.update(wait=value),
        help=help_,
    )


WAIT = wait_option("How long to wait for another process that writes to the same index.")
WRITTEN_INDEX = together(INDEX, WAIT)


def waiting_time() -> float:
    """Return the seconds of ``--wait``, 0 where the verb has no such option."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else float(context.meta.get("wait", 0))


DATASET = click.argument("dataset")

CORPUS = together(
    click.option(
        "--format",
        type=click.Choice(["beir", "jsonl", "csv", "tsv", "parquet", "text"]),
        help="Corpus format, if not clear from the extension; text: a document per line.",
    ),
    click.option("--id-field", help="Name of the id field.  [_id, id]"),
    click.option("--text-field", help="Name of the text field.  [text]"),
    click.option("--title-field", help="Name of the title field.  [title]"),
    click.option(
        "--delimiter",
        callback=_delimiter,
        metavar="CHARACTER",
        help="Column separator of a CSV file, such as ';' or tab.  [guessed from the header]",
    ),
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="In a folder, read only files such as '*.md' or 'docs/*' (repeatable).",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="In a folder, skip files or folders such as drafts or '*.pdf' (repeatable).",
    ),
    click.option(
        "--max-document-bytes",
        type=COUNT,
        default=64_000_000,
        help="Refuse longer lines and documents.",
    ),
)

SETS = click.option(
    "--sets", callback=_listed_sets, help="Query sets to use, such as simple+contrastive.  [all]"
)
SCORING = together(
    click.option("--alpha", type=float, help="Strength of sharpening.  [1]"),
    click.option(
        "--temperature",
        type=float,
        help="Softmax temperature over a document's queries: 0 takes the most similar query, inf"
        " their mean.  [sharp 0.1, simsharp and consharp 1]",
    ),
    SETS,
    click.option("--n", type=int, help="Use the first N queries per document and set.  [all]"),
    click.option(
        "--words",
        type=float,
        help="Weight of the query's words in sharp, 0 for none."
        "  [wordllama 1.1; others 0.45, or 2 if they do not know the language]",
    ),
)

LABELLED = together(
    click.option("--split", default="test", help="Which qrels of DATASET."),
    split_option("--exclude-queries", help="Ids of queries to leave out, such as 1,3."),
    click.option(
        "--ignore-same-id", is_flag=True, help="Skip a document with the id of the query (ArguAna)."
    ),
)
MEASURES = split_option(
    "--measures", default="nDCG@10,R@50,AP@50", help="Any measures of ir_measures."
)


def refuse_given(names: Collection[str], reason: str) -> None:
    """Refuse options that the user gave and that would have no effect: someone counts on them."""
    ctx = click.get_current_context()
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "")
        if option.name in names and given is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} {reason}")


def read_labelled(folder: str, options: dict[str, Any]) -> Dataset:
    """Read the labelled queries that the options describe."""
    from strop.evaluation.scoring import select_queries
    from strop.io.datasets import read_dataset

    data = read_dataset(folder, options["split"])
    return select_queries(data, options["exclude_queries"], options.get("limit_queries"))


# -- language models --------------------------------------------------------------------------

PROFILE = click.option(
    "--profile",
    type=click.Choice(["instruct", "small"]),
    help="small: a text to complete, for models that do not follow instructions."
    "  [instruct; small for smollm2]",
)
MODEL = together(
    click.option("--lm", help="openai:MODEL, anthropic:MODEL, llama:FILE.gguf or smollm2."),
    click.option("--base-url", help="Address of the server, for openai: and anthropic:."),
    named_values(
        "--lm-option", "lm_options", "Option of the model, such as timeout=60 or bedrock=true"
    ),
    click.option("--concurrency", type=COUNT, help="Calls at a time.  [16]"),
    click.option(
        "--price",
        metavar="IN,OUT[,CACHED]",
        help="USD per million tokens, for models without a known price.",
    ),
    click.option(
        "--budget", type=click.FloatRange(0), help="Stop before spending more than this (USD)."
    ),
)


def profile_of(options: dict[str, Any]) -> Profile:
    """Return the profile of ``--profile``, else the one that suits the model."""
    small = (
        options["lm"] == "smollm2" if options["profile"] is None else options["profile"] == "small"
    )
    return "small" if small else "instruct"


def load_model(options: dict[str, Any], profile: Profile) -> LM:
    """Load the model that the options name."""
    from strop.lm import load

    lm_options = dict(options["lm_options"])
    if profile == "small" and not options["lm"].startswith("anthropic:"):
        lm_options.setdefault("completion", True)
    for name in ("base_url", "concurrency"):
        if options[name] is not None:
            lm_options[name] = options[name]
    return load(options["lm"], **lm_options)


def given_price(options: dict[str, Any]) -> Price | None:
    """Return the price of ``--price``."""
    from strop.lm import Price

    return Price.parse(options["price"]) if options["price"] else None
