"""A short run of the fuzz targets with seeded mutations; ``make fuzz`` runs longer."""

from __future__ import annotations

import pytest

from fuzz.mutate import mutations
from fuzz.targets import SEEDS, TARGETS, accepts

INPUTS = 300


def test_every_target_has_seeds_and_accepts_at_least_one() -> None:
    assert SEEDS.keys() == TARGETS.keys()
    for name in TARGETS.keys() - {"error_body"}:  # its target always raises
        target = TARGETS[name]
        assert any(accepts(target, seed) for seed in SEEDS[name]), name


@pytest.mark.parametrize("name", TARGETS)
def test_targets_raise_only_strops_own_errors(name: str) -> None:
    for data in mutations(SEEDS[name], INPUTS):
        try:
            accepts(TARGETS[name], data)
        except Exception as error:
            pytest.fail(f"{name} fails on {data!r}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("start", ['{"a":', "a=["])
def test_a_condition_nested_too_deeply_is_accepted_or_refused(start: str) -> None:
    repeated = start if start.startswith("{") else "["
    accepts(TARGETS["condition"], (start + 100_000 * repeated).encode())
