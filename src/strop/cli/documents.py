"""The verbs that add, update, remove and show documents, and select their references."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click import Choice, UsageError, argument

from strop.cli import options as opt
from strop.cli.messages import echo, progress_bars, say, warn
from strop.cli.verbs import (
    Answer,
    flag,
    named_values,
    option,
    output_option,
    source_option,
    verb,
)
from strop.common.text import counted, human_bytes, is_url
from strop.errors import BadInput, IndexBusy, StropError
from strop.io.files import nonblank_lines, shown_name

if TYPE_CHECKING:  # --help must be quick
    from strop.index import Index
    from strop.types import Changes


@verb(
    output_option("The index folder.", "path"),
    opt.EMBEDDER,
    option("--base-url", "Server of api: embedders, such as http://127.0.0.1:8080/v1."),
    option(
        "--queries",
        "sentences: sharpen with the documents' own sentences; none: do not sharpen yet.",
        type=Choice(["sentences", "none"]),
        default="sentences",
    ),
    option(
        "--query-vectors",
        "How a new index stores its query vectors.",
        type=opt.VECTOR_FORM,
        shown="int8",
    ),
    option("--language", "Language for stemming in a new index, such as german.", shown="detected"),
    option(
        "--chunk",
        "Split the documents of a new index into chunks of at most SIZE tokens, such as 200:40;"
        " none never splits.",
        metavar="SIZE:OVERLAP",
        shown="split if much longer than the embedder's input",
    ),
    source_option("; CORPUS is then the URL of its PostgreSQL database."),
    opt.WAIT,
    opt.CORPUS,
)
def build(
    corpus: str,
    path: Path,
    embedder: str | None,
    base_url: str | None,
    options: dict[str, Any],
    queries: str,
    query_vectors: str | None,
    language: str | None,
    chunk: str | None,
    **reading: Any,
) -> Answer:
    """Index CORPUS and sharpen it.

    CORPUS is a BEIR folder, a JSONL, CSV, TSV or Parquet file, a folder of files, or - for JSON
    lines on standard input. Files are .txt, .md, .rst and .ipynb, and with strop[files] .html, .pdf
    and .docx; ids are their paths in the folder.

    Run it again to continue after an interruption or to add new and changed documents. It never
    removes documents.

    \b
    Embedders: wordllama            static vectors, bundled, fast (the default)
               minilm               all-MiniLM-L6-v2, bundled (extra minilm)
               st:MODEL             any sentence-transformers model or folder
               api:MODEL            any OpenAI-compatible endpoint
               contriever, ...      presets: see docs/embedders.md
    """
    from strop.index import Index

    settings = options | ({"base_url": base_url} if base_url else {})
    exists, new_folder = (path / "catalog.sqlite").exists(), not path.exists()
    was_empty = new_folder or (path.is_dir() and not any(path.iterdir()))
    if exists:
        if query_vectors is not None:
            raise UsageError(
                f"{path} exists and keeps the form of its vectors; to change it: "
                f"strop compact {shlex.quote(str(path))} --query-vectors {query_vectors}"
            )
        if language is not None:
            raise UsageError(f"{path} exists and keeps its language for stemming")
        index = Index.open(path, embedder, wait=opt.waiting_time(), **settings)
        if chunk is not None and chunk != (has := index.info()["chunking"] or "none"):
            index.close()
            raise UsageError(
                f"{path} exists and keeps its chunks ({has}); for other chunks build another index"
            )
    else:
        form = query_vectors or "int8", language, None if chunk == "none" else chunk or "auto"
        index = Index.create(path, embedder or "wordllama", *form, **settings)
    with index:
        try:
            with progress_bars() as progress:
                if queries == "sentences" and not exists:
                    index.sharpen("sentences", progress=progress)
                changes = _add(index, corpus, reading, progress)
                # Adding also finishes an interrupted run, so the sets are known now.
                if queries == "sentences" and exists and "sentences" not in index.info()["sets"]:
                    index.sharpen("sentences", progress=progress)
        except IndexBusy:
            raise
        except StropError:
            if was_empty and not len(index):  # nothing was added: leave no empty index behind
                index.close()
                for entry in path.iterdir():  # a folder that was there may be a link, or shared
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    else:
                        entry.unlink()
                if new_folder:
                    path.rmdir()
            raise
    if exists:
        say(f"{path} existed: added new documents, updated changed ones, removed none")
    return _changed(path, asdict(changes))


def _changed(path: Path, changes: dict[str, Any]) -> Answer:
    """Return what an index contains after documents were added or embedded.

    The index is opened again for this: only once its writer has closed it, and SQLite has emptied
    its log, does the folder have the size that ``strop info`` reports.
    """
    from strop.cli.tables import set_aside, worth_compacting

    with opt.open_index(path) as index:
        about = index.info()
    if about["refused"]:
        warn(set_aside(path, about["refused"]))
    if empty := changes.get("empty"):
        warn(f"{counted(empty, 'document')} without text: stored, but no search can match them")
    sets = {
        name: set_["queries"]
        for name, set_ in about["sets"].items()
        if set_["source"] != "augmented"
    }
    kinds = ("new", "changed", "unchanged", "removed")
    parts = [f"{changes[key]:,} {key}" for key in kinds if changes.get(key)]
    queries = ", ".join(
        counted(count, "sentence") if name == "sentences" else f"{counted(count, 'query')} ({name})"
        for name, count in sets.items()
    )
    line = (
        counted(about["documents"], "document")
        + (f" ({', '.join(parts)})" if parts else "")
        + (f", sharpened by {queries}" if queries else "")
        + f", {human_bytes(about['sizes']['total'])} in {about['path']}"
    )

    def show() -> None:
        echo(line)
        if worth_compacting(about["sizes"]):
            waste = human_bytes(about["sizes"]["waste"])
            say(f"{waste} of it can be freed: strop compact {shlex.quote(about['path'])}")

    return Answer({**changes, "documents": about["documents"], "queries": sets}, show)


def _add(
    index: Index,
    corpus: str,
    reading: dict[str, Any],
    progress: Any,
    keep_queries: bool = False,
    sync: bool = False,
) -> Changes:
    """Add a corpus; from a folder of files, only those that changed since the last time."""
    from strop.io.corpora import is_folder_of_files

    if source := reading.pop("source", None):
        from strop.engines.postgres_source import read_source

        return index.add(read_source(corpus, source), progress)
    if is_url(corpus):
        raise BadInput(  # without the URL, which may hold a password
            "a corpus at a URL is read from PostgreSQL and needs --source 'SELECT id, text …'"
        )
    if is_folder_of_files(corpus, reading["format"]):
        which = {name: reading[name] for name in ("include", "exclude", "max_document_bytes")}
        return index.sync(
            corpus, remove=sync, keep_queries=keep_queries, progress=progress, **which
        )
    if sync:
        raise UsageError(f"--sync needs a folder of files; {corpus} is not one")
    return index.add(_documents(corpus, reading), progress, keep_queries=keep_queries)


def _documents(corpus: str, options: dict[str, Any]) -> Iterator[Any]:
    """Yield a corpus's documents with their places; an empty corpus is an error."""
    from strop.io.corpora import read_corpus_with_locations

    empty = True
    for sourced in read_corpus_with_locations(corpus, **options):
        empty = False
        yield sourced.document, sourced.where
    if empty:
        raise BadInput(f"{shown_name(corpus)} contains no documents")


