"""What the loaders of embedders and language models share: construction, checks of options."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from strop.errors import BadInput
from strop.types import Kind

T = TypeVar("T")


def make(family: Callable[..., T], spec: str, options: Mapping[str, Any]) -> T:
    """Call a family with its spec and options; the error for an unknown option names it."""
    try:
        return family(spec, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise BadInput(f"{spec} has no option {str(error).split()[-1]}") from error


def check_object(
    value: object, what: str, needed: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Refuse an object that lacks an attribute, and options that are given with an object."""
    if options:
        raise BadInput(f"{', '.join(options)}: {what} object takes no options")
    for name in needed:
        if not hasattr(value, name):
            raise BadInput(f"the {type(value).__name__} is not {what}: it has no {name}")


def check_whole(**numbers: tuple[Any, int]) -> None:
    """Check options that are whole numbers: ``name=(value, minimum)``."""
    for option, (number, minimum) in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
            raise BadInput(f"{option} is {number!r}; it must be a whole number, at least {minimum}")


def check_seconds(**numbers: float) -> None:
    """Check options that are positive numbers of seconds."""
    for option, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise BadInput(f"{option} is {number!r}; it must be a number of seconds above 0")


def check_temperature(temperature: Any) -> None:
    """Check the temperature of a model; None leaves it to the service."""
    is_number = isinstance(temperature, int | float)
    if temperature is not None and not (is_number and 0 <= temperature < math.inf):
        raise BadInput(f"temperature must be 0 or more, not {temperature!r}")


def check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    """Check an option that must be one of ``choices``."""
    if value not in choices:
        raise BadInput(f"{option} {value!r} is not one of: {', '.join(choices)}")


def check_kinds(option: str, by_kind: Mapping[str, str]) -> None:
    """Check an option that has a text for queries, for documents or for both."""
    if unknown := set(by_kind) - set(get_args(Kind)):
        raise BadInput(f"{option} has {sorted(unknown)}; it may have 'query' and 'document'")


def differing(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set and differ from their default."""
    return {key: value for key, value in options.items() if value not in (None, defaults.get(key))}


def suggestion(text: str, names: Sequence[str]) -> str:
    """Return " Did you mean …?" with the names that are most similar to a text, or ""."""
    close = difflib.get_close_matches(text.lower(), names, n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""
