"""Triplets for training: the right texts, for imported and generated queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.commands import jsonl, strop
from helpers.generation import IDS, TOPICS, query_lists, record, run, topics_in
from helpers.scripted_server import ScriptedServer

from strop import Index

TEXT = {topic: record(i)["text"] for i, topic in enumerate(TOPICS)}


def made(topics: Path, tmp_path: Path, *args: str) -> list[dict[str, str]]:
    file = tmp_path / "triplets.jsonl"
    told = strop("triplets", topics, "-o", file, *args, "--json").json
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert told == {"triplets": len(found), "file": str(file)}
    assert {tuple(one) for one in found} == {("query", "positive", "negative")}
    return found


@pytest.mark.parametrize("style", ["contrastive", "negative"])
def test_a_query_and_the_reference_it_was_written_against(
    topics: Path, server: ScriptedServer, tmp_path: Path, style: str
) -> None:
    server.text = lambda prompt: "<QUERY>{} not {}</QUERY>".format(*topics_in(prompt))
    run(topics, server, "--style", style)
    found = made(topics, tmp_path, "--set", style)
    assert len(found) == sum(map(len, query_lists(topics, style).values())) > 24
    for one in found:
        own, other = one["query"].split(" not ")
        pair = [TEXT[own], TEXT[other]]
        assert [one["positive"], one["negative"]] == (pair if style != "negative" else pair[::-1])


def test_packed_queries_name_their_references(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    def text(prompt: str) -> str:
        own, *others = topics_in(prompt)
        return f"<AGAINST>{len(others)}</AGAINST><QUERY>{own} not {others[-1]}</QUERY>"

    server.text = text
    run(topics, server, "--style", "contrastive", "--packed")
    found = made(topics, tmp_path, "--negatives", "3")
    assert len(found) == 12
    for one in found:
        own, other = one["query"].split(" not ")
        assert (one["positive"], one["negative"]) == (TEXT[own], TEXT[other])


@pytest.mark.parametrize("source", ["lm", "file"])
def test_others_take_the_nearest_references(
    topics: Path, server: ScriptedServer, tmp_path: Path, source: str
) -> None:
    if source == "lm":
        server.text = lambda prompt: f"<QUERY>{topics_in(prompt)[0]}</QUERY>"
        run(topics, server, "--style", "simple")
    else:
        given = jsonl(*({"id": f"d{i}", "queries": [TOPICS[i]]} for i in range(12)))
        assert strop("queries", topics, "--file", "-", "--style", "simple", stdin=given).code == 0
    refused = strop("triplets", topics, "-o", tmp_path / "t.jsonl", "--set", "simple")
    assert refused.code == 1
    assert "strop references" in refused.stderr
    assert not (tmp_path / "t.jsonl").exists()
    assert strop("references", topics).code == 0
    with Index.open(topics) as index:
        nearest = {}
        for i, id_ in enumerate(IDS):
            chosen = index.references_of(id_)
            assert chosen is not None
            in_order = sorted(chosen.references, key=lambda one: -one.similarity)
            nearest[TOPICS[i]] = [index.get(one.id).text for one in in_order]
    for most in (1, 2):
        found = made(topics, tmp_path, "--set", "simple", "--negatives", str(most))
        want = [(t, TEXT[t], other) for t in TOPICS for other in nearest[t][:most]]
        assert [tuple(one.values()) for one in found] == want


def test_an_unknown_set(topics: Path, tmp_path: Path) -> None:
    ran = strop("triplets", topics, "-o", tmp_path / "t.jsonl")
    assert (ran.code, ran.stdout) == (1, "")
    assert "no query set 'contrastive'" in ran.stderr
