"""What the verbs share: options, opening an index, reading a corpus, reporting changes."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strop.cli.messages import echo, print_json, say, warn
from strop.common.text import counted, human_bytes
from strop.errors import BadInput
from strop.io.files import shown_name

if TYPE_CHECKING:  # the verbs load it themselves, so that --help is quick
    from strop.index import Index

_OWN = frozenset(
    ("cache", "cls", "embedder", "spec", "lm", "settings", "into", "limit", "price", "retry",
     "replace", "clock")
)  # fmt: skip
"""Names of arguments of the library, which are not options of an embedder or a model."""

F = TypeVar("F", bound=Callable[..., Any])

_WASTE_SHARE, _WASTE_BYTES = 0.2, 1_000_000
"""Waste is reported when it is above this share of an index and above this many bytes."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def _delimiter(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A tab is hard to type: ``tab`` and ``\\t`` mean it."""
    return "\t" if value in ("tab", "\\t") else value


def corpus_options(command: F) -> F:
    """Add the options that say how to read a corpus."""
    for option in reversed(
        [
            click.option(
                "--format",
                type=click.Choice(["beir", "jsonl", "csv", "tsv", "parquet", "text"]),
                help="Corpus format, if not clear from the extension.",
            ),
            click.option("--id-field", help="Name of the id field.  [_id, id]"),
            click.option("--text-field", help="Name of the text field.  [text]"),
            click.option("--title-field", help="Name of the title field.  [title]"),
            click.option(
                "--delimiter",
                callback=_delimiter,
                metavar="CHARACTER",
                help="Column separator of a CSV file, such as ';' or tab.  [guessed from the"
                " header]",
            ),
            click.option(
                "--max-document-bytes",
                type=click.IntRange(1),
                default=64_000_000,
                show_default=True,
                help="Refuse longer lines and documents.",
            ),
        ]
    ):
        command = option(command)
    return command


def scoring_options(command: F) -> F:
    """Add the options that every method takes."""
    for option in reversed(
        [
            click.option("--alpha", type=float, help="Strength of sharpening.  [1]"),
            click.option(
                "--temperature",
                type=float,
                help="Softmax temperature over a document's queries: 0 takes the most similar"
                " query, inf their mean.  [sharp 0.1, simsharp and consharp 1]",
            ),
            click.option("--sets", help="Query sets to use, such as simple+contrastive.  [all]"),
            click.option("--n", type=int, help="Use the first N queries per document and set."),
        ]
    ):
        command = option(command)
    return command


def open_index(path: Path, **options: Any) -> Index:
    """Open an index; ``options`` are its embedder's."""
    from strop.index import Index

    return Index.open(path, **options)


def documents_of(corpus: str, options: dict[str, Any]) -> Iterator[Any]:
    """Yield a corpus's documents with their places; an empty corpus is an error."""
    from strop.io.corpora import read_corpus_with_places

    empty = True
    for sourced in read_corpus_with_places(corpus, **options):
        empty = False
        yield sourced.document, sourced.where
    if empty:
        raise BadInput(f"{shown_name(corpus)} contains no documents")


def delete_index(folder: Path, folder_too: bool) -> None:
    """Delete the files of an index, and the folder itself if it is ours."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if folder_too:
        folder.rmdir()


def report_changes(path: Path, changes: dict[str, Any], as_json: bool) -> None:
    """Report what an index holds after documents were added or embedded.

    The index is opened again for this: only once its writer has closed it, and SQLite has emptied
    its log, does the folder have the size that ``strop info`` reports.
    """
    with open_index(path) as index:
        about = index.info()
    if about["refused"]:
        warn(set_aside(path, about["refused"]))
    if empty := changes.get("empty"):
        warn(f"{counted(empty, 'document')} without text: stored, but no search can match them")
    sets = {name: of["queries"] for name, of in about["sets"].items() if of["source"] != "expanded"}
    if as_json:
        print_json({**changes, "documents": about["documents"], "queries": sets})
        return
    kinds = [
        f"{changes[key]:,} {key}" for key in ("new", "changed", "unchanged") if changes.get(key)
    ]
    queries = ", ".join(f"{count:,} {name}" for name, count in sets.items())
    echo(
        counted(about["documents"], "document")
        + (f" ({', '.join(kinds)})" if kinds else "")
        + (f", sharpened by {queries}" if queries else "")
        + f", {human_bytes(about['sizes']['total'])} in {about['path']}"
    )
    if worth_compacting(about["sizes"]):
        waste = human_bytes(about["sizes"]["waste"])
        say(f"{waste} of it can be freed: strop compact {shlex.quote(about['path'])}")


def waiting_for_vectors(about: dict[str, Any]) -> int:
    """Return how many documents and query lists ``strop finish`` would embed."""
    # Text of doc2query and docexp is embedded when a method needs it, not by finish.
    sets = [of for of in about["sets"].values() if of["source"] != "expanded"]
    return int(about["waiting"] + sum(of["waiting"] for of in sets))


def set_aside(path: Path | str, refused: list[dict[str, str]]) -> str:
    """Return the message for documents that the embedder refuses."""
    first = refused[0]
    return (
        f"the embedder refuses {counted(len(refused), 'text')}, which searches do not use."
        f" First: {first['id']}{' in ' + first['set'] if first['set'] else ''}: {first['reason']}."
        f" To try again: strop finish {shlex.quote(str(path))}, or give the document another text"
    )


def worth_compacting(sizes: dict[str, Any]) -> bool:
    """Tell whether enough space is wasted to be worth a message."""
    return bool(sizes["waste"] > max(_WASTE_BYTES, _WASTE_SHARE * sizes["total"]))


def named_options(pairs: Sequence[str], flag: str = "--option") -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value that is valid JSON is read as JSON."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"{flag} takes NAME=VALUE, not {pair!r}")
        if name in _OWN:
            raise click.UsageError(f"{flag} {name}: there is no such option")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def split_list(text: str | None) -> list[str]:
    """Return the parts of a list given as one argument, separated by commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def split_sets(text: str | None) -> list[str]:
    """Return names of query sets given as one argument, such as ``simple+contrastive``."""
    return split_list((text or "").replace("+", ","))
