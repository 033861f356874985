"""The ``strop`` command: its verbs, and how errors and warnings reach the user."""

from __future__ import annotations

import errno
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from strop import __version__
from strop.cli import (
    cluster,
    demo,
    documents,
    evaluate,
    generate,
    publish,
    research,
    search,
    upkeep,
)
from strop.cli.messages import say, warn
from strop.cli.verbs import Verbs
from strop.common.text import escape_controls
from strop.errors import StropError

_VERBS = {
    "Build an index": (
        documents.build, documents.add, documents.remove, documents.finish, generate.queries,
        documents.references,
    ),
    "Search it": (search.search, documents.show, publish.publish, publish.export),
    "Serve it": (publish.serve, publish.mcp),
    "Measure and tune": (evaluate.eval_, evaluate.tune),
    "Large corpora": (cluster.cluster,),
    "Maintain it": (upkeep.info, upkeep.sets, upkeep.check, upkeep.compact, upkeep.trust),
    "Research": (research.reproduce, research.analyse, research.report, generate.triplets),
    "Try it": (demo.demo,),
}  # fmt: skip
"""Every verb, under the heading where ``strop --help`` lists it."""


class _Group(Verbs):
    """Exits with 1 and one line for an error that the user can fix; usage errors exit with 2."""

    headings = _VERBS

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **more: Any) -> Any:
        arguments = list(args)  # parsing empties the list
        with _safe_usage_errors():
            ctx = super().make_context(info_name, args, *rest, **more)
        ctx.meta["strop.args"] = arguments
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = lambda message, *_, **__: warn(str(message))
        logging.basicConfig(level=logging.WARNING, handlers=[_Warnings()])
        if isinstance(sys.stdout, io.TextIOWrapper):  # show what the terminal lacks as \uXXXX
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with _safe_usage_errors():
                return super().invoke(ctx)
        except StropError as error:
            say(str(error), "error:", "red")
            ctx.exit(1)
        except OSError as error:
            if error.filename is None or error.errno == errno.EPIPE:
                raise  # not about a file; click ends the command quietly when a pipe is closed
            say(f"{error.filename}: {error.strerror}", "error:", "red")
            ctx.exit(1)
        except KeyboardInterrupt:
            say("stopped. Everything committed is safe: run the command again to continue.")
            ctx.exit(130)


class _Warnings(logging.Handler):
    """Prints the library's logged warnings like every other warning."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


@contextmanager
def _safe_usage_errors() -> Iterator[None]:
    """Escape control characters of arguments in the messages of click."""
    try:
        yield
    except click.ClickException as error:
        error.message = escape_controls(error.message)  # type: ignore[misc]
        raise


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, "-V", "--version", prog_name="strop")
def main() -> None:
    """Sharpen dense retrieval without training.

    \b
    strop build corpus.jsonl -o my.index   embed and sharpen a corpus
    strop search my.index "a question"     rank its documents
    strop eval my.index DATASET            compare methods on labelled queries
    strop demo                             try it on the Python documentation
    """


for _verb in (verb for verbs in _VERBS.values() for verb in verbs):
    main.add_command(_verb)
