"""Any function from texts to vectors, as an embedder."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from strop.embed.base import BaseEmbedder, checked_vectors
from strop.errors import BadInput
from strop.types import Kind, Vectors

PREFIX = "callable:"


class CallableEmbedder(BaseEmbedder):
    """Wraps ``f(texts)`` or ``f(texts, kind)``, which returns one row of numbers per text.

    An index cannot store a function: it must be given again when the index is opened. Vectors are
    cached only under a given name, since all lambdas have the same name; ``revision`` distinguishes
    versions of the function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        revision: str = "",
        dim: int | None = None,
    ) -> None:
        default_name = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = PREFIX + (name or default_name).removeprefix(PREFIX)
        self.revision = revision
        self.options = {}
        self.worth_caching = name is not None
        self._function = function
        self._with_kind = _takes_kind(function)
        self._dim = dim

    def _vectors(self, texts: list[str], kind: Kind) -> Vectors:
        raw = self._function(texts, kind=kind) if self._with_kind else self._function(texts)
        rows = checked_vectors(raw, len(texts), self.name, self._dim)
        self._dim = rows.shape[1]
        return rows


def _takes_kind(function: Callable[..., Any]) -> bool:
    """Whether the function has a parameter called ``kind``."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    if not parameters:
        raise BadInput("an embedding function takes a list of texts, or texts and kind")
    kind = parameters.get("kind")
    return kind is not None and kind.kind is not inspect.Parameter.POSITIONAL_ONLY
