"""The verbs that look after an index: what it holds, whether it is damaged, how large it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from strop.cli.common import AS_JSON, open_index, set_aside, waiting_for_vectors
from strop.cli.messages import echo, print_json
from strop.cli.progress import progress_bars
from strop.common.text import counted, human_bytes


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@AS_JSON
def info(path: Path, as_json: bool) -> None:
    """Show what INDEX holds, its size, and what still waits to be embedded."""
    with open_index(path) as index:
        about = index.info()
    if as_json:
        print_json(about)
        return
    from strop.cli.tables import print_info

    print_info(about)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--repair", is_flag=True, help="Compute damaged vectors again from the catalog.")
@click.option("--recall", is_flag=True, help="Also compare fast searches with exact ones.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Number of stored queries that --recall uses.",
)
@AS_JSON
def check(path: Path, repair: bool, recall: bool, sample: int, as_json: bool) -> None:
    """Read every file of INDEX and report damage; exit code 1 if there is any.

    Vectors are compared with their checksums; SQLite examines the catalog.
    """
    with open_index(path) as index, progress_bars() as progress:
        problems = index.check(repair, progress)
        measured = index.recall(sample) if recall and (repair or not problems) else None
        about = index.info()
    waiting, refused = waiting_for_vectors(about), about["refused"]
    repaired = bool(problems) and repair
    if as_json:
        result = {"problems": problems, "repaired": repaired, "waiting": waiting}
        result["refused"] = refused
        print_json(result | ({"recall": measured} if measured else {}))
    else:
        for problem in problems:
            echo(problem)
        if not problems:
            echo("No damage found")
        elif repaired:
            echo("Repaired")
        else:
            echo(f"Damaged; to repair it: strop check {shlex.quote(str(path))} --repair")
        if waiting:
            echo(about["unfinished"])
        if refused:
            echo(set_aside(path, refused))
        if measured:
            scored = "candidates" if measured["two_stage"] else "every document, so it is exact"
            echo(
                f"overlap@{measured['k']} with the exact ranking: {measured['overlap']:.4f} "
                f"({counted(measured['queries'], 'stored query')}; searches score {scored})"
            )
    if problems and not repair:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option(
    "--query-vectors",
    type=click.Choice(["int8", "float32"]),
    help="Store vectors in this form from now on, also those already stored.  [unchanged]",
)
@AS_JSON
def compact(path: Path, query_vectors: str | None, as_json: bool) -> None:
    """Free space left by removals and updates; searches continue meanwhile.

    `strop info` shows how much that is. It needs room for a second copy of what is kept. Precision
    that --query-vectors takes away does not come back.
    """
    with open_index(path) as index:
        with progress_bars() as progress:
            freed = index.compact(progress, query_vectors)
        sizes = index.info()["sizes"]
    if as_json:
        print_json({"freed_bytes": freed, "sizes": sizes})
    else:
        change = "freed" if freed >= 0 else "more than before"
        echo(f"{human_bytes(abs(freed))} {change}, {human_bytes(sizes['total'])} in all")


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@AS_JSON
def trust(path: Path, as_json: bool) -> None:
    """Use the embedder that INDEX names, also code, folders and addresses of its maker.

    Only for an index whose maker you trust. This is remembered in your own configuration folder.
    """
    with open_index(path) as index:
        covered = index.trust()
    if as_json:
        print_json({"trusted": covered})
    else:
        echo(f"Trusted: {', '.join(covered)}" if covered else "Nothing in it needs your trust")
