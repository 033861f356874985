"""Specs of methods: reading and writing a spec keeps the method."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from strop.methods import METHODS, method_spec, parse_method

NUMBERS = st.floats(0, 1, allow_subnormal=False)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True)


@st.composite
def specs(draw: st.DrawFn) -> str:
    """Draw a valid spec."""
    parts = [draw(st.sampled_from(sorted(METHODS)))]
    method = METHODS[parts[0]]
    if method.bm25 == "fused" and draw(st.booleans()):
        dense = sorted(name for name, other in METHODS.items() if other.bm25 == "no")
        parts.append(f"of={draw(st.sampled_from(dense))}")
        method = METHODS[parts[1].removeprefix("of=")]
    settings = {}
    if method.augmented:
        settings["sets"] = NAMES
    if method.weighting != "none":
        settings["sets"] = st.lists(NAMES, min_size=1, max_size=3, unique=True).map("+".join)
        settings["n"] = st.integers(1, 50).map(str)
    if parts[0] not in ("bm25", "hybrid"):
        settings["feedback"] = NUMBERS.map(repr)
        if method.weighting != "max":
            settings["words"] = NUMBERS.map(repr)
    if method.weighting == "softmax":
        settings["alpha"] = st.floats(-9, 9).map(repr)
        if not math.isinf(method.temperature):
            settings["temperature"] = NUMBERS.map(repr)
    chosen = draw(st.lists(st.sampled_from(sorted(settings)), unique=True)) if settings else []
    return ":".join([*parts, *(f"{key}={draw(settings[key])}" for key in chosen)])


@given(specs())
def test_a_spec_is_read_and_written_unchanged(spec: str) -> None:
    method = parse_method(spec)
    assert parse_method(method_spec(method)) == method
    assert method_spec(parse_method(method_spec(method))) == method_spec(method)


def test_specs_leave_out_defaults() -> None:
    assert method_spec(METHODS["trad"]) == "trad"
    assert method_spec(parse_method("trad:words=1")) == "trad:words=1"
    assert method_spec(parse_method("hybrid:of=sharp")) == "hybrid:of=sharp:alpha=1:temperature=0.1"
    # Defaults of the last two depend on the index, so these are always written.
    zero = "sharp:alpha=1:temperature=0.1:feedback=0:words=0"
    assert method_spec(METHODS["sharp"]) == zero