@verb(
    opt.WRITTEN_INDEX,
    flag(
        "--keep-queries",
        "Keep using imported and generated queries of documents whose text changed.",
    ),
    flag("--sync", "Also remove documents whose files were deleted from the folder CORPUS."),
    opt.CORPUS,
)
def add(path: Path, corpus: str, keep_queries: bool, sync: bool, **reading: Any) -> Answer:
    """Add the documents of CORPUS to INDEX, and update changed ones.

    A document whose id is already in INDEX is updated if it differs. If CORPUS is a folder of
    files, only files that changed since the last time are read, and --sync also removes documents
    whose files were deleted. Documents from other sources stay.

    If a text changes, its imported and generated queries are not used until they are imported or
    generated again; `strop info` shows their number. --keep-queries keeps them in use.
    """
    with opt.open_index(path) as index, progress_bars() as progress:
        changes = _add(index, corpus, reading, progress, keep_queries, sync)
    return _changed(path, asdict(changes))


@verb(
    opt.WRITTEN_INDEX,
    argument("ids", nargs=-1),
    option("--file", "A file with one id per line; - for standard input."),
)
def remove(path: Path, ids: tuple[str, ...], file: str | None) -> Answer:
    """Remove documents by id; nothing is removed if an id is unknown."""
    unwanted = [*ids, *(line.strip() for _, line in (nonblank_lines(file) if file else ()))]
    if not unwanted:
        raise UsageError("name at least one id, or give --file")
    with opt.open_index(path) as index:
        index.remove(unwanted)
        left = len(index)
    removed = len(set(unwanted))
    message = f"removed {counted(removed, 'document')}; {left:,} left"
    return Answer({"removed": removed, "documents": left}, message)


