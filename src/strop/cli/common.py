"""What the verbs of the command line share: options, opening, reading, reporting."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strop.cli.messages import echo, print_json, say, warn
from strop.common.text import human_bytes
from strop.errors import BadInput
from strop.io.files import shown_name

if TYPE_CHECKING:  # loaded by the verbs that need it, so that --help is quick
    from strop.index import Index

_OWN = frozenset(
    ("cache", "cls", "embedder", "spec", "lm", "settings", "into", "limit", "price", "retry",
     "verify", "clock")
)  # fmt: skip
"""Arguments of their own in the library, not options of an embedder or a model."""

F = TypeVar("F", bound=Callable[..., Any])

_WASTE_SHARE, _WASTE_BYTES = 0.2, 1_000_000
"""Waste is reported when it is above this share of an index and above this many bytes."""

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def corpus_options(command: F) -> F:
    """Add the options that say how to read a corpus."""
    for option in reversed(
        [
            click.option(
                "--format",
                type=click.Choice(["beir", "jsonl", "csv", "tsv", "parquet", "text"]),
                help="What CORPUS is, where its name does not say.",
            ),
            click.option("--id-field", help="The field with the document's id.  [_id, id]"),
            click.option("--text-field", help="The field with its text.  [text]"),
            click.option("--title-field", help="The field with its title.  [title]"),
        ]
    ):
        command = option(command)
    return command


def scoring_options(command: F) -> F:
    """Add the options that every way of scoring takes."""
    for option in reversed(
        [
            click.option("--alpha", type=float, help="Strength of sharpening.  [1]"),
            click.option(
                "--temperature",
                type=float,
                help="Of the softmax over a document's queries: 0 takes the most similar, inf the"
                " mean.  [sharp 0.1, simsharp and consharp 1]",
            ),
            click.option("--sets", help="Query sets to use, such as simple+contrastive.  [all]"),
            click.option("--n", type=int, help="Use the first N queries of each list.  [all]"),
        ]
    ):
        command = option(command)
    return command


def open_index(path: Path) -> Index:
    """Open an index."""
    from strop.index import Index

    return Index.open(path)


def documents_of(corpus: str, fields: dict[str, str | None]) -> Iterator[Any]:
    """Yield a corpus's documents with their places; an empty corpus is an error."""
    from strop.io.corpora import read_corpus_with_places

    empty = True
    for sourced in read_corpus_with_places(corpus, **fields):
        empty = False
        yield sourced.document, sourced.where
    if empty:
        raise BadInput(f"{shown_name(corpus)} holds no documents")


def clear_away(folder: Path, folder_too: bool) -> None:
    """Delete an index that came to nothing, and the folder if it was not there before."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if folder_too:
        folder.rmdir()


def report_changes(index: Index, changes: dict[str, Any], as_json: bool) -> None:
    """Say what an index holds after documents came."""
    about = index.info()
    if changes.get("empty"):
        warn(f"{changes['empty']:,} documents have no text; they are kept and score 0")
    sets = {name: of["queries"] for name, of in about["sets"].items() if of["source"] != "expanded"}
    if as_json:
        print_json({**changes, "documents": about["documents"], "queries": sets})
        return
    said = [
        f"{changes[key]:,} {key}" for key in ("new", "changed", "unchanged") if changes.get(key)
    ]
    mixed = ", ".join(f"{count:,} {name}" for name, count in sets.items())
    echo(
        f"{about['documents']:,} documents"
        + (f" ({', '.join(said)})" if said else "")
        + (f", sharpened by {mixed}" if mixed else "")
        + f", {human_bytes(about['total_bytes'])} in {about['path']}"
    )
    if worth_compacting(about["sizes"]):
        waste = human_bytes(about["sizes"]["waste"])
        say(f"{waste} of it are in no use: strop compact {shlex.quote(about['path'])}")


def waiting_for_vectors(about: dict[str, Any]) -> int:
    """Return how many documents and lists of queries ``strop finish`` would embed."""
    # Expanded text is embedded when a method asks for it, not by finish.
    sets = [of for of in about["sets"].values() if of["source"] != "expanded"]
    return int(about["waiting"] + sum(of["waiting"] for of in sets))


def worth_compacting(sizes: dict[str, Any]) -> bool:
    """Tell whether so much of an index is waste that people should hear of it."""
    return bool(sizes["waste"] > max(_WASTE_BYTES, _WASTE_SHARE * sizes["total"]))


def named_options(pairs: Sequence[str], flag: str = "--option") -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value that is JSON is taken as such."""
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


def split_list(text: str | None, mark: str = ",") -> list[str]:
    """Return the parts of a list given as one argument."""
    return [part.strip() for part in (text or "").split(mark) if part.strip()]
