"""The verbs that bring a copy of an index to a database, or its vectors to a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from click import Choice, UsageError, argument

from strop.cli.common import open_index
from strop.cli.options import INDEX, SETS, WRITTEN_INDEX
from strop.cli.progress import progress_bars
from strop.cli.verbs import Answer, flag, option, output_option, source_option, verb
from strop.common.text import counted


@verb(
    WRITTEN_INDEX,
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
    with open_index(path) as index, progress_bars() as progress:
        if sync and source is not None:
            from strop.engines.postgres_source import sync_source

            sync_source(index, url, source, progress)
        done = index.publish(url, source=source, dry_run=dry_run, progress=progress)
    message = (
        f"{'Would be published' if dry_run else 'Published'} to {done.url}: {done.new:,} new,"
        f" {done.changed:,} changed, {done.removed:,} removed;"
        f" {counted(done.documents, 'document')}, version {done.version:,}"
    )
    return Answer({**asdict(done), "dry_run": dry_run}, message)


@verb(
    INDEX,
    output_option("The file: .parquet, .npy or .jsonl."),
    option(
        "--form",
        "indexsharp: one sharpened vector per document. rows: its own and one per query."
        " augmented: of the text with the queries of one set appended.",
        type=Choice(["indexsharp", "rows", "augmented"]),
        default="indexsharp",
    ),
    SETS,
    option("--alpha", "Strength of sharpening, of indexsharp.", type=float, default=1.0),
)
def export(path: Path, output: Path, form: Any, sets: list[str], alpha: float) -> Answer:
    """Write the vectors of INDEX, with ids and metadata, to a file for any database.

    The form indexsharp replaces the vectors that a database has now, without any change of its
    queries. docs/engines.md says what each form keeps of the gain.
    """
    from strop.engines.export import export as write

    with open_index(path) as index, progress_bars() as progress:
        if form == "augmented" and len(sets) == 1:
            index.augment(sets[0], progress)
        count = write(index.searcher, output, form, sets=sets, alpha=alpha)
    message = f"{counted(count, 'vector')} in {output}"
    return Answer({"output": str(output), "form": form, "vectors": count}, message)