@verb(
    opt.WRITTEN_INDEX,
    named_values(
        "--option",
        "Option of the embedder that does not change stored vectors, such as max_chars=8000",
        "options",
    ),
)
def finish(path: Path, options: dict[str, Any]) -> Answer:
    """Continue interrupted work on INDEX.

    Texts without a vector are embedded. Documents that the embedder refused are tried again.
    """
    with opt.open_index(path, **options) as index, progress_bars() as progress:
        index.finish(progress)
    return _changed(path, {})


@verb(opt.INDEX_OR_URL, argument("id_", metavar="ID"))
def show(path: Path | str, id_: str) -> Answer:
    """Show a document, its stored queries and its references."""
    from strop.cli.tables import print_document
    from strop.index import Index

    with opt.open_readable(path) as index:
        document, queries, chunks = index.get(id_), index.queries_of(id_), index.chunks(id_)
        references = None
        if isinstance(index, Index) and len(chunks) < 2:
            references = index.references_of(id_)
    chosen = asdict(references) if references else None
    value = {**asdict(document), "queries": queries, "references": chosen}
    if chunks:
        value["chunks"] = [chunk.to_dict() for chunk in chunks]
    return Answer(value, partial(print_document, document, queries, references, chunks))


@verb(
    opt.WRITTEN_INDEX,
    option("--neighbors", "Number of nearest neighbours to cluster.", default=100),
    option("--k", "Range of cluster counts to try.", "sizes", default="3:10"),
    option("--seed", "Seed of KMeans.", default=0),
    opt.NEIGHBOUR_METHOD,
)
def references(path: Path, neighbors: int, sizes: str, seed: int, method: str | None) -> Answer:
    """Select the references of each document, for contrastive queries.

    References are similar documents that the queries of a document must distinguish it from. Run it
    again after documents were added, changed or removed: only affected references are selected
    again.
    """
    from strop.references.settings import ReferenceSettings

    smallest, colon, largest = sizes.partition(":")
    if not (colon and smallest.isdigit() and largest.isdigit()):
        raise UsageError(f"--k takes a range such as 3:10, not {sizes!r}")
    settings = ReferenceSettings(neighbors, int(smallest), int(largest), seed=seed)
    with opt.open_index(path) as index:
        with progress_bars() as progress:
            chosen = index.select_references(settings, method=method or "auto", progress=progress)
        stored = index.info()["references"] or {"documents": 0, "out_of_date": 0}
    message = f"references of {counted(stored['documents'], 'document')} ({chosen:,} selected now)"
    return Answer({"chosen": chosen, **stored}, message)
