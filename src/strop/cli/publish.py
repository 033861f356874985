"""The verb that brings a copy of an index to a database."""

from __future__ import annotations

from pathlib import Path

import click

from strop.cli.common import open_index
from strop.cli.options import INDEX, Answer, verb
from strop.cli.progress import progress_bars
from strop.common.text import counted


@verb(
    INDEX,
    click.argument("url"),
    click.option("--dry-run", is_flag=True, help="Only say what would be written."),
)
def publish(path: Path, url: str, dry_run: bool) -> Answer:
    """Bring the copy of INDEX at URL up to date, so that searches need no folder.

    \b
    postgresql://user@host/database?table=NAME   PostgreSQL with pgvector
    qdrant://host:6333/collection                Qdrant (qdrant+https:// with TLS)
    lancedb:///folder                            LanceDB
    duckdb:///file.duckdb                        DuckDB

    Only what changed since the last time is written; a stopped run continues. Other verbs take the
    URL in place of INDEX: search, eval, info, check, show. See docs/engines.md.
    """
    with open_index(path) as index, progress_bars() as progress:
        done = index.publish(url, dry_run=dry_run, progress=progress)
    would = "would be " if dry_run else ""
    message = (
        f"{done.new:,} new, {done.changed:,} changed, {done.removed:,} removed {would}published to"
        f" {done.url}: {counted(done.documents, 'document')}, version {done.version:,}"
    )
    return Answer({**done.to_json(), "dry_run": dry_run}, message)
