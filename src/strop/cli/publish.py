"""The verbs that bring an index elsewhere: to a database, a file, HTTP clients, agents."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click import Choice, UsageError, argument

from strop.cli import options as opt
from strop.cli.messages import progress_bars, say
from strop.cli.verbs import Answer, flag, option, output_option, repeatable, source_option, verb
from strop.common.text import counted
from strop.errors import MissingExtra


@verb(
    opt.WRITTEN_INDEX,
    argument("url"),
    flag("--dry-run", "Show what would be written, and write nothing."),
    source_option(", from a table of this PostgreSQL: the texts stay there and are not copied."),
    flag("--sync", "First bring INDEX up to date with --source."),
)
def publish(path: Path, url: str, dry_run: bool, source: str | None, sync: bool) -> Answer:
    """Bring the copy of INDEX at URL up to date, so that searches need no folder.

    \b
    postgresql://user@host/database?table=NAME   extra postgres; needs pgvector
    qdrant://host:6333/collection                extra qdrant (qdrant+https://)
    lancedb://folder                             extra lancedb (/// from the root)
    duckdb://file.duckdb                         extra duckdb (/// from the root)

    Only what changed since the last time is written; a stopped run continues. Other verbs take the
    URL in place of INDEX: search, eval, info, check, show, serve, mcp, trust. See docs/engines.md.
    """
    if sync and source is None:
        raise UsageError("--sync needs --source SELECT, a query of PostgreSQL")
    if sync and dry_run:
        raise UsageError("--sync changes INDEX: leave out --dry-run")
    with opt.open_index(path) as index, progress_bars() as progress:
        if sync and source is not None:
            from strop.engines.postgres_source import sync_source

            sync_source(index, url, source, progress)
        done = index.publish(url, source=source, dry_run=dry_run, progress=progress)
    message = (
        f"{'Would be published' if dry_run else 'Published'} to {done.url}: {done.new:,} new,"
        f" {done.changed:,} changed, {done.removed:,} removed;"
        f" {counted(done.documents, 'document')}, version {done.version:,}"
    )
    return Answer({**done.to_json(), "dry_run": dry_run}, message)


@verb(
    opt.INDEX,
    output_option("The file: .parquet, .jsonl or .npy (ids in NAME.npy.ids.jsonl)."),
    option(
        "--form",
        "indexsharp: one sharpened vector per document. rows: its own and one per query."
        " augmented: of the text with the queries of one set appended (kept in the index).",
        type=Choice(["indexsharp", "rows", "augmented"]),
        default="indexsharp",
    ),
    opt.SETS,
    option("--alpha", "Strength of sharpening, of indexsharp.", type=float, default=1.0),
)
def export(path: Path, output: Path, form: Any, sets: list[str], alpha: float) -> Answer:
    """Write the vectors of INDEX, with ids and metadata, to a file for any database.

    The form indexsharp replaces the vectors that a database has now, without any change of its
    queries. docs/engines.md says what each form keeps of the gain.
    """
    from strop.engines.export import export as write
    from strop.engines.export import ids_beside

    with opt.open_index(path) as index, progress_bars() as progress:
        if form == "augmented" and len(sets) == 1:
            index.augment(sets[0], progress)
        count = write(index.searcher, output, form, sets=sets, alpha=alpha)
    message, ids = f"{counted(count, 'vector')} in {output}", {}
    if output.suffix == ".npy":
        ids = {"ids": str(ids_beside(output))}
        message += f", ids and metadata in {ids['ids']}"
    return Answer({"output": str(output), **ids, "form": form, "vectors": count}, message)


def _server(verb: str) -> ModuleType:
    """Return the server, which is an extra."""
    try:
        from strop.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "strop":
            raise
        raise MissingExtra(verb, "serve") from error
    return run


@click.command()
@argument("collection", metavar="INDEX_OR_URL")
@option("--host", "Address to listen on; all but loopback need keys.", default="127.0.0.1")
@option("--port", "Port; 0 takes a free one.", default=8765, type=click.IntRange(0, 65535))
@option("--workers", "Processes that serve.", default=1, type=click.IntRange(1, 64))
@repeatable(
    "--allow-host",
    "A name by which others reach the server, such as a proxy's",
    "hosts",
    metavar="NAME",
)
@repeatable(
    "--allow-origin", "A web page that may call the server from a browser", "origins", metavar="URL"
)
def serve(
    collection: str,
    host: str,
    port: int,
    workers: int,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
) -> None:
    """Serve INDEX_OR_URL over HTTP: an API, a page to search with, MCP at /mcp.

    Without keys it is for this machine only, and for reading. STROP_API_KEYS=read:KEY,write:KEY
    sets keys; see docs/server.md.
    """
    server = _server("strop serve")
    settings = server.Settings(collection, host, port, hosts, origins)
    shown = f"[{host}]" if ":" in host else host

    def announce() -> None:
        if port:  # else the log says which one it took
            say(f"http://{shown}:{port}/ (page), /docs (API), /mcp (agents). Stop with Ctrl-C.")

    server.serve(settings, workers, announce)


@click.command()
@argument("collection", metavar="INDEX_OR_URL")
def mcp(collection: str) -> None:
    """Serve INDEX_OR_URL to an agent over standard input and output (Model Context Protocol).

    For MCP over HTTP run `strop serve`: it answers at /mcp.
    """
    server = _server("strop mcp")
    if sys.stdin.isatty():
        say("speaks MCP on standard input and output: start it from an agent's configuration")
    server.serve_agent(collection)
