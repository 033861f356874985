"""strop sharpens dense retrieval without training.

The table "I want to ..." of docs/architecture.md lists where to change what.

>>> from strop import Index
>>> index = Index.create("my.index")                      # doctest: +SKIP
>>> index.sharpen("sentences")                            # doctest: +SKIP
>>> index.add([{"id": "1", "text": "…"}])                 # doctest: +SKIP
>>> [hit.id for hit in index.search("a question")[0]]     # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strop.errors import StropError
from strop.types import Dataset, Document, Hit, Hits

if TYPE_CHECKING:
    from strop.evaluation.scoring import Report, evaluate
    from strop.expand.methods import HyDE, LameR, Query2Doc, ReDERF
    from strop.index import Index
    from strop.methods import METHODS, Method
    from strop.opening import connect
    from strop.references.selection import select_references
    from strop.references.settings import ReferenceSettings
    from strop.search.explain import Explanation

__version__ = "0.1.0"
__all__ = [
    "METHODS", "Changes", "Dataset", "Document", "Explanation", "Hit", "Hits", "HyDE", "Index",
    "LameR", "Method", "Query2Doc", "ReDERF",
    "ReferenceSettings", "Report", "StropError", "connect", "evaluate", "select_references",
]  # fmt: skip

_HOME = {
    "Changes": "types", "Explanation": "search.explain", "HyDE": "expand.methods",
    "Index": "index", "LameR": "expand.methods", "METHODS": "methods", "Method": "methods",
    "Query2Doc": "expand.methods", "ReDERF": "expand.methods",
    "ReferenceSettings": "references.settings", "Report": "evaluation.scoring",
    "connect": "opening", "evaluate": "evaluation.scoring",
    "select_references": "references.selection",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Load the heavier parts (compiled kernels) at their first use, so that commands start fast."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"strop.{_HOME[name]}"), name)
    raise AttributeError(f"module 'strop' has no attribute {name!r}")
