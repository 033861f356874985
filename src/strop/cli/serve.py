"""The verbs that serve an index: to programs and people over HTTP, to agents by MCP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from strop.cli.messages import say
from strop.cli.verbs import option, repeatable
from strop.errors import MissingExtra

_HOST = "127.0.0.1"


@contextmanager
def _with_extra(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "strop":
            raise
        raise MissingExtra(what, "serve") from error


@click.command()
@click.argument("collection", metavar="INDEX_OR_URL")
@option("--host", "Address to listen on; all but loopback need keys.", default=_HOST)
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
    with _with_extra("strop serve"):
        from strop.server.run import serve as run
        from strop.server.settings import Settings
    settings = Settings(collection, host, port, hosts, origins)
    shown = f"[{host}]" if ":" in host else host

    def announce() -> None:
        if port:  # else the log says which one it took
            say(f"http://{shown}:{port}/ (page), /docs (API), /mcp (agents). Stop with Ctrl-C.")

    run(settings, workers, announce)


@click.command()
@click.argument("collection", metavar="INDEX_OR_URL")
def mcp(collection: str) -> None:
    """Serve INDEX_OR_URL to an agent over standard input and output (Model Context Protocol).

    For MCP over HTTP run `strop serve`: it answers at /mcp.
    """
    with _with_extra("strop mcp"):
        from strop.server.run import serve_agent
    if sys.stdin.isatty():
        say("speaks MCP on standard input and output: start it from an agent's configuration")
    serve_agent(collection)
