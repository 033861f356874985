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


def write_triplets(topics: Path, tmp_path: Path, *args: str) -> list[dict[str, str]]:
    file = tmp_path / "triplets.jsonl"
    report = strop("triplets", topics, "-o", file, *args, "--json").json
    triplets = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert report == {"triplets": len(triplets), "file": str(file)}
    assert {tuple(row) for row in triplets} == {("query", "positive", "negative")}
    return triplets


@pytest.mark.parametrize("style", ["contrastive", "negative"])
def test_the_negative_is_the_reference_of_the_query(
    topics: Path, server: ScriptedServer, tmp_path: Path, style: str
) -> None:
    server.text = lambda prompt: "<QUERY>{} not {}</QUERY>".format(*topics_in(prompt))
    run(topics, server, "--style", style)
    triplets = write_triplets(topics, tmp_path, "--set", style)
    assert len(triplets) == sum(map(len, query_lists(topics, style).values())) > 24
    for row in triplets:
        own, other = row["query"].split(" not ")
        pair = [TEXT[own], TEXT[other]]
        assert [row["positive"], row["negative"]] == (pair if style != "negative" else pair[::-1])


def test_packed_queries_name_their_references(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    def text(prompt: str) -> str:
        own, *others = topics_in(prompt)
        return f"<AGAINST>{len(others)}</AGAINST><QUERY>{own} not {others[-1]}</QUERY>"

    server.text = text
    run(topics, server, "--style", "contrastive", "--packed")
    triplets = write_triplets(topics, tmp_path, "--negatives", "3")
    assert len(triplets) == 12
    for row in triplets:
        own, other = row["query"].split(" not ")
        assert (row["positive"], row["negative"]) == (TEXT[own], TEXT[other])


@pytest.mark.parametrize("source", ["lm", "file"])
def test_queries_without_a_reference_take_the_nearest(
    topics: Path, server: ScriptedServer, tmp_path: Path, source: str
) -> None:
    if source == "lm":
        server.text = lambda prompt: f"<QUERY>{topics_in(prompt)[0]}</QUERY>"
        run(topics, server, "--style", "simple")
    else:
        lines = jsonl(*({"id": f"d{i}", "queries": [TOPICS[i]]} for i in range(12)))
        assert strop("queries", topics, "--file", "-", "--style", "simple", stdin=lines).code == 0
    refused = strop("triplets", topics, "-o", tmp_path / "t.jsonl", "--set", "simple")
    assert refused.code == 1
    assert "strop references" in refused.stderr
    assert not (tmp_path / "t.jsonl").exists()
    assert strop("references", topics).code == 0
    with Index.open(topics) as index:
        nearest = {}
        for i, id_ in enumerate(IDS):
            selected = index.references_of(id_)
            assert selected is not None
            by_similarity = sorted(selected.references, key=lambda ref: -ref.similarity)
            nearest[TOPICS[i]] = [index.get(ref.id).text for ref in by_similarity]
    for count in (1, 2):
        triplets = write_triplets(topics, tmp_path, "--set", "simple", "--negatives", str(count))
        expected = [(t, TEXT[t], other) for t in TOPICS for other in nearest[t][:count]]
        assert [tuple(row.values()) for row in triplets] == expected


def test_an_unknown_set(topics: Path, tmp_path: Path) -> None:
    result = strop("triplets", topics, "-o", tmp_path / "t.jsonl")
    assert (result.code, result.stdout) == (1, "")
    assert "no query set 'contrastive'" in result.stderr
