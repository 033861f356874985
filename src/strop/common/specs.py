"""What loading an embedder and loading a language model have in common."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from strop.errors import BadInput

T = TypeVar("T")


def make(family: Callable[..., T], spec: str, options: Mapping[str, Any]) -> T:
    """Call a family with its spec and options; an option that it does not have is named."""
    try:
        return family(spec, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise BadInput(f"{spec} has no option {str(error).split()[-1]}") from error


def check_object(
    value: object, what: str, needed: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Refuse an object that lacks an attribute, or options for an object."""
    if options:
        raise BadInput(f"{', '.join(options)}: {what} object takes no options")
    for name in needed:
        if not hasattr(value, name):
            raise BadInput(f"the {type(value).__name__} is not {what}: it has no {name}")


def suggestion(text: str, known: Sequence[str]) -> str:
    """Return " Did you mean …?" with the names that are most like a text, "" if none is."""
    close = difflib.get_close_matches(text.lower(), known, n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""
