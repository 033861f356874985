"""What the verbs share: opening an index, messages about its contents."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.cli.messages import echo, say, warn
from strop.cli.options import waiting_time
from strop.cli.verbs import Answer
from strop.common.text import counted, human_bytes

if TYPE_CHECKING:  # the verbs load it themselves, so that --help is quick
    from strop.engines.published import Published
    from strop.index import Index

_WASTE_SHARE, _WASTE_BYTES = 0.2, 1_000_000
"""Waste is reported when it is above this share of an index and above this many bytes."""


def open_index(path: Path, **options: Any) -> Index:
    """Open an index; ``options`` are its embedder's."""
    from strop.index import Index

    return Index.open(path, wait=waiting_time(), **options)


def open_readable(target: Path | str) -> Index | Published:
    """Open an index, or a published copy by its URL."""
    from strop.opening import connect

    return connect(target)


def changed(path: Path, changes: dict[str, Any]) -> Answer:
    """Return what an index holds after documents were added or embedded.

    The index is opened again for this: only once its writer has closed it, and SQLite has emptied
    its log, does the folder have the size that ``strop info`` reports.
    """
    with open_index(path) as index:
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


def waiting_for_vectors(about: dict[str, Any]) -> int:
    """Return how many documents and query lists ``strop finish`` would embed."""
    # Text of doc2query and docexp is embedded when a method needs it, not by finish.
    sets = [set_ for set_ in about["sets"].values() if set_["source"] != "augmented"]
    return int(about["waiting"] + sum(set_["waiting"] for set_ in sets))


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
