"""The ways to score a document, as settings: which query sets, how weighted, how strongly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from strop.errors import BadInput

MOST = 1_000_000
"""The largest weight of feedback and words: scores are float32, which far larger ones overflow."""


@dataclass(frozen=True)
class Method:
    """How documents are scored. Every variant is a setting of these few values.

    ``sets`` None means all query sets of the index; ``n`` uses only the first n queries of each
    list. ``expanded`` names the set whose queries are appended to a document's text instead.
    ``whiten`` evens out the space first (whitening.py): 0 not at all, 1 fully. ``feedback`` adds
    that much of the two best documents to the query and searches again.
    ``words`` adds that much of the share of the query's words a document has (words.py).
    ``bm25`` ranks by BM25: ``only``, or ``fused`` with the rest by reciprocal rank.
    """

    name: str
    weighting: Literal["none", "softmax", "max"] = "softmax"
    sets: tuple[str, ...] | None = None
    alpha: float = 1.0
    temperature: float = 1.0
    n: int | None = None
    expanded: str | None = None
    whiten: float = 0.0
    feedback: float = 0.0
    words: float = 0.0
    bm25: Literal["no", "only", "fused"] = "no"


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("trad", weighting="none", sets=()),
        Method("sharp", temperature=0.1),
        Method("simsharp", sets=("simple",)),
        Method("consharp", sets=("contrastive",)),
        Method("indexsharp", sets=("contrastive",), temperature=math.inf),
        Method("maxsim", weighting="max"),
        Method("doc2query", weighting="none", sets=(), expanded="simple"),
        Method("docexp", weighting="none", sets=(), expanded="contrastive"),
        Method("bm25", weighting="none", sets=(), bm25="only"),
        Method("hybrid", weighting="none", sets=(), bm25="fused"),
    )
}


def parse_method(
    spec: str,
    *,
    alpha: float | None = None,
    temperature: float | None = None,
    sets: tuple[str, ...] | None = None,
    n: int | None = None,
    known: Mapping[str, Method] = METHODS,
) -> Method:
    """Read ``name`` or ``name:alpha=2:temperature=0.1:sets=simple+contrastive:n=5``.

    The keyword values stand in for what the spec leaves out; the ``known`` method's own for the
    rest.
    ``hybrid:of=sharp`` fuses another method than trad with BM25, and takes that one's settings.
    """
    name, *parts = spec.strip().split(":")
    if name not in known:
        raise BadInput(f"no method {name!r}: choose from {', '.join(known)}")
    given = dict(part.partition("=")[::2] for part in parts)
    method = known[name]
    if "of" in given:
        method = _fused(spec, method, given.pop("of"), known)
    for key, text in given.items():
        try:
            if key == "alpha":
                alpha = float(text)
            elif key in ("temperature", "T"):
                temperature = float(text)
            elif key == "sets":
                sets = tuple(text.split("+"))
            elif key == "n":
                n = int(text)
            elif key == "whiten":
                method = replace(method, whiten=float(text))
            elif key == "feedback":
                method = replace(method, feedback=float(text))
            elif key == "words":
                method = replace(method, words=float(text))
            else:
                raise BadInput(
                    f"method {spec!r}: {key!r} is none of alpha, temperature (T), sets, n,"
                    " whiten, feedback, words"
                )
        except ValueError:
            raise BadInput(f"method {spec!r}: {text!r} is no value for {key}") from None
    ignored = {
        "none": {"alpha", "temperature", "T", "n", "whiten", "feedback"},
        "max": {"alpha", "temperature", "T", "words"},
    }.get(method.weighting, set())
    if method.bm25 != "no":
        ignored = ignored | {"words"}
    if unused := sorted(set(given) & ignored):
        raise BadInput(f"method {spec!r}: {name} has no {unused[0]}")
    if "sets" in given and method.sets == () and method.expanded is None:
        raise BadInput(f"method {spec!r}: {name} uses no sets")
    if alpha is not None:
        if not math.isfinite(alpha):
            raise BadInput(f"alpha must be a finite number, not {alpha}")
        method = replace(method, alpha=alpha)
    if temperature is not None:
        if not temperature >= 0:
            raise BadInput(f"temperature must be 0 (maximum) or more, not {temperature}")
        method = replace(method, temperature=temperature)
    if n is not None:
        if n < 1:
            raise BadInput(f"n must be 1 or more, not {n}")
        method = replace(method, n=n)
    for key, weight in (("feedback", method.feedback), ("words", method.words)):
        if not 0 <= weight <= MOST:
            raise BadInput(f"{key} must be 0 or more and at most {MOST:,}, not {weight}")
    if not 0 <= method.whiten <= 1:
        raise BadInput(f"whiten must be from 0 to 1, not {method.whiten}")
    if sets:
        if method.expanded is not None:
            if len(sets) != 1:
                raise BadInput(f"{name} appends the queries of one set, not of {len(sets)}")
            method = replace(method, expanded=sets[0])
        elif method.weighting != "none":
            method = replace(method, sets=sets)
    return method


def _fused(spec: str, hybrid: Method, name: str, known: Mapping[str, Method]) -> Method:
    """Return a method as the dense part of a hybrid one."""
    if hybrid.bm25 != "fused":
        raise BadInput(f"method {spec!r}: {hybrid.name} is of no other; only hybrid is")
    if name not in known or known[name].bm25 != "no":
        dense = ", ".join(other for other in known if known[other].bm25 == "no")
        raise BadInput(f"method {spec!r}: hybrid is no fusion of {name!r}: choose from {dense}")
    return replace(known[name], name=hybrid.name, words=0.0, bm25="fused")


def method_spec(method: Method) -> str:
    """Return the spec that ``parse_method`` reads as this method.

    A method of another name than those in ``METHODS`` is written as ``sharp`` with its settings.
    """
    base = METHODS.get(method.name, METHODS["sharp"])
    parts = [base.name]
    if base.bm25 == "fused" and (method.weighting != "none" or method.expanded):
        base = next(
            other
            for other in METHODS.values()
            if other.weighting == method.weighting
            and (other.expanded is None) == (method.expanded is None)
        )
        parts.append(f"of={base.name}")
    for key in ("alpha", "temperature", "n", "whiten", "feedback", "words"):
        value = getattr(method, key)
        shown = method.weighting == "softmax" and key in ("alpha", "temperature")
        if shown or value != getattr(base, key):
            parts.append(f"{key}={_number(value)}")
    if method.expanded != base.expanded:
        parts.append(f"sets={method.expanded}")
    elif method.sets != base.sets:
        parts.append(f"sets={'+'.join(method.sets or ())}")
    return ":".join(parts)


def _number(value: float) -> str:
    """Return a number in as few digits as read back exactly."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def sharp_with(settings: Mapping[str, Any]) -> Method:
    """Return ``sharp`` with the settings that an index stores for it, JSON values."""
    sets = settings["sets"]
    return replace(METHODS["sharp"], **{**settings, "sets": sets if sets is None else tuple(sets)})
