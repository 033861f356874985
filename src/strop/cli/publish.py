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
    source_option(
        ", from a table of this PostgreSQL database; the texts stay there and are not copied."
    ),
    flag("--sync", "First update INDEX from --source."),
)
def publish(path: Path, url: str, dry_run: bool, source: str | None, sync: bool) -> Answer:
    """Create or update a copy of INDEX in a database (URL).

    The copy is then searched without the index folder.

    \b
    postgresql://user@host/database?table=NAME   extra postgres; needs pgvector
    qdrant://host:6333/collection                extra qdrant (qdrant+https://)
    lancedb://folder                             extra lancedb (/// from the root)
    duckdb://file.duckdb                         extra duckdb (/// from the root)

    Only changes since the last time are written; an interrupted run continues. These verbs accept
    the URL instead of INDEX: search, eval, info, check, show, serve, mcp, trust. See
    docs/engines.md.
    """
    if sync and source is None:
        raise UsageError("--sync needs --source SELECT, an SQL query for PostgreSQL")
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
    output_option("The file to write: .parquet, .jsonl or .npy (ids in NAME.npy.ids.jsonl)."),
    option(
        "--form",
        "indexsharp: one sharpened vector per document. rows: the document's own vector and one"
        " per stored query. augmented: the vector of the text with the queries of one set"
        " appended (also stored in the index).",
        type=Choice(["indexsharp", "rows", "augmented"]),
        default="indexsharp",
    ),
    opt.SETS,
    option("--alpha", "Strength of sharpening, for --form indexsharp.", type=float, default=1.0),
)
def export(path: Path, output: Path, form: Any, sets: list[str], alpha: float) -> Answer:
    """Write vectors, ids and metadata to a file for any database.

    The form indexsharp can replace the vectors in an existing database, whose search queries need
    no change. docs/engines.md shows how much of the gain each form keeps.
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
@option("--host", "Address to listen on; any except loopback requires keys.", default="127.0.0.1")
@option("--port", "Port; 0 chooses a free one.", default=8765, type=click.IntRange(0, 65535))
@option("--workers", "Number of server processes.", default=1, type=click.IntRange(1, 64))
@repeatable(
    "--allow-host",
    "Host name under which clients reach the server, such as that of a proxy",
    "hosts",
    metavar="NAME",
)
@repeatable(
    "--allow-origin", "Origin of web pages that may call the server", "origins", metavar="URL"
)
def serve(
    collection: str,
    host: str,
    port: int,
    workers: int,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
) -> None:
    """Serve INDEX_OR_URL over HTTP: an API, a search page, and MCP at /mcp.

    Without keys, the server is reachable only from this machine and is read-only.
    STROP_API_KEYS=read:KEY,write:KEY sets keys; see docs/server.md.
    """
    server = _server("strop serve")
    settings = server.Settings(collection, host, port, hosts, origins)
    shown = f"[{host}]" if ":" in host else host

    def announce() -> None:
        if port:  # else the log shows which one was chosen
            say(f"http://{shown}:{port}/ (page), /docs (API), /mcp (agents). Stop with Ctrl-C.")

    server.serve(settings, workers, announce)


@click.command()
@argument("collection", metavar="INDEX_OR_URL")
def mcp(collection: str) -> None:
    """Serve INDEX_OR_URL to an agent: MCP on standard input and output.

    MCP is the Model Context Protocol. For MCP over HTTP, run `strop serve`, which answers at /mcp.
    """
    server = _server("strop mcp")
    if sys.stdin.isatty():
        say(
            "this command speaks MCP on standard input and output: start it from an agent's"
            " configuration"
        )
    server.serve_agent(collection)
