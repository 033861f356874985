"""The verbs that maintain an index: what it contains, whether it is damaged, how large it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from click import UsageError
from click.exceptions import Exit

from strop.cli import options as opt
from strop.cli.messages import progress_bars
from strop.cli.verbs import Answer, flag, option, verb
from strop.common.text import counted, human_bytes


@verb(opt.INDEX_OR_URL)
def info(path: Path | str) -> Answer:
    """Show the contents and size of an index, and unfinished work.

    INDEX_OR_URL is an index folder, or the URL of a published copy.
    """
    from strop.cli.tables import print_info

    with opt.open_readable(path) as index:
        about = index.info()
    return Answer(about, partial(print_info, about))


@verb(
    opt.INDEX_OR_URL,
    opt.WAIT,
    flag(
        "--repair",
        "Recompute damaged vectors, word counts and filter values from the texts and metadata.",
    ),
    flag("--recall", "Also compare approximate searches with exact ones."),
    option("--sample", "Number of queries that --recall uses.", type=opt.COUNT, default=100),
)
def check(path: Path | str, repair: bool, recall: bool, sample: int) -> Answer:
    """Read every file of an index and report damage (exit code 1).

    Vectors are compared with their checksums; SQLite checks the catalog. For a published copy
    (given by its URL), every record is read; publish again to repair it.
    """
    if isinstance(path, str):
        return _check_copy(path, repair or recall)
    from strop.cli.tables import waiting_for_vectors
    from strop.search.sampling import measure_recall

    with opt.open_index(path) as index, progress_bars() as progress:
        problems = index.check(repair, progress)
        measured = None
        if recall and (repair or not problems):
            measured = measure_recall(index.searcher, sample)
        about = index.info()
    result = {
        "problems": problems,
        "repaired": bool(problems) and repair,
        "waiting": waiting_for_vectors(about),
        "refused": about["refused"],
        **({"recall": measured} if measured else {}),
    }
    damaged = Exit(1) if problems and not repair else None
    return Answer(result, "\n".join(_checked(path, result, about["unfinished"])), damaged)


def _check_copy(url: str, more: bool) -> Answer:
    """Check a published copy."""
    if more:
        raise UsageError("--repair and --recall need the folder of an index")
    from strop.engines import open_copy

    with open_copy(url) as copy:
        problems = copy.check()
    message = "\n".join(problems) or "No damage found"
    return Answer({"problems": problems}, message, Exit(1) if problems else None)


def _checked(path: Path, result: dict[str, Any], unfinished: str) -> Iterator[str]:
    """Yield the lines that report what a check found."""
    from strop.cli.tables import set_aside

    yield from result["problems"]
    if not result["problems"]:
        yield "No damage found"
    elif result["repaired"]:
        yield "Repaired"
    else:
        yield f"Damaged; to repair it: strop check {shlex.quote(str(path))} --repair"
    if result["waiting"]:
        yield unfinished
    if result["refused"]:
        yield set_aside(path, result["refused"])
    if measured := result.get("recall"):
        if not measured["two_stage"]:
            yield "Searches of this index score every document, so they are exact"
            return
        yield (
            f"overlap@{measured['k']} with the exact ranking: {measured['overlap']:.4f} "
            f"(mean of {counted(measured['queries'], 'query')}: {measured['stored']:.4f} for stored"
            f" queries, {measured['unlike']:.4f} for queries unlike any stored one; the worst query"
            f" {measured['worst']:.2f})"
        )


@verb(
    opt.WRITTEN_INDEX,
    option(
        "--query-vectors",
        "Store query vectors in this form from now on, including those already stored.",
        type=opt.VECTOR_FORM,
        shown="unchanged",
    ),
)
def compact(path: Path, query_vectors: str | None) -> Answer:
    """Free space left by removals and updates.

    `strop info` shows how much that is. Searches continue meanwhile. Disk space for a second copy
    of the remaining data is needed. Precision lost by converting to int8 (--query-vectors) cannot
    be restored.
    """
    with opt.open_index(path) as index:
        with progress_bars() as progress:
            freed = index.compact(progress, query_vectors)
        sizes = index.info()["sizes"]
    change = "freed" if freed >= 0 else "more than before"
    message = f"{human_bytes(abs(freed))} {change}, {human_bytes(sizes['total'])} in total"
    return Answer({"freed_bytes": freed, "sizes": sizes}, message)


@verb(
    opt.WRITTEN_INDEX,
    option("--drop", "Drop this set with its queries and vectors.", metavar="NAME"),
    option("--rename", "Rename a set.", nargs=2, metavar="OLD NEW"),
)
def sets(path: Path, drop: str | None, rename: tuple[str, str] | None) -> Answer:
    """List the query sets of INDEX, or drop or rename one.

    Replies of language models are kept: generating a dropped set again costs nothing.
    """
    with opt.open_index(path) as index:
        if drop is not None:
            index.drop_set(drop)
        if rename is not None:
            index.rename_set(*rename)
        rows = [asdict(set_) for set_ in index.sets]
    if not rows:
        return Answer({"sets": []}, f"No query sets: strop queries {shlex.quote(str(path))}")
    from strop.cli.tables import print_sets

    return Answer({"sets": rows}, partial(print_sets, rows))


@verb(opt.INDEX_OR_URL)
def trust(path: Path | str) -> Answer:
    """Allow an index to load the embedder that it names.

    The index may then run code, call addresses and read folders that its author chose. Use this
    only if you trust the author. The decision is stored in your configuration folder.
    """
    with opt.open_readable(path) as index:
        covered = index.trust()
    message = (
        f"Trusted: {', '.join(covered)}" if covered else "Nothing in this index needs your trust"
    )
    return Answer({"trusted": covered}, message)
