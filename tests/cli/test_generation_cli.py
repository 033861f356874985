"""Queries written by a service, through the command: what is asked, kept, said and paid for."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from helpers.commands import jsonl, strop
from helpers.generation import (
    IDS,
    KEY,
    TOPICS,
    asked,
    command,
    count,
    document_of,
    everything,
    lists,
    record,
    rows,
    run,
    topics_in,
)
from helpers.scripted_server import Answer, ScriptedServer, Seen, answer, user_text

from strop import Index
from strop.generate import GenerationSettings, PromptSettings
from strop.generate.plan import EXPECTED_REFERENCES
from strop.generate.prompts import PROMPT_VERSION
from strop.lm.prices import Price
from strop.storage.replies import Replies

SIMPLE = ("--style", "simple")
PRICE = ("--price", "1,1000", "--max-tokens", "100")
"""A reply may cost 0.10 USD and a little, and costs about a fifth of that."""


def let_fail(server: ScriptedServer, fate: dict[str, int]) -> None:
    """Let calls about some documents fail with a status."""

    def act(seen: Seen) -> Answer:
        status = fate.get(document_of(seen))
        if status is None:
            return server.respond(seen)
        return Answer(status, {"error": {"message": f"no, {KEY}!"}})

    server.act = act


# -- the styles ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "lm"),
    [("contrastive", "openai:m"), ("simple", "anthropic:m"), ("negative", "openai:m")],
)
def test_a_style_is_asked_for_and_stored(
    topics: Path, server: ScriptedServer, style: str, lm: str
) -> None:
    """References are chosen by themselves; each is asked about once, and never again."""
    ran = run(topics, server, "--style", style, lm=lm)
    with Index.open(topics) as index:
        chosen = {id_: index.references_of(id_) for id_ in IDS}
    calls = len(IDS)
    if style != "simple":
        calls = sum(len(one.references) for one in chosen.values() if one is not None)
        assert calls >= 2 * len(IDS)
    assert asked(server) == calls == count(topics, "replies")
    made = lists(topics, style)
    assert set(made) == set(IDS)
    for i, id_ in enumerate(IDS):
        assert made[id_][0] == f"how do {TOPICS[i]} work"
        found = chosen[id_]
        others = [TOPICS[IDS.index(one.id)] for one in found.references] if found else ["nothing"]
        assert made[id_][1:] == [f"{TOPICS[i]} explained without {other}" for other in others]
    told = sum(map(len, made.values()))
    assert f"set {style}: {told} queries for 12 documents; {calls} new replies" in ran.stdout
    again = run(topics, server, "--style", style, lm=lm)
    assert asked(server) == calls
    assert f"set {style}: {told} queries for 12 documents; 0 new replies" in again.stdout
    assert lists(topics, style) == made


def test_packed_asks_once_for_each_document(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, "--style", "contrastive", "--packed")
    assert asked(server) == len(IDS)
    with Index.open(topics) as index:
        for body in server.bodies:
            shown = topics_in(user_text(body))
            chosen = index.references_of(f"d{TOPICS.index(shown[0])}")
            assert chosen is not None
            assert shown[1:] == [TOPICS[IDS.index(one.id)] for one in chosen.references]


def test_negative_queries_are_not_mixed_in(topics: Path, server: ScriptedServer) -> None:
    """They belong to other documents: no method takes them unless it is told to."""
    plain = strop("search", topics, "how do river dams work", "--json").json
    run(topics, server, "--style", "negative")
    with_negative = strop("search", topics, "how do river dams work", "--json").json
    assert with_negative == plain
    run(topics, server, *SIMPLE)
    with Index.open(topics) as index:
        for method in ("sharp", None):
            default = index.search(TOPICS, 12, method)
            told = index.search(TOPICS, 12, "sharp", sets=["simple"])
            assert np.array_equal(default.scores, told.scores)
        mixed = index.search(TOPICS, 12, "sharp", sets=["simple", "negative"])
        assert not np.array_equal(mixed.scores, told.scores)


def test_what_is_asked_for_is_in_the_prompt(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    text, lines = tmp_path / "examples.txt", tmp_path / "examples.jsonl"
    text.write_text("what is a comet\n\nwho was Euler\n")
    lines.write_text(jsonl({"text": "what is a comet"}, {"_id": "2", "query": "who was Euler"}))
    one = ("--limit", "1", *SIMPLE)
    run(topics, server, *one, "--examples", text, "--noun", "counter-argument passage")
    (body,) = server.bodies
    system = body["messages"][0]["content"]
    assert "<EXAMPLE>what is a comet</EXAMPLE>\n<EXAMPLE>who was Euler</EXAMPLE>" in system
    assert "counter-argument passages" in system
    assert "at most" not in system.replace("loosely at most", "")
    run(topics, server, *one, "--examples", lines, "--noun", "counter-argument passage")
    assert asked(server) == 1  # the same examples are the same question
    run(topics, server, *one)
    assert "EXAMPLE" not in server.bodies[-1]["messages"][0]["content"]


def test_the_limit_and_the_set_can_be_chosen(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE, "--limit", "3", "--set", "mine")
    assert asked(server) == 3
    assert list(lists(topics, "mine")) == ["d0", "d1", "d2"]
    assert set(strop("info", topics, "--json").json["sets"]) == {"mine"}
    run(topics, server, *SIMPLE, "--set", "mine")
    assert asked(server) == 12
    run(topics, server, *SIMPLE, "--set", "mine", "--limit", "1")
    assert len(lists(topics, "mine")) == 12  # a smaller limit takes nothing away
    run(topics, server, *SIMPLE)
    assert asked(server) == 12  # the same questions, for another set
    assert lists(topics, "simple") == lists(topics, "mine")


def test_most_queries_of_a_document(topics: Path, server: ScriptedServer) -> None:
    """The bound holds for a document; each of its calls is asked for a share."""

    def many(prompt: str) -> str:
        own, *others = topics_in(prompt)
        words = "origin cost price tools danger season music history law trade".split()
        return "".join(f"<QUERY>{word} of {own} against {others}</QUERY>" for word in words)

    server.text = many
    run(topics, server, "--style", "contrastive", "--max-queries", "4")
    made = lists(topics, "contrastive")
    assert {len(texts) for texts in made.values()} == {4}
    shares = Counter(
        re.search(r"\(at most (\d+)\)", body["messages"][0]["content"])[1]  # type: ignore[index]
        for body in server.bodies
    )
    with Index.open(topics) as index:
        sizes = [len(index.references_of(id_).references) for id_ in IDS]  # type: ignore[union-attr]
    assert shares == sum((Counter({str(min(4, -(-4 // k) + 1)): k}) for k in sizes), Counter())
    for id_ in IDS:  # and all references get their turn
        used = {text.rpartition("against")[2] for text in made[id_]}
        assert len(used) == min(4, sizes[IDS.index(id_)])


def test_samples_ask_the_same_again(topics: Path, server: ScriptedServer) -> None:
    replies = iter(range(100))
    server.text = lambda prompt: f"<QUERY>{topics_in(prompt)[0]} sort {next(replies)}</QUERY>"
    run(topics, server, *SIMPLE, "--samples", "3", "--limit", "2", "--temperature", "0.5")
    assert asked(server) == 6
    assert {body["temperature"] for body in server.bodies} == {0.5}
    assert [len(texts) for texts in lists(topics, "simple").values()] == [3, 3]
    run(topics, server, *SIMPLE, "--samples", "2", "--limit", "2", "--temperature", "0.5")
    assert asked(server) == 6  # two of these are there


# -- what is kept ----------------------------------------------------------------------------


def test_where_a_reply_comes_from_is_kept(topics: Path, server: ScriptedServer) -> None:
    extra = ("--lm-option", 'extra={"seed": 7}')
    run(topics, server, *SIMPLE, "--limit", "2", "--temperature", "0.5", *extra)
    found = rows(
        topics,
        "SELECT number, lm, options, settings, model, text, truncated, input_tokens,"
        " output_tokens, seconds, created FROM replies ORDER BY number",
    )
    assert len(found) == 2
    for i, (_, lm, options, settings, model, text, cut, given, got, seconds, at) in enumerate(
        found
    ):
        assert (lm, model, cut) == ("openai:m", "m-2026-01-01", 0)
        assert json.loads(options)["extra"] == {"seed": 7}
        assert json.loads(options)["base_url"] == server.url
        told = json.loads(settings)
        assert (told["temperature"], told["max_tokens"], told["samples"]) == (0.5, 2000, 1)
        assert told["prompt"]["style"] == "simple"
        assert told["prompt"]["prompts"] == PROMPT_VERSION
        assert text == server.text(record(i)["text"])
        assert given > 20
        assert got == len(text) // 4
        assert seconds > 0
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", at)
    assert {body["seed"] for body in server.bodies} == {7}


def test_the_key_is_kept_nowhere(topics: Path, server: ScriptedServer, tmp_path: Path) -> None:
    """Not even where a service repeats it in an error."""
    let_fail(server, {"d1": 400, "d2": 500})
    out = ("--queries-out", tmp_path / "made.jsonl")
    said = [
        run(topics, server, *SIMPLE, *out), run(topics, server, *SIMPLE, "--json"),
        run(topics, server, *SIMPLE, "--dry-run"),
        run(topics, server, *SIMPLE, "--requests-out", tmp_path / "requests.jsonl"),
    ]  # fmt: skip
    assert all(KEY not in ran.stdout + ran.stderr for ran in said)
    assert "no, ***!" in said[0].stderr
    assert b"no, ***!" in everything(topics)
    assert KEY.encode() not in everything(tmp_path)  # the index is in there too
    server.key = "sk-another"
    refused = strop(*command(topics, server, *SIMPLE, "--retry-failed", "--limit", "2"))
    assert refused.code == 1
    assert KEY not in refused.stderr
    assert KEY.encode() not in everything(tmp_path)


def test_an_interruption_in_the_midst_of_keeping_loses_nothing(
    topics: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while replies are written down: they come back with the transaction undone."""
    save = Replies.save
    calls = 0

    def interrupted(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        save(*given)

    monkeypatch.setattr(Replies, "save", interrupted)
    ran = strop(*command(topics, server, *SIMPLE, "--concurrency", "1"))
    assert ran.code == 130
    assert 2 <= asked(server) < 12
    assert count(topics, "replies") == asked(server)
    run(topics, server, *SIMPLE)
    assert asked(server) == 12


def test_an_interruption_after_a_commit_loses_nothing_that_is_under_way(
    topics: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while what was kept is crossed off: the other replies are still written down."""
    calls = 0

    def interrupted(text: str) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return len(text) // 4

    server.usage = lambda body: {}  # then tokens are counted as replies are crossed off
    monkeypatch.setattr("strop.generate.calls.count_tokens", interrupted)
    ran = strop(*command(topics, server, *SIMPLE, "--price", "1,1", "--concurrency", "4"))
    assert ran.code == 130
    assert count(topics, "replies") == asked(server) > 0


def test_documents_of_one_text_are_one_question(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    twins = [{**record(i), "id": f"twin{i}-{n}"} for i in (2, 3) for n in range(3)]
    assert strop("add", topics, "-", stdin=jsonl(*twins)).code == 0
    out = tmp_path / "requests.jsonl"
    assert run(topics, server, *SIMPLE, "--requests-out", out, "--json").json["requests"] == 12
    told = run(topics, server, *SIMPLE, "--concurrency", "8", "--json").json
    assert (told["replies"], told["documents"], asked(server)) == (12, 18, 12)
    made = lists(topics, "simple")
    assert made["twin2-1"] == made["d2"]
    run(topics, server, "--style", "contrastive", "--concurrency", "8")  # twins as references
    prompts = Counter(user_text(seen.body) for seen in server.seen[12:])
    assert set(prompts.values()) == {1}
    assert run(topics, server, *SIMPLE, "--batch", "submit", "--noun", "question", "--json").json[
        "batches"
    ] == {"batch_0": 12}  # fmt: skip


def test_where_nothing_is_left_to_ask_no_service_is_opened(
    topics: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without the key can go on with what is there."""
    run(topics, server, *SIMPLE)

    def opened(*given: Any) -> None:
        raise AssertionError("a client was made")

    monkeypatch.setattr("strop.lm.service.ServiceLM.complete", opened)
    assert run(topics, server, *SIMPLE, "--json").json["documents"] == 12


# -- before anything is paid -------------------------------------------------------------------


def test_an_estimate_asks_nothing(topics: Path, server: ScriptedServer) -> None:
    args = ("--style", "contrastive", "--json")
    dry = run(topics, server, *args, "--dry-run").json
    assert not server.seen
    assert dry["host"] == f"127.0.0.1:{server.port}"
    assert dry["documents"] == 12
    assert (dry["cost"], dry["stored"], dry["guessed"]) == (None, 0, True)
    assert dry["seconds"] > 0
    assert dry["packed"]["calls"] == 12
    assert dry["unchosen_references"] == 12
    assert dry["calls"] == 12 * EXPECTED_REFERENCES
    assert strop("references", topics).code == 0
    dry = run(topics, server, *args, "--dry-run").json
    assert dry["unchosen_references"] == 0
    assert dry["packed"]["input_tokens"] < dry["input_tokens"]
    run(topics, server, "--style", "contrastive")
    assert dry["calls"] == asked(server)
    texts = [body["messages"][0]["content"] + user_text(body) for body in server.bodies]
    tokens = sum(len(text) / 4 for text in texts)
    assert tokens <= dry["input_tokens"] <= 1.05 * tokens
    after = run(topics, server, *args, "--dry-run").json
    assert (after["calls"], after["stored"], after["input_tokens"]) == (0, dry["calls"], 0)


def test_an_estimate_for_people(topics: Path, server: ScriptedServer) -> None:
    said = run(topics, server, "--style", "contrastive", "--dry-run").stdout
    for words in (
        "by openai:m", f"127.0.0.1:{server.port}", "tokens in", "tokens out", "unknown: give",
        "with --packed", "12 calls",
    ):  # fmt: skip
        assert words in said
    given = run(topics, server, *SIMPLE, "--dry-run", "--price", "1,2").stdout
    assert "the given price" in given
    assert not server.seen
    assert "not selected yet for 12 documents: estimated at 4 each" in " ".join(said.split())
    cut = run(topics, server, *SIMPLE, "--dry-run", "--document-chars", "20").stdout
    assert "(12 truncated at 20 characters: --document-chars)" in cut
    known = strop("queries", topics, "--lm", "openai:gpt-4.1-nano", *SIMPLE, "--dry-run")
    assert (known.code, known.stderr) == (0, "")
    assert "api.openai.com" in known.stdout
    assert "list price of 20" in known.stdout


def test_an_estimate_says_that_a_key_is_missing(
    topics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STROP_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    ran = strop("queries", topics, "--lm", "openai:gpt-4.1-nano", *SIMPLE, "--dry-run")
    assert ran.code == 0
    assert "a run would be refused: api.openai.com needs a key; set" in " ".join(ran.stderr.split())


def test_an_estimate_asks_for_no_key_where_a_run_signs_its_calls(
    topics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore", reason="needs strop[bedrock]")
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)  # as with the role of a machine
    bedrock = ("--lm-option", "bedrock=true", "--lm-option", "region=eu-west-1")
    ran = strop("queries", topics, "--lm", "anthropic:m", *bedrock, *SIMPLE, "--dry-run")
    assert (ran.code, ran.stderr) == (0, "")


def test_the_price_of_an_estimate(topics: Path, server: ScriptedServer) -> None:
    given = run(topics, server, *SIMPLE, "--dry-run", "--price", "3,5", "--json").json
    cost = (given["input_tokens"] * 3 + given["output_tokens"] * 5) / 1e6
    assert given["cost"] == pytest.approx(cost)
    how = (*SIMPLE, "--price", "3,5", "--json", "--dry-run", "--batch", "submit")
    assert run(topics, server, *how).json["cost"] == pytest.approx(cost / 2)
    run(topics, server, *SIMPLE, "--limit", "4")
    server.seen.clear()
    seen = run(topics, server, *SIMPLE, "--dry-run", "--json").json
    got = rows(topics, "SELECT avg(output_tokens) FROM replies")[0][0]
    assert (seen["calls"], seen["stored"], seen["guessed"]) == (8, 4, False)
    assert seen["output_tokens"] == round(8 * got)
    assert not server.seen


def test_a_budget_ends_a_run_and_a_higher_one_goes_on(topics: Path, server: ScriptedServer) -> None:
    ran = run(topics, server, *SIMPLE, *PRICE, "--budget", "0.15", "--concurrency", "2", "--json")
    told = ran.json
    assert 0 < told["replies"] < 12
    assert told["replies"] == asked(server) == count(topics, "replies")
    assert 0 < told["cost"] <= 0.15
    assert "budget of 0.15 USD" in told["stopped"]
    assert len(lists(topics, "simple")) == told["replies"]
    for how in (("--batch", "submit"), ()):  # one call can cost more than that
        small = strop(*command(topics, server, *SIMPLE, *PRICE, "--budget", "0.001", *how))
        assert small.code == 1
        assert "exceed the budget of 0.001 USD" in small.stderr
        (needed,) = re.findall(r"Give --budget (\S+) or more", small.stderr)
        assert asked(server) == told["replies"]
        assert not server.batches
    again = run(topics, server, *SIMPLE, *PRICE, "--budget", needed, "--noun", "question", "--json")
    assert again.json["replies"] >= 1
    server.seen.clear()
    people = run(topics, server, *SIMPLE, *PRICE, "--budget", "0.15", "--concurrency", "2")
    assert "To spend as much again: strop queries" in people.stderr
    run(topics, server, *SIMPLE, *PRICE, "--budget", "100")
    assert asked(server) == 12 - told["replies"]


def test_a_budget_needs_a_price(topics: Path, server: ScriptedServer) -> None:
    ran = strop(*command(topics, server, *SIMPLE, "--budget", "5"))
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1
    assert "the price of openai:m is not known" in ran.stderr
    assert "--price" in ran.stderr
    for how in ((), ("--batch", "submit")):
        no_number = strop(*command(topics, server, *SIMPLE, *PRICE, "--budget", "nan", *how))
        assert (no_number.code, no_number.stdout) == (1, "")
        assert "the budget is nan" in no_number.stderr
    assert not server.seen


def test_a_budget_holds_where_a_service_counts_no_tokens(
    topics: Path, server: ScriptedServer
) -> None:
    """Many servers leave the usage out: tokens are counted here then."""
    server.usage = lambda body: {}
    told = run(
        topics, server, *SIMPLE, *PRICE, "--budget", "0.25", "--concurrency", "1", "--json"
    ).json
    assert "budget" in told["stopped"]
    texts = [text for (text,) in rows(topics, "SELECT text FROM replies")]
    assert 0 < len(texts) < 12
    assert told["cost"] == pytest.approx(sum(len(text) / 4 for text in texts) / 1000, rel=0.1)


def test_a_budget_counts_what_is_written_to_a_cache(topics: Path, server: ScriptedServer) -> None:
    """Anthropic asks more for tokens that it puts into its cache."""
    price = Price(1000.0, 0.0, 100.0, 1250.0)
    server.usage = lambda body: {
        "input_tokens": 0, "output_tokens": 1, "cache_creation_input_tokens": 400,
    }  # fmt: skip
    with Index.open(topics) as index:
        settings = GenerationSettings(PromptSettings(style="simple"), max_tokens=10)
        plan = index.generation(
            "anthropic:m", settings, price=price, base_url=server.root, concurrency=1
        )
        one = plan.estimate().input_tokens / 12
        budget = 2.1 * one / 1e6 * 1250.0
        spending = plan.run(budget=budget).spending
    assert spending.cost is not None
    assert 0 < spending.cost <= budget
    assert spending.replies < 12


# -- failures ----------------------------------------------------------------------------------


def test_failures_are_counted_and_asked_again_by_the_printed_command(
    topics: Path, server: ScriptedServer
) -> None:
    let_fail(server, {"d1": 400, "d3": 500, "d5": 400})
    ran = run(topics, server, *SIMPLE)
    assert "3 requests failed: " in ran.stderr
    assert "answered 400: no, ***!" in ran.stderr
    assert set(lists(topics, "simple")) == set(IDS) - {"d1", "d3", "d5"}
    assert asked(server) == 13  # one was repeated
    server.act = server.respond
    retry = shlex.split(ran.stderr.splitlines()[-1].partition("to send only these again: ")[2])
    assert (retry[0], retry.count("--retry-failed")) == ("strop", 1)
    # The same command again: what failed for good is left alone.
    server.seen.clear()
    run(topics, server, *SIMPLE)
    assert [document_of(seen) for seen in server.seen] == ["d3"]
    # The printed command: just what failed.
    server.seen.clear()
    assert strop(*retry[1:]).code == 0
    assert sorted(document_of(seen) for seen in server.seen) == ["d1", "d5"]
    assert set(lists(topics, "simple")) == set(IDS)
    assert count(topics, "failures") == 0
    server.seen.clear()
    assert strop(*retry[1:]).code == 0
    assert not server.seen


def test_the_printed_command_leaves_out_what_was_for_one_run(
    topics: Path, server: ScriptedServer
) -> None:
    let_fail(server, {"d1": 400})
    first = run(topics, server, *SIMPLE).stderr.splitlines()[-1]
    second = run(topics, server, *SIMPLE, "--retry-failed", "--again").stderr.splitlines()[-1]
    assert first == second


def test_retrying_asks_just_what_failed(topics: Path, server: ScriptedServer) -> None:
    let_fail(server, {"d1": 400, "d3": 500})
    run(topics, server, *SIMPLE, "--limit", "6")
    server.act = server.respond
    server.seen.clear()
    run(topics, server, *SIMPLE, "--retry-failed")
    assert sorted(document_of(seen) for seen in server.seen) == ["d1", "d3"]
    assert set(lists(topics, "simple")) == set(IDS[:6])


@pytest.mark.parametrize("status", [400, 500])
def test_where_all_fails_a_set_stays_as_it_was(
    topics: Path, server: ScriptedServer, status: int
) -> None:
    run(topics, server, *SIMPLE)
    before = lists(topics, "simple")
    server.act = answer(status, {"error": {"message": "out of order"}})
    ran = strop(*command(topics, server, *SIMPLE, lm="openai:other"))
    assert ran.code == 1
    assert "every request failed" in ran.stderr
    assert lists(topics, "simple") == before
    again = (*SIMPLE, "--set", "new", "--retry-failed")
    other = strop(*command(topics, server, *again, lm="openai:other"))
    assert other.code == 1
    assert set(strop("info", topics, "--json").json["sets"]) == {"simple"}


def test_a_refused_key_ends_the_run(topics: Path, server: ScriptedServer) -> None:
    server.key = "sk-another"
    ran = strop(*command(topics, server, *SIMPLE))
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1
    assert "STROP_API_KEY" in ran.stderr
    server.key = KEY
    run(topics, server, *SIMPLE)
    assert len(lists(topics, "simple")) == 12


# -- what the replies hold ---------------------------------------------------------------------


def test_replies_that_hold_nothing_are_counted_and_kept(
    topics: Path, server: ScriptedServer
) -> None:
    good = server.text

    def text(prompt: str) -> str:
        own = topics_in(prompt)[0]
        odd = {TOPICS[1]: "I'm sorry, I can't help with that.", TOPICS[2]: "<QUERY>...</QUERY>"}
        return odd.get(own) or good(prompt)

    server.text = text
    ran = run(topics, server, *SIMPLE)
    assert "dropped: 1 refusal, 1 query without words (2 replies without a query; " in ran.stdout
    told = run(topics, server, *SIMPLE, "--json").json
    assert told["dropped"] == {"refusal": 1, "query without words": 1}
    assert told["empty_replies"] == 2
    assert asked(server) == 12  # they were paid for, and asked again would say the same
    texts = {text for (text,) in rows(topics, "SELECT text FROM replies")}
    assert {"I'm sorry, I can't help with that.", "<QUERY>...</QUERY>"} < texts
    assert set(lists(topics, "simple")) == set(IDS) - {"d1", "d2"}


def test_what_is_filtered_is_reported(topics: Path, server: ScriptedServer) -> None:
    server.text = lambda prompt: "".join(
        f"<QUERY>{one}</QUERY>"
        for one in ("how do {0} work", "How do {0} work?", "как работают эти вещи", "{0} and rain")
    ).format(topics_in(prompt)[0])
    ran = run(topics, server, *SIMPLE, "--limit", "5", "--json").json
    assert ran["queries"] == 10
    assert sum(ran["dropped"].values()) == 10
    assert set(ran["dropped"].values()) == {5}
    assert "dropped: 5 " in run(topics, server, *SIMPLE, "--limit", "5").stdout


def test_what_was_dropped_can_be_shown(topics: Path, server: ScriptedServer) -> None:
    sorry = "I'm sorry, I can't help\nwith that."
    server.text = lambda prompt: (
        sorry
        if topics_in(prompt)[0] == TOPICS[1]
        else "<QUERY>how do {0} work</QUERY><QUERY>How do {0} work?</QUERY>".format(
            topics_in(prompt)[0]
        )
    )
    run(topics, server, *SIMPLE, "--limit", "3")
    server.seen.clear()
    with FileLock(topics / "writer.lock"):  # it only reads
        shown = run(topics, server, *SIMPLE, "--limit", "3", "--show-dropped")
        told = run(topics, server, *SIMPLE, "--show-dropped", "--json").json
    assert shown.stdout.splitlines() == [
        f"d0: duplicate: How do {TOPICS[0]} work?",
        "d1: refusal: I'm sorry, I can't help with that.",
        f"d2: duplicate: How do {TOPICS[2]} work?",
    ]
    assert told["dropped"][1] == {"id": "d1", "reason": "refusal", "text": sorry}
    assert not server.seen


def test_commands_that_only_read_wait_for_no_writer(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE, "--batch", "submit")
    before = sqlite_dump(topics)
    with FileLock(topics / "writer.lock"):
        run(topics, server, "--style", "contrastive", "--dry-run")
        assert "batch_0" in run(topics, server, *SIMPLE, "--batch", "status").stdout
        assert strop("info", topics).code == 0
        busy = strop(*command(topics, server, *SIMPLE))
    assert busy.code == 1
    assert "writing to" in busy.stderr
    assert sqlite_dump(topics) == before


def test_a_run_and_info_give_the_same_counts(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    """Also where a document keeps no query, or the run was limited to some documents."""

    def text(prompt: str) -> str:
        own = topics_in(prompt)[0]
        return "<QUERY>...</QUERY>" if own == TOPICS[3] else f"<QUERY>{own}</QUERY>"

    server.text = text
    for limit in ("12", "2"):
        told = run(topics, server, *SIMPLE, "--limit", limit, "--json").json
        about = strop("info", topics, "--json").json["sets"]["simple"]
        assert (told["documents"], told["queries"]) == (11, 11)
        assert (about["documents"], about["queries"]) == (11, 11)
    empty = tmp_path / "none.jsonl"
    empty.write_text("")
    told = run(topics, server, *SIMPLE, "--replies-in", empty, "--json").json
    assert (told["documents"], told["queries"]) == (11, 11)


def nearer_own(index: Index, id_: str, queries: list[str]) -> list[bool]:
    """Whether the embedder places each query nearer its document than every reference."""
    chosen = index.references_of(id_)
    assert chosen is not None
    vectors = [
        np.asarray(index.embedder.embed([index.get(one).content], "document"))[0]
        for one in (id_, *(reference.id for reference in chosen.references))
    ]
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    asked_ = index.embed_queries(queries)
    return [all(float(q @ units[0]) > float(q @ other) for other in units[1:]) for q in asked_]


@pytest.mark.parametrize("style", ["contrastive", "negative"])
def test_the_contrast_rate(topics: Path, server: ScriptedServer, style: str) -> None:
    def text(prompt: str) -> str:
        own, *others = topics_in(prompt)
        return f"<QUERY>how do {own} work</QUERY><QUERY>all about {others[0]}</QUERY>"

    server.text = text
    told = run(topics, server, "--style", style, "--json").json
    made = lists(topics, style)
    with Index.open(topics) as index:
        apart = {id_: nearer_own(index, id_, texts) for id_, texts in made.items()}
        if style == "negative":  # these are for the references
            apart = {id_: [not one for one in mask] for id_, mask in apart.items()}
        share = sum(map(sum, apart.values())) / sum(map(len, apart.values()))
        assert 0 < share < 1
        assert index.searcher.contrast_rate(style) == pytest.approx(share)
    assert told["contrast"] == pytest.approx(share)
    nearer = {
        "contrastive": "to their document than to all of its references",
        "negative": "to a reference than to their document",
    }
    ran = run(topics, server, "--style", style)
    rate = f"contrast rate of the set: {share:.1%} of its queries are nearer {nearer[style]}"
    assert rate in ran.stdout


# -- what changes ------------------------------------------------------------------------------


def test_only_what_changed_is_asked_again(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE)
    server.seen.clear()
    strop("add", topics, "-", stdin=jsonl(record(3, " Now with a new end.")))
    run(topics, server, *SIMPLE)
    assert [document_of(seen) for seen in server.seen] == ["d3"]
    server.seen.clear()
    run(topics, server, *SIMPLE, "--noun", "question")
    assert asked(server) == 12
    server.seen.clear()
    run(topics, server, *SIMPLE)  # back: all of it is there
    assert not server.seen


def test_another_model_leaves_nothing_of_the_first(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE)
    first = lists(topics, "simple")
    server.text = lambda prompt: f"<QUERY>{topics_in(prompt)[0]} by another</QUERY>"
    ran = run(topics, server, *SIMPLE, "--limit", "4", lm="openai:other")
    assert lists(topics, "simple") == {f"d{i}": [f"{TOPICS[i]} by another"] for i in range(4)}
    assert "8 lists of another generator were dropped" in " ".join(ran.stderr.split())
    with Index.open(topics) as index:
        hits = index.search("how do paper mills work", 12, "simsharp", alpha=5)
        assert hits.ids[0, 0] == "d11"
        plain = dict(zip(*(x[0] for x in (hits.ids, hits.scores)), strict=True))
        trad = index.search("how do paper mills work", 12, "trad")
        assert plain["d11"] == pytest.approx(trad.scores[0, 0], abs=1e-6)
    calls = asked(server)
    back = run(topics, server, *SIMPLE)
    assert asked(server) == calls
    assert lists(topics, "simple") == first
    assert "dropped from" not in back.stderr


def test_lists_from_a_file_that_a_model_replaces(topics: Path, server: ScriptedServer) -> None:
    """Those are in no reply: it is said where they came from."""
    given = jsonl(*({"id": id_, "queries": [f"my own on {id_}"]} for id_ in IDS))
    assert strop("queries", topics, "--file", "-", *SIMPLE, stdin=given).code == 0
    packed = ("--style", "contrastive", "--set", "simple", "--replace", "--dry-run", "--json")
    assert run(topics, server, *packed).json["packed"]["calls"] > 0
    for action in ((), ("--dry-run",)):
        refused = strop(*command(topics, server, *SIMPLE, "--limit", "4", *action))
        assert refused.code == 1
        assert "came from a file" in refused.stderr
        assert "--set NAME" in refused.stderr
    assert (asked(server), len(lists(topics, "simple"))) == (0, 12)
    ran = run(topics, server, *SIMPLE, "--limit", "4", "--replace")
    said = " ".join(ran.stderr.split())
    assert "8 lists from a file were dropped" in said
    assert "replies" not in said


# -- to other places -----------------------------------------------------------------------------


def test_a_set_goes_to_a_file_and_into_another_index(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    server.text = lambda prompt: f"<QUERY>„{topics_in(prompt)[0]}“: naïve 問い\u2028?</QUERY>"
    out, later = tmp_path / "made.jsonl", tmp_path / "later.jsonl"
    run(topics, server, *SIMPLE, "--queries-out", out)
    assert strop("queries", topics, *SIMPLE, "--queries-out", later, "--json").json["lists"] == 12
    assert out.read_bytes() == later.read_bytes()
    docs = tmp_path / "docs.jsonl"
    docs.write_text(jsonl(*(record(i) for i in range(12))))
    other = tmp_path / "other.index"
    assert strop("build", docs, "-o", other, "--queries", "none").code == 0
    assert strop("queries", other, "--file", out, *SIMPLE).code == 0
    assert lists(other, "simple") == lists(topics, "simple")
    with Index.open(topics) as one, Index.open(other) as two:
        for method in ("sharp", "simsharp", "maxsim"):
            found = [index.search(TOPICS, 12, method).scores for index in (one, two)]
            assert np.array_equal(found[0], found[1])


# -- wrong usage -------------------------------------------------------------------------------


LM = "--lm openai:m --style simple"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("--lm openai:m", 2, "contrastive, simple, negative"),
        ("--lm openai:m --style sentences", 2, "contrastive, simple, negative"),
        ("--lm openai:m --style poetic", 2, "contrastive, simple, negative"),
        (f"{LM} --file x", 2, "--file and --lm"),
        (f"{LM} --n 3", 2, "--max-queries"),
        (f"{LM} --dry-run --batch status", 2, "exclude"),
        (f"{LM} --dry-run --show-dropped", 2, "exclude"),
        (
            f"{LM} --requests-out x --replies-in y",
            2,
            "--requests-out and --replies-in exclude each other",
        ),
        (f"{LM} --batch sometime", 2, "'sometime'"),
        (f"{LM} --dry-run --again", 2, "--again is for"),
        (f"{LM} --requests-out x --budget 1", 2, "--budget"),
        (f"{LM} --dry-run --queries-out x", 2, "--queries-out needs a command that generates"),
        (f"{LM} --batch submit --queries-out x", 2, "--queries-out needs a command that generates"),
        ("--style simple --file x --dry-run", 2, "--dry-run is for --lm"),
        ("--style simple --file x --packed", 2, "--packed is for --lm"),
        ("--style sentences --budget 1", 2, "--budget is for --lm"),
        ("--style sentences --wait 1 --set y", 2, "--set"),
        ("--style simple --file x --set y", 2, "--set"),
        ("--style simple --file x --queries-out y", 2, "--queries-out"),
        ("--style simple", 2, "--lm SPEC, or --file FILE"),
        (
            "",
            2,
            "--style sentences; --style simple, contrastive or negative with --lm; --file FILE",
        ),
        ("--file x", 2, "--file FILE with --set NAME"),
        ("--queries-out x", 2, "name it with --set"),
        ("--set mine", 2, "mine queries need a source: give --lm SPEC, or --file FILE"),
        ("--style sentences --set mine", 2, "give one"),
        ("--style sentences --file x", 2, "--style sentences needs no --file"),
        (f"{LM} --price cheap", 1, "'cheap'"),
        (f"{LM} --price 1", 1, "INPUT,OUTPUT"),
        ("--lm gpt --style contrastive", 1, "unknown language model 'gpt'"),
        ("--lm openai:m --style contrastive --lm-option speed=1", 1, "'speed'"),
        (f"{LM} --lm-option speed", 2, "NAME=VALUE"),
        (f"{LM} --base-url nowhere", 1, "http://"),
        (f"{LM} --examples none.txt", 1, "none.txt"),
        (f"{LM} --noun <b>", 1, "'<b>'"),
        (f"{LM} --set sentences", 1, "'sentences'"),
        ("--lm openai:m --style contrastive --profile small", 1, "small models"),
        ("--lm llama:none.gguf --style simple --batch submit", 1, "none.gguf"),
        (f"{LM} --max-queries 0", 2, "--max-queries"),
        (f"{LM} --budget -1", 2, "--budget"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    topics: Path,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    args: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(topics.parent)
    before = list(sqlite_dump(topics))
    ran = strop("queries", topics, *args.split())
    assert (ran.code, ran.stdout) == (code, "")
    *usage, last = ran.stderr.splitlines()
    assert words in last
    assert last.startswith("Error: " if code == 2 else "error: ")
    assert len(usage) == (3 if code == 2 else 0)
    assert not server.seen
    assert list(sqlite_dump(topics)) == before


def sqlite_dump(index: Path) -> list[str]:
    connection = sqlite3.connect(index / "catalog.sqlite")
    try:
        return list(connection.iterdump())
    finally:
        connection.close()
