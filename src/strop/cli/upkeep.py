"""The verbs that look after an index: what it holds, whether it is damaged, how large it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from strop.cli.common import AS_JSON, open_index, waiting_for_vectors
from strop.cli.messages import echo, print_json
from strop.cli.progress import progress_bars
from strop.common.text import human_bytes


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@AS_JSON
def info(path: Path, as_json: bool) -> None:
    """Say what INDEX holds, how large it is and what still waits to be embedded."""
    with open_index(path) as index:
        about = index.info()
    if as_json:
        print_json(about)
        return
    from strop.cli import tables

    tables.print_info(about)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--repair", is_flag=True, help="Make damaged vectors anew from the catalog.")
@click.option("--recall", is_flag=True, help="Also compare searches with exact ones.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How many stored queries --recall asks.",
)
@AS_JSON
def check(path: Path, repair: bool, recall: bool, sample: int, as_json: bool) -> None:
    """Read every file of INDEX and say what is damaged; ends with 1 if anything is.

    Vectors are compared with their checksums, the catalog is examined by SQLite.
    """
    with open_index(path) as index, progress_bars() as progress:
        problems = index.check(repair, progress)
        found = index.recall(sample) if recall and (repair or not problems) else None
        waiting = waiting_for_vectors(index.info())
    mended = bool(problems) and repair
    if as_json:
        told = {"problems": problems, "repaired": mended, "waiting": waiting}
        print_json(told | ({"recall": found} if found else {}))
    else:
        for problem in problems:
            echo(problem)
        mend = f"damaged; to mend it: strop check {shlex.quote(str(path))} --repair"
        echo("repaired" if mended else mend if problems else "whole")
        if waiting:
            echo(f"not finished: {waiting:,} to embed: strop finish {shlex.quote(str(path))}")
        if found:
            how = "candidates" if found["two_stage"] else "every document (so it is exact)"
            echo(
                f"overlap@{found['k']} with the exact ranking: {found['overlap']:.4f} "
                f"({found['queries']:,} stored queries; searches score {how})"
            )
    if problems and not repair:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option(
    "--query-vectors",
    type=click.Choice(["int8", "float32"]),
    help="Store vectors so from now on, those that are there included.  [as they are]",
)
@AS_JSON
def compact(path: Path, query_vectors: str | None, as_json: bool) -> None:
    """Give back the space of what was removed or replaced; searches go on meanwhile.

    `strop info` says how much that is. It needs room for a second copy of what stays. Vectors
    stored in fewer bytes by --query-vectors do not get back the digits they lose.
    """
    with open_index(path) as index:
        with progress_bars() as progress:
            freed = index.compact(progress, query_vectors)
        sizes = index.info()["sizes"]
    if as_json:
        print_json({"freed_bytes": freed, "sizes": sizes})
    else:
        change = "given back" if freed >= 0 else "more than before"
        echo(f"{human_bytes(abs(freed))} {change}, {human_bytes(sizes['total'])} in all")
