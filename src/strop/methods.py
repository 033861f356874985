"""Scoring methods as settings: which query sets are mixed, with which weights and strength."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args

from strop.errors import BadInput

MAX_WEIGHT = 1_000_000
"""The largest weight of feedback and words: much larger ones would overflow float32 scores."""
Weighting = Literal["none", "softmax", "equal", "max"]
Bm25 = Literal["no", "only", "fused"]


@dataclass(frozen=True)
class Method:
    """How documents are scored. Every variant is a setting of these few values.

    ``weighting`` is how a document's queries are mixed into its vector: not at all, by a softmax
    with ``temperature``, all equally, or by adding the largest similarity to the score.
    ``sets`` None means all query sets of the index; ``n`` mixes only the first n queries of each
    list. ``augmented`` names the set whose queries are appended to a document's text instead.
    ``feedback`` re-ranks the best 50; it is the weight of their similarity to the best 10
    (feedback.py).
    ``words`` is the weight of the document's BM25 score, which is added (search/words.py).
    ``bm25`` ranks by BM25: ``only``, or ``fused`` with the dense ranking by reciprocal rank. The
    words of ``sets`` that are named count as the document's own.
    """

    name: str
    weighting: Weighting = "softmax"
    sets: tuple[str, ...] | None = None
    alpha: float = 1.0
    temperature: float = 1.0
    n: int | None = None
    augmented: str | None = None
    feedback: float = 0.0
    words: float = 0.0
    bm25: Bm25 = "no"

    @property
    def sharpens(self) -> bool:
        """Whether the score is a cosine with the sharpened document d*."""
        return self.weighting in ("softmax", "equal")

    @property
    def softmax_temperature(self) -> float:
        """The temperature of the weights; an infinite one gives equal weights."""
        return math.inf if self.weighting == "equal" else float(self.temperature)

    def has(self, setting: str) -> bool:
        """Return whether a setting has an effect on this method."""
        mixes = self.weighting != "none"
        counts_words = self.bm25 != "no" or self.words > 0
        return {
            "alpha": self.sharpens,
            "temperature": self.weighting == "softmax",
            "words": self.bm25 == "no" and self.weighting != "max",
            "feedback": self.bm25 == "no",
            "sets": mixes or self.augmented is not None or counts_words,
        }.get(setting, mixes)  # n


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("trad", weighting="none", sets=()),
        Method("sharp", temperature=0.1),
        Method("simsharp", sets=("simple",)),
        Method("consharp", sets=("contrastive",)),
        Method("indexsharp", weighting="equal", sets=("contrastive",)),
        Method("maxsim", weighting="max"),
        Method("doc2query", weighting="none", sets=(), augmented="simple"),
        Method("docexp", weighting="none", sets=(), augmented="contrastive"),
        Method("bm25", weighting="none", sets=(), bm25="only"),
        Method("hybrid", weighting="none", sets=(), bm25="fused"),
    )
}

WORDS = {"wordllama": 1.1}
"""The default weight of words in ``sharp``, for embedders that were measured as weak."""
WORDS_OTHERS = 0.45
"""The same for all other embedders; both were chosen on the collections of
benchmarks/quality.py."""
WORDS_UNKNOWN_LANGUAGE = 2.0
"""The same if an embedder does not know the language (``search.embedder_checks``)."""
FEEDBACK = 3.0
"""The default weight of feedback in ``sharp``, for every embedder."""


def default_methods(embedder: str, lacks_language: bool = False) -> dict[str, Method]:
    """Return all methods with the defaults for an embedder: words count in ``sharp``.

    ``lacks_language``: it does not know the texts' language.
    """
    words = WORDS.get(embedder, WORDS_UNKNOWN_LANGUAGE if lacks_language else WORDS_OTHERS)
    return METHODS | {"sharp": replace(METHODS["sharp"], words=words, feedback=FEEDBACK)}


_READ: dict[str, Callable[[str], Any]] = {
    "alpha": float, "temperature": float, "sets": lambda text: _names(text), "n": int,
    "feedback": float, "words": float,
}  # fmt: skip


def parse_method(
    spec: str, settings: Mapping[str, Any] | None = None, known: Mapping[str, Method] = METHODS
) -> Method:
    """Read ``name`` or ``name:alpha=2:temperature=0.1:sets=simple+contrastive:n=5``.

    ``settings`` are used for what the spec leaves out (None: not given), and the ``known`` method's
    own settings for the rest. A setting in the spec that the method does not have is refused. One
    of ``settings``, which may be meant for several methods, then has no effect, and a warning is
    issued. ``hybrid:of=sharp`` fuses a method other than trad with BM25, and accepts its settings.
    """
    if not isinstance(spec, str):
        raise BadInput(f"a method is a name such as 'sharp' or a Method, not {spec!r}")
    name, *parts = spec.strip().split(":")
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"no method {name!r}: choose from {', '.join(known)}.{hint}")
    in_spec = dict(part.partition("=")[::2] for part in parts)
    method = known[name]
    if "of" in in_spec:
        method = _fused(spec, method, in_spec.pop("of"), known)
    values: dict[str, Any] = {}
    for key in sorted(in_spec, key="words".__ne__):  # with words, more settings have an effect
        text, setting = in_spec[key], "temperature" if key == "T" else key
        _check_setting(f"method {spec!r}", key, setting)
        if not method.has(setting):
            raise BadInput(f"method {spec!r}: {name} has no {setting}")
        try:
            values[setting] = _READ[setting](text)
        except ValueError:
            raise BadInput(f"method {spec!r}: {text!r} is no value for {key}") from None
        if setting == "words":
            method = replace(method, words=values[setting])
    for setting, value in given_settings(settings or {}).items():
        if setting in values:
            continue
        if method.has(setting):
            values[setting] = _names(value) if setting == "sets" else value
        else:
            warnings.warn(f"{name} has no {setting}: it has no effect there", stacklevel=3)
    if method.augmented is not None and "sets" in values:
        augmented = values.pop("sets")
        if len(augmented) != 1:
            raise BadInput(f"{name} appends the queries of one set, not of {len(augmented)}")
        values["augmented"] = augmented[0]
    return check_method(replace(method, **values))


def chosen_method(
    method: str | Method, settings: Mapping[str, Any], known: Mapping[str, Method]
) -> Method:
    """Return a method given by its spec, with ``settings``, or given as a ``Method``."""
    if not isinstance(method, Method):
        return parse_method(method, settings, known)
    if given_settings(settings):
        raise BadInput("a Method has its own settings: use dataclasses.replace on it")
    return check_method(method)


def given_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a value; refuse unknown ones."""
    for name in settings:
        _check_setting("search", name, name)
    return {
        name: value
        for name, value in settings.items()
        if value is not None and (name != "sets" or len(value))
    }


