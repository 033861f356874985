"""Estimates of a plan, and the command that prints it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commands import strop
from hypothesis import given
from hypothesis import strategies as st

from strop.distributed.plan import Rates, given_rates, probed_share_at, stages_of
from strop.errors import BadInput
from strop.lm import Price

RATES = Rates(
    read=1000, embed=100, embed_queries=500, pairs=1e6, choose=50, dim=10, document_bytes=300,
    queries=4, query_bytes=60, input_tokens=800, output_tokens=200,
)  # fmt: skip


def test_estimates_of_each_stage() -> None:
    stages = {stage.name: stage for stage in stages_of(RATES, 10_000, shard_documents=1000)}
    assert "probes" not in stages  # neighbours are exact
    assert stages["vectors"].tasks == 10
    assert stages["vectors"].core_seconds == pytest.approx(100)
    assert stages["vectors"].bytes == 10_000 * 4 * 10
    assert stages["references"].core_seconds == pytest.approx(10_000**2 / 1e6 + 10_000 / 50)
    assert stages["queries"].core_seconds == pytest.approx(80)
    assert stages["queries"].bytes == 40_000 * (40 + 60)
    assert all(stage.cost is None for stage in stages.values())


def test_cost_with_packed_prompts_and_batch_prices() -> None:
    (cost,) = (stage.cost for stage in stages_of(RATES, 1000, price=Price(2, 10)) if stage.cost)
    assert cost == pytest.approx(0.5 * (1000 * 800 * 2 + 1000 * 200 * 10) / 1e6)


@given(st.integers(1, 10**9), st.integers(1, 50), st.integers(1, 64))
def test_machines_split_the_work(documents: int, machines: int, cores: int) -> None:
    one_machine = stages_of(RATES, documents)
    all_machines = stages_of(RATES, documents, machines=machines, cores=cores)
    for single, shared in zip(one_machine, all_machines, strict=True):
        assert single.seconds == pytest.approx(single.core_seconds)
        assert shared.core_seconds == single.core_seconds
        assert shared.core_seconds / (machines * cores) <= shared.seconds * (1 + 1e-9)


def test_the_probed_share_falls_with_the_size() -> None:
    sizes = [10**power for power in range(4, 10)]
    shares = [probed_share_at(size) for size in sizes]
    assert shares == sorted(shares, reverse=True)
    assert probed_share_at(1) == 1


def test_rates_can_be_given() -> None:
    assert given_rates(RATES, ["embed=7", "dim=3"]).embed == 7
    for rate in ("embed", "embed=0", "speed=3", "embed=fast"):
        with pytest.raises(BadInput, match="give NAME=NUMBER above 0; names: read, embed"):
            given_rates(RATES, [rate])


def test_the_plan_command_measures_a_corpus(corpus: Path) -> None:
    options = ("--machines", "2", "--cores", "4", "--price", "1,2", "--rate", "pairs=1000")
    plan = strop("cluster", "plan", corpus, *options, "--json").json
    assert (plan["documents"], plan["estimated"]) == (60, True)
    assert plan["rates"]["pairs"] == 1000
    assert all(value > 0 for value in plan["rates"].values())
    names = ["documents", "vectors", "cells", "buckets", "references", "requests", "queries"]
    assert [stage["name"] for stage in plan["stages"]] == names
