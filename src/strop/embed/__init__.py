"""Embedders: texts to unit vectors. ``load`` makes one from a short name or a function.

A new family is one more file on ``BaseEmbedder`` (base.py), its name here, and an extra if it needs
a package. An option that changes vectors must be in ``_VECTOR_OPTIONS`` of ``storage/trust.py``, or
an index does not store it. The settings of one model are an entry in ``presets.json``. Importing
this package loads no model library; each family is imported when it is used. Nothing here stores
vectors in an index, or ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from strop.common.cache import cache_file
from strop.common.specs import check_object, make, suggestion
from strop.embed.base import Embedder
from strop.embed.cache import FILE, CachedEmbedder
from strop.embed.presets import PRESETS, TASKS, Preset
from strop.errors import BadInput

__all__ = ["PRESETS", "TASKS", "CachedEmbedder", "Embedder", "Preset", "load"]

_FORMS = "wordllama, minilm, st:<hub name or folder>, api:<model>"


def load(
    spec: str | Embedder | Callable[..., Any],
    *,
    cache: bool = False,
    **options: Any,
) -> Embedder:
    """Make an embedder.

    ``spec`` is one of

    - ``wordllama``: static vectors, no further installation, thousands of documents a second;
    - ``minilm``: all-MiniLM-L6-v2 from a package, without torch;
    - ``st:<hub name or folder>``: any model of sentence-transformers;
    - ``api:<model>``: a server that speaks OpenAI's embeddings protocol;
    - a name in ``PRESETS``, such as ``contriever`` or ``e5-mistral``;
    - a function of ``texts`` or of ``texts, kind`` that returns a row of numbers for each text;
    - an embedder, which is returned unchanged.

    ``options`` belong to the family; ``load(e.name, **e.options)`` makes ``e`` again. With
    ``cache`` vectors are stored in the user's cache folder, unless computing them is as fast.
    """
    if not isinstance(cache, bool):
        raise BadInput(
            f"cache must be True or False, not {cache!r}; STROP_CACHE is the folder of the cache"
        )
    embedder = _make(spec, options)
    path = cache_file(FILE) if cache and getattr(embedder, "worth_caching", True) else None
    return CachedEmbedder(embedder, path) if path else embedder


def _make(spec: str | Embedder | Callable[..., Any], options: dict[str, Any]) -> Embedder:
    if isinstance(spec, str):
        return make(_family(spec), spec, options)
    if hasattr(spec, "embed"):
        # Not "dim": for some embedders it costs a request.
        check_object(spec, "an embedder", ("name", "revision", "options", "prompt"), options)
        return cast(Embedder, spec)
    if hasattr(spec, "encode"):
        raise BadInput("pass a function, such as lambda texts: model.encode(texts), not a model")
    if not callable(spec):
        raise BadInput(f"{spec!r} is not an embedder: give {_FORMS} or a function")
    from strop.embed.function import CallableEmbedder

    return CallableEmbedder(spec, **options)


def _family(spec: str) -> Callable[..., Embedder]:
    if spec == "wordllama":
        from strop.embed.wordllama import WordLlama

        return lambda _, **options: WordLlama(**options)
    if spec == "minilm":
        from strop.embed.minilm import MiniLM

        return lambda _, **options: MiniLM(**options)
    if spec in PRESETS or (spec.startswith("st:") and spec != "st:"):
        from strop.embed.st import SentenceTransformerEmbedder

        return SentenceTransformerEmbedder
    if spec.startswith("api:") and spec != "api:":
        from strop.embed.api import ApiEmbedder

        return ApiEmbedder
    if spec.startswith("callable:"):
        raise BadInput(
            f"{spec} is a function, which cannot be loaded by name: "
            "pass it with embedder= when opening the index"
        )
    hint = suggestion(spec, ["wordllama", "minilm", *PRESETS])
    raise BadInput(f"unknown embedder {spec!r}.{hint} Known: {_FORMS}, {', '.join(PRESETS)}")
