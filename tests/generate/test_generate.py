"""Queries from a language model: nothing is asked twice, nothing is lost."""

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
    """Answers as it was told to: two queries on the topic of the document. Counts what it saw."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fail: Callable[[int], bool] = lambda count: False

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        if self.fail(len(self.asked)):
            raise RuntimeError("out of order")
        topic = re.findall(r"about the (\w+) number (\d+)", prompt)[0]
        return "".join(
            f"<PLAN>The first tells of it.</PLAN><QUERY>{word} {topic[0]} {topic[1]}</QUERY>"
            for word in ("where stands the", "history and use of the")
        )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", embed) as made:
        made.add(
            {"id": f"d{i}", "text": f"A text about the {TOPICS[i % 8]} number {i}, with more."}
            for i in range(20)
        )
        made.select_references(REFERENCES)
        yield made


def planned(index: Index, writer: Writer, *, name: str = "writer", **settings: Any) -> Generation:
    prompt = PromptSettings(**{"style": "contrastive", **settings})
    return index.generation(writer, GenerationSettings(prompt), name=name)


def test_every_reference_is_asked_about_once(index: Index) -> None:
    writer = Writer()
    chosen = [index.references_of(id_) for id_ in index.ids()]
    expected = sum(len(one.references) for one in chosen if one is not None)
    estimate = planned(index, writer).estimate()
    assert (estimate.documents, estimate.calls, estimate.stored) == (20, expected, 0)
    assert estimate.cost is None
    assert not writer.asked
    summary = planned(index, writer).run()
    spending = summary.spending
    assert (spending.replies, spending.failures, len(writer.asked)) == (expected, 0, expected)
    assert summary.documents == 20
    for i, id_ in enumerate(index.ids()):
        assert index.queries_of(id_)["contrastive"] == [
            f"where stands the {TOPICS[i % 8]} {i}", f"history and use of the {TOPICS[i % 8]} {i}"
        ]  # fmt: skip
    assert index.search("where stands the apple 0", method="consharp:T=0").ids[0, 0] == "d0"


def test_packed_asks_once_for_each_document(index: Index) -> None:
    writer = Writer()
    planned(index, writer, packed=True).run()
    assert len(writer.asked) == 20


def test_a_second_run_asks_nothing(index: Index) -> None:
    writer = Writer()
    planned(index, writer, style="simple").run()
    before = index.info()
    again = Writer()
    summary = planned(index, again, style="simple").run()
    assert (summary.spending.replies, again.asked) == (0, [])
    assert index.info()["sets"] == before["sets"]
    assert planned(index, again, style="simple").estimate().stored == 20


def test_only_what_changed_is_asked_again(index: Index) -> None:
    planned(index, Writer(), style="simple").run()
    index.add([{"id": "d3", "text": "Now about the comet number 77."}])
    writer = Writer()
    planned(index, writer, style="simple").run()
    assert len(writer.asked) == 1
    assert index.queries_of("d3")["simple"][0] == "where stands the comet 77"


def test_another_model_or_prompt_is_another_question(index: Index) -> None:
    planned(index, Writer(), style="simple").run()
    other = Writer()
    planned(index, other, style="simple", name="other").run()
    assert len(other.asked) == 20
    examples = Writer()
    planned(index, examples, style="simple", examples=("what is a comet",)).run()
    assert len(examples.asked) == 20


def test_a_failure_stops_nobody_and_is_asked_again(index: Index) -> None:
    writer = Writer()
    writer.fail = lambda count: count in (4, 9)
    summary = planned(index, writer, style="simple").run()
    assert (summary.spending.replies, summary.spending.failures, summary.documents) == (18, 2, 18)
    assert sum(summary.spending.errors.values()) == 2
    again = Writer()
    summary = planned(index, again, style="simple").run()
    assert (summary.spending.replies, len(again.asked), summary.documents) == (2, 2, 20)


def test_an_interrupted_run_goes_on(index: Index) -> None:
    """Every reply that came is kept; the rest is asked for later, nothing twice."""
    writer = Writer()
    calls = 0

    def stop(label: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned(index, writer, style="simple").run(progress=stop)
    planned(index, writer, style="simple").run()
    assert len(writer.asked) == len(set(writer.asked)) == 20
    assert len(index.queries_of("d19")["simple"]) == 2


def test_replies_are_kept_with_where_they_came_from(index: Index) -> None:
    planned(index, Writer(), style="simple").run()
    found = rows(
        index.path, "SELECT number, lm, settings, text, created FROM replies ORDER BY number"
    )
    assert len(found) == 20
    assert {row[1] for row in found} == {"callable:writer"}
    assert all('"style": "simple"' in row[2] and row[3] and row[4] for row in found)


def test_a_budget_is_not_passed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_API_KEY", "key-for-the-test")
    with ScriptedServer() as server:
        lm = load("openai:scripted", base_url=server.url, concurrency=4)
        settings = GenerationSettings(PromptSettings(style="simple"), max_tokens=100)
        # A reply costs at most a little over 0.10, and that must be free before it is asked for.
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
        planned(index, writer, style="simple").run(budget=1.0)


def test_an_estimate_chooses_no_references_and_says_so(tmp_path: Path) -> None:
    """It counts with the usual number; the run chooses them and the next estimate is exact."""
    with Index.create(tmp_path / "other", embed) as index:
        index.add({"id": f"d{i}", "text": f"A text about the apple number {i}."} for i in range(12))
        for packed, calls in ((False, 12 * EXPECTED_REFERENCES), (True, 12)):
            estimate = planned(index, Writer(), packed=packed).estimate()
            assert (estimate.calls, estimate.unchosen_references) == (calls, 12)
            assert estimate.without_references == 0
            assert estimate.input_tokens > 1000
        assert index.info()["references"] is None
        writer = Writer()
        planned(index, writer).run()
        estimate = planned(index, writer).estimate()
        assert (estimate.calls, estimate.unchosen_references) == (0, 0)
        assert estimate.stored == len(writer.asked) > 12


def test_what_only_reads_needs_no_lock_and_writes_nothing(index: Index) -> None:
    planned(index, Writer(), style="simple").run()
    before = (index.path / "catalog.sqlite").read_bytes()
    with FileLock(index.path / "writer.lock"):
        assert planned(index, Writer(), style="simple").estimate().stored == 20
        assert planned(index, Writer()).estimate().calls > 20
        assert len(list(planned(index, Writer(), style="simple").lists())) == 20
        with pytest.raises(IndexBusy):
            planned(index, Writer(), style="simple").run()
    assert (index.path / "catalog.sqlite").read_bytes() == before


def test_a_document_without_neighbours_is_left_out(tmp_path: Path) -> None:
    with Index.create(tmp_path / "other", embed) as index:
        index.add([{"id": "1", "text": "A text about the apple number 1."}])
        index.select_references(REFERENCES)
        estimate = planned(index, Writer()).estimate()
        assert (estimate.calls, estimate.without_references) == (0, 1)


def test_all_queries_of_all_references_are_pooled(index: Index) -> None:
    """As in the paper: a limit only where one is given."""

    def many(prompt: str) -> str:
        numbers = re.findall(r"number (\d+)", prompt)
        assert "at most" not in prompt.replace("loosely at most", "")
        words = "origin cost price tools danger season music history law trade water wood".split()
        return "".join(f"<QUERY>{word} of {' '.join(numbers)}</QUERY>" for word in words)

    index.generation(many, name="many").run()
    for id_ in index.ids():
        selected = index.references_of(id_)
        assert selected is not None
        assert len(index.queries_of(id_)["contrastive"]) == 12 * len(selected.references)


def test_long_documents_are_counted_by_the_estimate(index: Index) -> None:
    index.add([{"id": "long", "text": "word " * 2000}])
    estimate = planned(index, Writer(), style="simple").estimate()
    assert estimate.cut_documents == 1
    whole = planned(index, Writer(), style="simple", document_chars=None).estimate()
    assert whole.cut_documents == 0
    assert whole.input_tokens > estimate.input_tokens + 400


def test_replies_can_be_kept_while_lists_are_made(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of many documents take minutes; a search that expands queries must not wait."""
    generation = planned(index, Writer(), style="simple")
    generation.plan.run()
    lists, written = generation.plan.lists, 0

    def slow_lists() -> Iterator[Any]:
        nonlocal written
        for one in lists():
            other = sqlite3.connect(index.path / "catalog.sqlite", timeout=0)
            other.execute("UPDATE replies SET seconds = 1")
            other.commit()
            other.close()
            written += 1
            yield one

    monkeypatch.setattr(generation.plan, "lists", slow_lists)
    assert generation.run().documents == written == 20
    assert len(index.queries_of("d19")["simple"]) == 2


def test_documents_of_one_text_are_asked_about_once_wherever_they_stand(tmp_path: Path) -> None:
    """Also where the first is being answered while questions further on are looked up."""
    texts = [f"A text about the {TOPICS[i % 8]} number {i}, with more." for i in range(70)]
    for first, again in ((31, 35), (31, 64), (0, 1)):
        texts[again] = texts[first]
    writer = Writer()
    with Index.create(tmp_path / "twins", embed) as index:
        index.add({"id": f"d{i}", "text": text} for i, text in enumerate(texts))
        summary = planned(index, writer, style="simple").run()
        assert len(writer.asked) == len(set(writer.asked)) == 67
        assert (summary.spending.replies, summary.documents) == (67, 70)
