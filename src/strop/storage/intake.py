"""Checks of what users give to an index: folders, embedders, documents, names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from strop.embed import Embedder, load
from strop.errors import BadIndex, BadInput, IndexDamaged
from strop.storage.trust import has_consent, needs_consent, stored_options
from strop.types import Document, Kind

CATALOG = "catalog.sqlite"
EmbedderSpec = str | Embedder | Callable[..., Any]
"""What ``embed.load`` accepts."""


def is_left_over(folder: Path) -> bool:
    """Return whether a folder contains only what an interrupted ``create`` leaves."""
    if not folder.is_dir():
        return False
    return all(
        (entry.name == "vectors" and entry.is_dir() and not any(entry.iterdir()))
        or entry.name == "writer.lock"
        or entry.name.startswith(CATALOG + ".new")
        for entry in folder.iterdir()
    )


def load_embedder(spec: EmbedderSpec, options: Mapping[str, Any]) -> Embedder:
    """Load an embedder; with the cache if its spec is a name."""
    # A function can change and keep its name, so its vectors are not cached.
    return load(spec, cache=isinstance(spec, str), **options)


def about_embedder(embedder: Embedder, dim: int | None = None) -> dict[str, Any]:
    """Return what an index stores about its embedder: how to load it, what its vectors depend on.

    Give ``dim`` if it is known: otherwise a service must be called to find it.
    """
    unkeyed: frozenset[str] = getattr(embedder, "unkeyed_options", frozenset())
    unkeyed |= {"base_url", "max_chars"}  # a server may move; a limit changes no accepted text
    return {
        "name": embedder.name,
        "revision": embedder.revision,
        "dim": dim or embedder.dim,
        "options": stored_options(embedder.options),
        "settings": {key: v for key, v in embedder.options.items() if key not in unkeyed},
        "prompts": {kind: embedder.prompt(kind) for kind in get_args(Kind)},
    }


def checked_record(index: object, record: Any) -> dict[str, Any]:
    """Return the stored record of an embedder, if it has the form of ``about_embedder``."""
    types = {"name": str, "revision": str, "dim": int}
    types |= dict.fromkeys(("options", "settings", "prompts"), dict)
    valid = isinstance(record, dict) and all(type(record.get(key)) is types[key] for key in types)
    if not valid or not 0 < record["dim"] < 2**20:
        raise IndexDamaged(
            f"{index} does not say which embedder made it ({record!r:.80}): restore {CATALOG} from "
            "a backup, or build the index again in another folder"
        )
    checked: dict[str, Any] = record
    return checked


def given_embedder(
    place: object,
    index_id: object,
    stored: Mapping[str, Any],
    embedder: EmbedderSpec | None,
    options: Mapping[str, Any],
) -> Embedder:
    """Load the embedder of ``place``: the given one, else the stored one with trusted options.

    An embedder whose vectors do not mix with those of ``place`` is refused.
    """
    name = stored["name"]

    def mismatch(difference: str) -> BadIndex:
        return BadIndex(
            f"{place} was made by embedder {name!r}{difference}: vectors of two models do not mix. "
            "Use the first, or build another index"
        )

    if embedder is None:  # options of the user override stored ones
        recorded = stored_options(stored["options"])
        inherited = {key: value for key, value in recorded.items() if key not in options}
        needed = needs_consent(name, inherited)
        if needed and not has_consent(index_id, name, recorded):
            raise BadIndex(
                f"{place} would load its embedder with {', '.join(needed)}, which you did not give:"
                " it could run code, or send texts and your API key to that address. If you trust"
                f" it: strop trust {place}, or in Python open it with embedder={name!r} and these"
                " options"
            )
        options = {**inherited, **options}
    if isinstance(embedder, str) and embedder != name:
        raise mismatch(f", not {embedder!r}")  # before the slow loading
    loaded = load_embedder(embedder or name, options)
    if loaded.name != name:
        raise mismatch(f", not {loaded.name!r}")
    # A service would have to be called for its dimension; replies are checked anyway.
    current = about_embedder(loaded, stored["dim"] if name.startswith("api:") else None)
    for key in ("revision", "dim", "prompts", "settings"):
        if current[key] != stored[key]:
            raise mismatch(f" with {key} {stored[key]!r}, not {current[key]!r}")
    return loaded


def check_wait(wait: float) -> float:
    """Check the number of seconds to wait for a lock."""
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait < math.inf:
        raise BadInput(f"wait is a number of seconds of 0 or more, not {wait!r}")
    return wait


def check_set_name(name: str) -> None:
    """Refuse a name that a set of imported or generated queries cannot have."""
    if name == "sentences" or not name.replace("-", "").replace("_", "").isalnum():
        raise BadInput(
            f"{name!r} cannot name a set of queries: use letters, digits, - and _, and not"
            " 'sentences'"
        )


def placed(
    documents: Iterable[Document | Mapping[str, Any] | tuple[Document, str]],
) -> Iterator[tuple[Document, str]]:
    """Yield documents with the places they came from, given in any of the accepted forms."""
    for at, item in enumerate(documents, 1):
        document, place = item, f"document {at}"
        if isinstance(item, tuple) and len(item) == 2:
            document, place = item
        if isinstance(document, Mapping):
            fields = dict(document)
            try:
                id_ = fields.pop("_id") if "_id" in fields else fields.pop("id")
                text = fields.pop("text")
            except KeyError as error:
                raise BadInput(f"{place} has no {error.args[0]!r}: {document!r:.200}") from None
            id_ = str(id_) if type(id_) is int else id_
            document = Document(id_, text, fields.pop("title", ""), fields)
        if not isinstance(document, Document):
            kind = type(document).__name__
            raise BadInput(f"{place} is a {kind}: give Documents or mappings")
        if not isinstance(document.id, str) or not document.id:
            shown = repr(document.id)[:80] if document.id != "" else "empty"
            raise BadInput(f"{place}: the id is {shown}; give it as text or a whole number")
        yield document, place
