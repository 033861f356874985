"""Generation: no request is sent twice, no reply is lost."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from helpers.generation import rows
from helpers.scripted_server import ScriptedServer

from strop import Index, ReferenceSettings
from strop.errors import BadInput, IndexBusy
from strop.generate import Generation, GenerationSettings, PromptSettings
from strop.generate.plan import EXPECTED_REFERENCES
from strop.lm import load
from strop.lm.prices import Price

REFERENCES = ReferenceSettings(neighbors=8, smallest=2, largest=3, n_init=2)
TOPICS = "apple river stone cloud forest engine harbour violin".split()


def embed(texts: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=16) for text in texts]
    return np.array(rows)


class Writer:
    """A model that replies with two queries on the document's topic, and records its prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.fails: Callable[[int], bool] = lambda count: False

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if self.fails(len(self.prompts)):
            raise RuntimeError("out of order")
        topic = re.findall(r"about the (\w+) number (\d+)", prompt)[0]
        return "".join(
            f"<PLAN>The first tells of it.</PLAN><QUERY>{word} {topic[0]} {topic[1]}</QUERY>"
            for word in ("where stands the", "history and use of the")
        )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", embed) as opened:
        opened.add(
            {"id": f"d{i}", "text": f"A text about the {TOPICS[i % 8]} number {i}, with more."}
            for i in range(20)
        )
        opened.select_references(REFERENCES)
        yield opened


def prepare(index: Index, writer: Writer, *, name: str = "writer", **settings: Any) -> Generation:
    prompt = PromptSettings(**{"style": "contrastive", **settings})
    return index.generation(writer, GenerationSettings(prompt), name=name)


def test_one_request_per_reference(index: Index) -> None:
    writer = Writer()
    selections = [index.references_of(id_) for id_ in index.ids()]
    expected = sum(len(selected.references) for selected in selections if selected is not None)
    estimate = prepare(index, writer).estimate()
    assert (estimate.documents, estimate.calls, estimate.stored) == (20, expected, 0)
    assert estimate.cost is None
    assert not writer.prompts
    summary = prepare(index, writer).run()
    spending = summary.spending
    assert (spending.replies, spending.failures, len(writer.prompts)) == (expected, 0, expected)
    assert summary.documents == 20
    for i, id_ in enumerate(index.ids()):
        assert index.queries_of(id_)["contrastive"] == [
            f"where stands the {TOPICS[i % 8]} {i}", f"history and use of the {TOPICS[i % 8]} {i}"
        ]  # fmt: skip
    assert index.search("where stands the apple 0", method="consharp:T=0").ids[0, 0] == "d0"


def test_packed_sends_one_request_per_document(index: Index) -> None:
    writer = Writer()
    prepare(index, writer, packed=True).run()
    assert len(writer.prompts) == 20


def test_a_second_run_sends_no_request(index: Index) -> None:
    writer = Writer()
    prepare(index, writer, style="simple").run()
    before = index.info()
    again = Writer()
    summary = prepare(index, again, style="simple").run()
    assert (summary.spending.replies, again.prompts) == (0, [])
    assert index.info()["sets"] == before["sets"]
    assert prepare(index, again, style="simple").estimate().stored == 20


def test_only_changed_documents_are_sent_again(index: Index) -> None:
    prepare(index, Writer(), style="simple").run()
    index.add([{"id": "d3", "text": "Now about the comet number 77."}])
    writer = Writer()
    prepare(index, writer, style="simple").run()
    assert len(writer.prompts) == 1
    assert index.queries_of("d3")["simple"][0] == "where stands the comet 77"


def test_another_model_or_prompt_makes_new_requests(index: Index) -> None:
    prepare(index, Writer(), style="simple").run()
    other = Writer()
    prepare(index, other, style="simple", name="other").run()
    assert len(other.prompts) == 20
    examples = Writer()
    prepare(index, examples, style="simple", examples=("what is a comet",)).run()
    assert len(examples.prompts) == 20


def test_failures_do_not_stop_a_run_and_are_retried(index: Index) -> None:
    writer = Writer()
    writer.fails = lambda count: count in (4, 9)
    summary = prepare(index, writer, style="simple").run()
    assert (summary.spending.replies, summary.spending.failures, summary.documents) == (18, 2, 18)
    assert sum(summary.spending.errors.values()) == 2
    again = Writer()
    summary = prepare(index, again, style="simple").run()
    assert (summary.spending.replies, len(again.prompts), summary.documents) == (2, 2, 20)