def _check_setting(place: str, key: str, setting: str) -> None:
    if setting not in _READ:
        raise BadInput(
            f"{place}: {key!r} is not one of: alpha, temperature (T), sets, n, feedback, words"
        )


def _names(sets: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(sets.split("+") if isinstance(sets, str) else sets)


def check_method(method: Method) -> Method:
    """Return a method if its values are valid; otherwise raise an error that names the value."""
    for field, allowed in (("weighting", Weighting), ("bm25", Bm25)):
        if getattr(method, field) not in get_args(allowed):
            value, names = getattr(method, field), ", ".join(get_args(allowed))
            raise BadInput(f"{field} must be one of {names}, not {value!r}")
    for field in ("alpha", "temperature", "feedback", "words"):
        value = getattr(method, field)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise BadInput(f"{field} must be a number, not {value!r}")
    if not math.isfinite(method.alpha):
        raise BadInput(f"alpha must be a finite number, not {method.alpha}")
    if not method.temperature >= 0:
        raise BadInput(f"temperature must be 0 (maximum) or more, not {method.temperature}")
    if method.n is not None:
        check_count("n", method.n)
    for key, weight in (("feedback", method.feedback), ("words", method.words)):
        if not 0 <= weight <= MAX_WEIGHT:
            raise BadInput(f"{key} must be 0 or more and at most {MAX_WEIGHT:,}, not {weight}")
    for setting in ("words", "feedback"):
        if getattr(method, setting) and not method.has(setting):
            raise BadInput(f"{method.name} has no {setting}")
    if isinstance(method.sets, str) or not all(isinstance(one, str) for one in method.sets or ()):
        raise BadInput(f"sets must be a tuple of names, not {method.sets!r}")
    return method


def check_count(name: str, value: Any) -> int:
    """Return a whole number of 1 or more; refuse anything else."""
    limit = 10**9
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= limit:
        raise BadInput(f"{name} must be 1 or more, a whole number up to {limit:,}, not {value!r}")
    return int(value)


def _fused(spec: str, hybrid: Method, name: str, known: Mapping[str, Method]) -> Method:
    """Return a method as the dense part of a hybrid one."""
    if hybrid.bm25 != "fused":
        raise BadInput(f"method {spec!r}: {hybrid.name} takes no of=; only hybrid does")
    if name not in known or known[name].bm25 != "no":
        dense = ", ".join(other for other in known if known[other].bm25 == "no")
        raise BadInput(f"method {spec!r}: hybrid cannot fuse {name!r}: choose from {dense}")
    return replace(known[name], name=hybrid.name, words=0.0, feedback=0.0, bm25="fused")


def method_spec(method: Method) -> str:
    """Return the spec that ``parse_method`` reads as this method.

    A method whose name is not in ``METHODS`` is written as ``sharp`` with its settings.
    """
    base = METHODS.get(method.name, METHODS["sharp"])
    parts = [base.name]
    if base.bm25 == "fused" and (method.weighting != "none" or method.augmented):
        base = next(
            other
            for other in METHODS.values()
            if other.weighting == method.weighting
            and (other.augmented is None) == (method.augmented is None)
        )
        parts.append(f"of={base.name}")
    for key in ("alpha", "temperature", "n", "feedback", "words"):
        value = getattr(method, key)
        shown = method.weighting == "softmax" and key in ("alpha", "temperature")
        # The defaults of these two depend on the index.
        shown |= base.name == "sharp" and method.bm25 == "no" and key in ("feedback", "words")
        if shown or value != getattr(base, key):
            parts.append(f"{key}={float(value)!r}".removesuffix(".0"))
    if method.augmented != base.augmented:
        parts.append(f"sets={method.augmented}")
    elif method.sets != base.sets:
        parts.append(f"sets={'+'.join(method.sets or ())}")
    return ":".join(parts)


def sharp_with(settings: Mapping[str, Any]) -> Method:
    """Return ``sharp`` with the settings that an index stores for it, as JSON values."""
    sets = settings["sets"]
    return replace(METHODS["sharp"], **{**settings, "sets": sets if sets is None else tuple(sets)})