def test_an_interrupted_run_can_be_resumed(index: Index) -> None:
    """All replies are stored; a second run sends only the other requests."""
    writer = Writer()
    calls = 0

    def stop(label: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(index, writer, style="simple").run(progress=stop)
    prepare(index, writer, style="simple").run()
    assert len(writer.prompts) == len(set(writer.prompts)) == 20
    assert len(index.queries_of("d19")["simple"]) == 2


def test_replies_are_stored_with_provenance(index: Index) -> None:
    prepare(index, Writer(), style="simple").run()
    replies = rows(
        index.path, "SELECT number, lm, settings, text, created FROM replies ORDER BY number"
    )
    assert len(replies) == 20
    assert {row[1] for row in replies} == {"callable:writer"}
    assert all('"style": "simple"' in row[2] and row[3] and row[4] for row in replies)


def test_a_budget_is_not_exceeded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_API_KEY", "key-for-the-test")
    with ScriptedServer() as server:
        lm = load("openai:scripted", base_url=server.url, concurrency=4)
        settings = GenerationSettings(PromptSettings(style="simple"), max_tokens=100)
        # A reply costs at most a little over 0.10: that much must be left for a request.
        plan = index.generation(lm, settings, price=Price(1.0, 1_000.0))
        summary = plan.run(budget=0.2)
        assert summary.spending.stopped
        assert summary.spending.cost is not None
        assert 0 < summary.spending.cost <= 0.2
        assert len(server.bodies) == summary.spending.replies < 20
        unlimited = index.generation(lm, settings, price=Price(1.0, 1_000.0))
        assert unlimited.run().spending.replies == 20 - summary.spending.replies
        assert len(server.bodies) == 20
    writer = Writer()
    with pytest.raises(BadInput, match="is not known"):
        prepare(index, writer, style="simple").run(budget=1.0)


def test_an_estimate_selects_no_references(tmp_path: Path) -> None:
    """It assumes the expected number; after a run, which selects them, it is exact."""
    with Index.create(tmp_path / "other", embed) as index:
        index.add({"id": f"d{i}", "text": f"A text about the apple number {i}."} for i in range(12))
        for packed, calls in ((False, 12 * EXPECTED_REFERENCES), (True, 12)):
            estimate = prepare(index, Writer(), packed=packed).estimate()
            assert (estimate.calls, estimate.unchosen_references) == (calls, 12)
            assert estimate.without_references == 0
            assert estimate.input_tokens > 1000
        assert index.info()["references"] is None
        writer = Writer()
        prepare(index, writer).run()
        estimate = prepare(index, writer).estimate()
        assert (estimate.calls, estimate.unchosen_references) == (0, 0)
        assert estimate.stored == len(writer.prompts) > 12


def test_estimates_and_lists_need_no_lock_and_write_nothing(index: Index) -> None:
    prepare(index, Writer(), style="simple").run()
    before = (index.path / "catalog.sqlite").read_bytes()
    with FileLock(index.path / "writer.lock"):
        assert prepare(index, Writer(), style="simple").estimate().stored == 20
        assert prepare(index, Writer()).estimate().calls > 20
        assert len(list(prepare(index, Writer(), style="simple").lists())) == 20
        with pytest.raises(IndexBusy):
            prepare(index, Writer(), style="simple").run()
    assert (index.path / "catalog.sqlite").read_bytes() == before


def test_a_document_without_neighbors_is_left_out(tmp_path: Path) -> None:
    with Index.create(tmp_path / "other", embed) as index:
        index.add([{"id": "1", "text": "A text about the apple number 1."}])
        index.select_references(REFERENCES)
        estimate = prepare(index, Writer()).estimate()
        assert (estimate.calls, estimate.without_references) == (0, 1)


def test_all_queries_of_all_references_are_pooled(index: Index) -> None:
    """As in the paper: there is a limit only if one is given."""

    def write_twelve(prompt: str) -> str:
        numbers = re.findall(r"number (\d+)", prompt)
        assert "at most" not in prompt.replace("loosely at most", "")
        words = "origin cost price tools danger season music history law trade water wood".split()
        return "".join(f"<QUERY>{word} of {' '.join(numbers)}</QUERY>" for word in words)

    index.generation(write_twelve, name="many").run()
    for id_ in index.ids():
        selected = index.references_of(id_)
        assert selected is not None
        assert len(index.queries_of(id_)["contrastive"]) == 12 * len(selected.references)


def test_the_estimate_counts_truncated_documents(index: Index) -> None:
    index.add([{"id": "long", "text": "word " * 2000}])
    estimate = prepare(index, Writer(), style="simple").estimate()
    assert estimate.cut_documents == 1
    whole = prepare(index, Writer(), style="simple", document_chars=None).estimate()
    assert whole.cut_documents == 0
    assert whole.input_tokens > estimate.input_tokens + 400


def test_replies_can_be_stored_while_lists_are_made(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of many documents take minutes; a search that expands queries must not wait."""
    generation = prepare(index, Writer(), style="simple")
    generation.plan.run()
    lists, written = generation.plan.lists, 0

    def slow_lists() -> Iterator[Any]:
        nonlocal written
        for list_ in lists():
            connection = sqlite3.connect(index.path / "catalog.sqlite", timeout=0)
            connection.execute("UPDATE replies SET seconds = 1")
            connection.commit()
            connection.close()
            written += 1
            yield list_

    monkeypatch.setattr(generation.plan, "lists", slow_lists)
    assert generation.run().documents == written == 20
    assert len(index.queries_of("d19")["simple"]) == 2


def test_equal_texts_share_one_request_at_any_distance(tmp_path: Path) -> None:
    """Also if the first is in flight while later requests are looked up."""
    texts = [f"A text about the {TOPICS[i % 8]} number {i}, with more." for i in range(70)]
    for first, again in ((31, 35), (31, 64), (0, 1)):
        texts[again] = texts[first]
    writer = Writer()
    with Index.create(tmp_path / "twins", embed) as index:
        index.add({"id": f"d{i}", "text": text} for i, text in enumerate(texts))
        summary = prepare(index, writer, style="simple").run()
        assert len(writer.prompts) == len(set(writer.prompts)) == 67
        assert (summary.spending.replies, summary.documents) == (67, 70)
