"""``strop queries --lm``: requests, stored replies, estimates, budgets, failures, output."""

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
    command,
    count_requests,
    count_rows,
    document_of,
    folder_bytes,
    query_lists,
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
"""A reply can cost a little over 0.10 USD, and costs about a fifth of that."""


def fail_for(server: ScriptedServer, statuses: dict[str, int]) -> None:
    """Answer requests about some documents with an error status."""

    def act(seen: Seen) -> Answer:
        status = statuses.get(document_of(seen))
        if status is None:
            return server.respond(seen)
        return Answer(status, {"error": {"message": f"no, {KEY}!"}})

    server.act = act


# -- the styles ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "lm"),
    [("contrastive", "openai:m"), ("simple", "anthropic:m"), ("negative", "openai:m")],
)
def test_queries_of_a_style_are_generated_and_stored(
    topics: Path, server: ScriptedServer, style: str, lm: str
) -> None:
    """References are selected automatically; each has one request, and a second run sends none."""
    result = run(topics, server, "--style", style, lm=lm)
    with Index.open(topics) as index:
        selections = {id_: index.references_of(id_) for id_ in IDS}
    calls = len(IDS)
    if style != "simple":
        calls = sum(len(x.references) for x in selections.values() if x is not None)
        assert calls >= 2 * len(IDS)
    assert count_requests(server) == calls == count_rows(topics, "replies")
    queries = query_lists(topics, style)
    assert set(queries) == set(IDS)
    for i, id_ in enumerate(IDS):
        assert queries[id_][0] == f"how do {TOPICS[i]} work"
        chosen = selections[id_]
        others = [TOPICS[IDS.index(ref.id)] for ref in chosen.references] if chosen else ["nothing"]
        assert queries[id_][1:] == [f"{TOPICS[i]} explained without {other}" for other in others]
    total = sum(map(len, queries.values()))
    assert f"set {style}: {total} queries for 12 documents; {calls} new replies" in result.stdout
    again = run(topics, server, "--style", style, lm=lm)
    assert count_requests(server) == calls
    assert f"set {style}: {total} queries for 12 documents; 0 new replies" in again.stdout
    assert query_lists(topics, style) == queries


def test_packed_sends_one_request_per_document(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, "--style", "contrastive", "--packed")
    assert count_requests(server) == len(IDS)
    with Index.open(topics) as index:
        for body in server.bodies:
            shown = topics_in(user_text(body))
            selected = index.references_of(f"d{TOPICS.index(shown[0])}")
            assert selected is not None
            assert shown[1:] == [TOPICS[IDS.index(ref.id)] for ref in selected.references]


def test_negative_queries_are_not_searched_by_default(topics: Path, server: ScriptedServer) -> None:
    """They belong to other documents: a method uses them only if ``sets`` names them."""
    plain = strop("search", topics, "how do river dams work", "--json").json
    run(topics, server, "--style", "negative")
    with_negative = strop("search", topics, "how do river dams work", "--json").json
    assert with_negative == plain
    run(topics, server, *SIMPLE)
    with Index.open(topics) as index:
        for method in ("sharp", None):
            default = index.search(TOPICS, 12, method)
            simple = index.search(TOPICS, 12, "sharp", sets=["simple"])
            assert np.array_equal(default.scores, simple.scores)
        mixed = index.search(TOPICS, 12, "sharp", sets=["simple", "negative"])
        assert not np.array_equal(mixed.scores, simple.scores)


def test_examples_and_noun_are_in_the_prompt(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    text, lines = tmp_path / "examples.txt", tmp_path / "examples.jsonl"
    text.write_text("what is a comet\n\nwho was Euler\n")
    lines.write_text(jsonl({"text": "what is a comet"}, {"_id": "2", "query": "who was Euler"}))
    options = ("--limit", "1", *SIMPLE)
    run(topics, server, *options, "--examples", text, "--noun", "counter-argument passage")
    (body,) = server.bodies
    system = body["messages"][0]["content"]
    assert "<EXAMPLE>what is a comet</EXAMPLE>\n<EXAMPLE>who was Euler</EXAMPLE>" in system
    assert "counter-argument passages" in system
    assert "at most" not in system.replace("loosely at most", "")
    run(topics, server, *options, "--examples", lines, "--noun", "counter-argument passage")
    assert count_requests(server) == 1  # the same examples make the same request
    run(topics, server, *options)
    assert "EXAMPLE" not in server.bodies[-1]["messages"][0]["content"]


def test_limit_and_set_name(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE, "--limit", "3", "--set", "mine")
    assert count_requests(server) == 3
    assert list(query_lists(topics, "mine")) == ["d0", "d1", "d2"]
    assert set(strop("info", topics, "--json").json["sets"]) == {"mine"}
    run(topics, server, *SIMPLE, "--set", "mine")
    assert count_requests(server) == 12
    run(topics, server, *SIMPLE, "--set", "mine", "--limit", "1")
    assert len(query_lists(topics, "mine")) == 12  # a smaller limit removes nothing
    run(topics, server, *SIMPLE)
    assert count_requests(server) == 12  # the same requests, for another set
    assert query_lists(topics, "simple") == query_lists(topics, "mine")


def test_max_queries_of_a_document(topics: Path, server: ScriptedServer) -> None:
    """The limit is for a document; each of its requests asks for a share."""

    def write_ten(prompt: str) -> str:
        own, *others = topics_in(prompt)
        words = "origin cost price tools danger season music history law trade".split()
        return "".join(f"<QUERY>{word} of {own} against {others}</QUERY>" for word in words)

    server.text = write_ten
    run(topics, server, "--style", "contrastive", "--max-queries", "4")
    queries = query_lists(topics, "contrastive")
    assert {len(texts) for texts in queries.values()} == {4}
    shares = Counter(
        re.search(r"\(at most (\d+)\)", body["messages"][0]["content"])[1]  # type: ignore[index]
        for body in server.bodies
    )
    with Index.open(topics) as index:
        sizes = [len(index.references_of(id_).references) for id_ in IDS]  # type: ignore[union-attr]
    assert shares == sum((Counter({str(min(4, -(-4 // k) + 1)): k}) for k in sizes), Counter())
    for id_ in IDS:  # all references are used
        references = {text.rpartition("against")[2] for text in queries[id_]}
        assert len(references) == min(4, sizes[IDS.index(id_)])


def test_samples_repeat_a_request(topics: Path, server: ScriptedServer) -> None:
    replies = iter(range(100))
    server.text = lambda prompt: f"<QUERY>{topics_in(prompt)[0]} sort {next(replies)}</QUERY>"
    run(topics, server, *SIMPLE, "--samples", "3", "--limit", "2", "--temperature", "0.5")
    assert count_requests(server) == 6
    assert {body["temperature"] for body in server.bodies} == {0.5}
    assert [len(texts) for texts in query_lists(topics, "simple").values()] == [3, 3]
    run(topics, server, *SIMPLE, "--samples", "2", "--limit", "2", "--temperature", "0.5")
    assert count_requests(server) == 6  # these two are stored


# -- what is stored --------------------------------------------------------------------------


def test_replies_are_stored_with_provenance(topics: Path, server: ScriptedServer) -> None:
    extra = ("--lm-option", 'extra={"seed": 7}')
    run(topics, server, *SIMPLE, "--limit", "2", "--temperature", "0.5", *extra)
    replies = rows(
        topics,
        "SELECT number, lm, options, settings, model, text, truncated, input_tokens,"
        " output_tokens, seconds, created FROM replies ORDER BY number",
    )
    assert len(replies) == 2
    for i, row in enumerate(replies):
        _, lm, options, settings, model, text, truncated, n_input, n_output, seconds, created = row
        assert (lm, model, truncated) == ("openai:m", "m-2026-01-01", 0)
        assert json.loads(options)["extra"] == {"seed": 7}
        assert json.loads(options)["base_url"] == server.url
        saved = json.loads(settings)
        assert (saved["temperature"], saved["max_tokens"], saved["samples"]) == (0.5, 2000, 1)
        assert saved["prompt"]["style"] == "simple"
        assert saved["prompt"]["prompts"] == PROMPT_VERSION
        assert text == server.text(record(i)["text"])
        assert n_input > 20
        assert n_output == len(text) // 4
        assert seconds > 0
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", created)
    assert {body["seed"] for body in server.bodies} == {7}


def test_the_key_is_not_stored(topics: Path, server: ScriptedServer, tmp_path: Path) -> None:
    """Not even if a service repeats it in an error."""
    fail_for(server, {"d1": 400, "d2": 500})
    out = ("--queries-out", tmp_path / "made.jsonl")
    results = [
        run(topics, server, *SIMPLE, *out), run(topics, server, *SIMPLE, "--json"),
        run(topics, server, *SIMPLE, "--dry-run"),
        run(topics, server, *SIMPLE, "--requests-out", tmp_path / "requests.jsonl"),
    ]  # fmt: skip
    assert all(KEY not in result.stdout + result.stderr for result in results)
    assert "no, ***!" in results[0].stderr
    assert b"no, ***!" in folder_bytes(topics)
    assert KEY.encode() not in folder_bytes(tmp_path)  # the index is in there too
    server.key = "sk-another"
    refused = strop(*command(topics, server, *SIMPLE, "--retry-failed", "--limit", "2"))
    assert refused.code == 1
    assert KEY not in refused.stderr
    assert KEY.encode() not in folder_bytes(tmp_path)


def test_an_interrupt_while_replies_are_stored_loses_none(
    topics: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a commit: the replies of the transaction that was undone are stored again."""
    save = Replies.save
    calls = 0

    def interrupted(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        save(*args)

    monkeypatch.setattr(Replies, "save", interrupted)
    result = strop(*command(topics, server, *SIMPLE, "--concurrency", "1"))
    assert result.code == 130
    assert 2 <= count_requests(server) < 12
    assert count_rows(topics, "replies") == count_requests(server)
    run(topics, server, *SIMPLE)
    assert count_requests(server) == 12


def test_an_interrupt_after_a_commit_loses_no_reply_in_flight(
    topics: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after a commit, while its tokens are counted: the other replies are still stored."""
    calls = 0

    def interrupted(text: str) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return len(text) // 4

    server.usage = lambda body: {}  # so strop counts the tokens, after each commit
    monkeypatch.setattr("strop.generate.calls.count_tokens", interrupted)
    result = strop(*command(topics, server, *SIMPLE, "--price", "1,1", "--concurrency", "4"))
    assert result.code == 130
    assert count_rows(topics, "replies") == count_requests(server) > 0


def test_equal_texts_share_one_request(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    copies = [{**record(i), "id": f"twin{i}-{n}"} for i in (2, 3) for n in range(3)]
    assert strop("add", topics, "-", stdin=jsonl(*copies)).code == 0
    out = tmp_path / "requests.jsonl"
    assert run(topics, server, *SIMPLE, "--requests-out", out, "--json").json["requests"] == 12
    report = run(topics, server, *SIMPLE, "--concurrency", "8", "--json").json
    assert (report["replies"], report["documents"], count_requests(server)) == (12, 18, 12)
    queries = query_lists(topics, "simple")
    assert queries["twin2-1"] == queries["d2"]
    run(topics, server, "--style", "contrastive", "--concurrency", "8")  # with copies as references
    prompts = Counter(user_text(seen.body) for seen in server.seen[12:])
    assert set(prompts.values()) == {1}
    assert run(topics, server, *SIMPLE, "--batch", "submit", "--noun", "question", "--json").json[
        "batches"
    ] == {"batch_0": 12}  # fmt: skip


def test_without_open_requests_no_client_is_made(
    topics: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without the key can use the stored replies."""
    run(topics, server, *SIMPLE)

    def fail(*args: Any) -> None:
        raise AssertionError("a client was made")

    monkeypatch.setattr("strop.lm.service.ServiceLM.complete", fail)
    assert run(topics, server, *SIMPLE, "--json").json["documents"] == 12


# -- estimates and budgets ---------------------------------------------------------------------


def test_an_estimate_sends_no_request(topics: Path, server: ScriptedServer) -> None:
    args = ("--style", "contrastive", "--json")
    estimate = run(topics, server, *args, "--dry-run").json
    assert not server.seen
    assert estimate["host"] == f"127.0.0.1:{server.port}"
    assert estimate["documents"] == 12
    assert (estimate["cost"], estimate["stored"], estimate["guessed"]) == (None, 0, True)
    assert estimate["seconds"] > 0
    assert estimate["packed"]["calls"] == 12
    assert estimate["unchosen_references"] == 12
    assert estimate["calls"] == 12 * EXPECTED_REFERENCES
    assert strop("references", topics).code == 0
    estimate = run(topics, server, *args, "--dry-run").json
    assert estimate["unchosen_references"] == 0
    assert estimate["packed"]["input_tokens"] < estimate["input_tokens"]
    run(topics, server, "--style", "contrastive")
    assert estimate["calls"] == count_requests(server)
    texts = [body["messages"][0]["content"] + user_text(body) for body in server.bodies]
    tokens = sum(len(text) / 4 for text in texts)
    assert tokens <= estimate["input_tokens"] <= 1.05 * tokens
    again = run(topics, server, *args, "--dry-run").json
    assert (again["calls"], again["stored"], again["input_tokens"]) == (0, estimate["calls"], 0)


def test_the_text_output_of_an_estimate(topics: Path, server: ScriptedServer) -> None:
    output = run(topics, server, "--style", "contrastive", "--dry-run").stdout
    for words in (
        "by openai:m", f"127.0.0.1:{server.port}", "tokens in", "tokens out", "unknown: give",
        "with --packed", "12 calls",
    ):  # fmt: skip
        assert words in output
    priced = run(topics, server, *SIMPLE, "--dry-run", "--price", "1,2").stdout
    assert "the given price" in priced
    assert not server.seen
    assert "not selected yet for 12 documents: estimated at 4 each" in " ".join(output.split())
    truncated = run(topics, server, *SIMPLE, "--dry-run", "--document-chars", "20").stdout
    assert "(12 truncated at 20 characters: --document-chars)" in truncated
    known = strop("queries", topics, "--lm", "openai:gpt-4.1-nano", *SIMPLE, "--dry-run")
    assert (known.code, known.stderr) == (0, "")
    assert "api.openai.com" in known.stdout
    assert "list price of 20" in known.stdout


def test_an_estimate_warns_of_a_missing_key(topics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STROP_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    result = strop("queries", topics, "--lm", "openai:gpt-4.1-nano", *SIMPLE, "--dry-run")
    assert result.code == 0
    warning = " ".join(result.stderr.split())
    assert "a run would be refused: api.openai.com needs a key; set" in warning


def test_an_estimate_needs_no_key_if_requests_are_signed(
    topics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore", reason="needs strop[bedrock]")
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)  # as with the role of a machine
    bedrock = ("--lm-option", "bedrock=true", "--lm-option", "region=eu-west-1")
    result = strop("queries", topics, "--lm", "anthropic:m", *bedrock, *SIMPLE, "--dry-run")
    assert (result.code, result.stderr) == (0, "")


def test_the_cost_of_an_estimate(topics: Path, server: ScriptedServer) -> None:
    estimate = run(topics, server, *SIMPLE, "--dry-run", "--price", "3,5", "--json").json
    cost = (estimate["input_tokens"] * 3 + estimate["output_tokens"] * 5) / 1e6
    assert estimate["cost"] == pytest.approx(cost)
    batch = (*SIMPLE, "--price", "3,5", "--json", "--dry-run", "--batch", "submit")
    assert run(topics, server, *batch).json["cost"] == pytest.approx(cost / 2)
    run(topics, server, *SIMPLE, "--limit", "4")
    server.seen.clear()
    resumed = run(topics, server, *SIMPLE, "--dry-run", "--json").json
    mean_tokens = rows(topics, "SELECT avg(output_tokens) FROM replies")[0][0]
    assert (resumed["calls"], resumed["stored"], resumed["guessed"]) == (8, 4, False)
    assert resumed["output_tokens"] == round(8 * mean_tokens)
    assert not server.seen


def test_a_higher_budget_resumes_a_stopped_run(topics: Path, server: ScriptedServer) -> None:
    first = run(topics, server, *SIMPLE, *PRICE, "--budget", "0.15", "--concurrency", "2", "--json")
    report = first.json
    assert 0 < report["replies"] < 12
    assert report["replies"] == count_requests(server) == count_rows(topics, "replies")
    assert 0 < report["cost"] <= 0.15
    assert "budget of 0.15 USD" in report["stopped"]
    assert len(query_lists(topics, "simple")) == report["replies"]
    for batch in (("--batch", "submit"), ()):  # one call can cost more than that
        refused = strop(*command(topics, server, *SIMPLE, *PRICE, "--budget", "0.001", *batch))
        assert refused.code == 1
        assert "exceed the budget of 0.001 USD" in refused.stderr
        (needed,) = re.findall(r"Give --budget (\S+) or more", refused.stderr)
        assert count_requests(server) == report["replies"]
        assert not server.batches
    again = run(topics, server, *SIMPLE, *PRICE, "--budget", needed, "--noun", "question", "--json")
    assert again.json["replies"] >= 1
    server.seen.clear()
    stopped = run(topics, server, *SIMPLE, *PRICE, "--budget", "0.15", "--concurrency", "2")
    assert "To spend as much again: strop queries" in stopped.stderr
    run(topics, server, *SIMPLE, *PRICE, "--budget", "100")
    assert count_requests(server) == 12 - report["replies"]


def test_a_budget_needs_a_price(topics: Path, server: ScriptedServer) -> None:
    result = strop(*command(topics, server, *SIMPLE, "--budget", "5"))
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "the price of openai:m is not known" in result.stderr
    assert "--price" in result.stderr
    for batch in ((), ("--batch", "submit")):
        refused = strop(*command(topics, server, *SIMPLE, *PRICE, "--budget", "nan", *batch))
        assert (refused.code, refused.stdout) == (1, "")
        assert "the budget is nan" in refused.stderr
    assert not server.seen


def test_a_budget_holds_if_the_service_counts_no_tokens(
    topics: Path, server: ScriptedServer
) -> None:
    """Many servers send no usage: strop then counts the tokens."""
    server.usage = lambda body: {}
    report = run(
        topics, server, *SIMPLE, *PRICE, "--budget", "0.25", "--concurrency", "1", "--json"
    ).json
    assert "budget" in report["stopped"]
    texts = [text for (text,) in rows(topics, "SELECT text FROM replies")]
    assert 0 < len(texts) < 12
    assert report["cost"] == pytest.approx(sum(len(text) / 4 for text in texts) / 1000, rel=0.1)


def test_a_budget_counts_tokens_written_to_a_cache(topics: Path, server: ScriptedServer) -> None:
    """Anthropic charges more for tokens that it writes to its cache."""
    price = Price(1000.0, 0.0, 100.0, 1250.0)
    server.usage = lambda body: {
        "input_tokens": 0, "output_tokens": 1, "cache_creation_input_tokens": 400,
    }  # fmt: skip
    with Index.open(topics) as index:
        settings = GenerationSettings(PromptSettings(style="simple"), max_tokens=10)
        plan = index.generation(
            "anthropic:m", settings, price=price, base_url=server.root, concurrency=1
        )
        request_tokens = plan.estimate().input_tokens / 12
        budget = 2.1 * request_tokens / 1e6 * 1250.0
        spending = plan.run(budget=budget).spending
    assert spending.cost is not None
    assert 0 < spending.cost <= budget
    assert spending.replies < 12


# -- failures ----------------------------------------------------------------------------------


def test_failures_are_counted_and_retried_by_the_printed_command(
    topics: Path, server: ScriptedServer
) -> None:
    fail_for(server, {"d1": 400, "d3": 500, "d5": 400})
    result = run(topics, server, *SIMPLE)
    assert "3 requests failed: " in result.stderr
    assert "answered 400: no, ***!" in result.stderr
    assert set(query_lists(topics, "simple")) == set(IDS) - {"d1", "d3", "d5"}
    assert count_requests(server) == 13  # one was retried
    server.act = server.respond
    retry = shlex.split(result.stderr.splitlines()[-1].partition("to send only these again: ")[2])
    assert (retry[0], retry.count("--retry-failed")) == ("strop", 1)
    # The same command again: final failures are not retried.
    server.seen.clear()
    run(topics, server, *SIMPLE)
    assert [document_of(seen) for seen in server.seen] == ["d3"]
    # The printed command: only the failed requests.
    server.seen.clear()
    assert strop(*retry[1:]).code == 0
    assert sorted(document_of(seen) for seen in server.seen) == ["d1", "d5"]
    assert set(query_lists(topics, "simple")) == set(IDS)
    assert count_rows(topics, "failures") == 0
    server.seen.clear()
    assert strop(*retry[1:]).code == 0
    assert not server.seen


def test_the_printed_command_leaves_out_options_for_one_run(
    topics: Path, server: ScriptedServer
) -> None:
    fail_for(server, {"d1": 400})
    first = run(topics, server, *SIMPLE).stderr.splitlines()[-1]
    second = run(topics, server, *SIMPLE, "--retry-failed", "--again").stderr.splitlines()[-1]
    assert first == second


def test_retry_failed_sends_only_failed_requests(topics: Path, server: ScriptedServer) -> None:
    fail_for(server, {"d1": 400, "d3": 500})
    run(topics, server, *SIMPLE, "--limit", "6")
    server.act = server.respond
    server.seen.clear()
    run(topics, server, *SIMPLE, "--retry-failed")
    assert sorted(document_of(seen) for seen in server.seen) == ["d1", "d3"]
    assert set(query_lists(topics, "simple")) == set(IDS[:6])


@pytest.mark.parametrize("status", [400, 500])
def test_a_set_is_unchanged_if_every_request_fails(
    topics: Path, server: ScriptedServer, status: int
) -> None:
    run(topics, server, *SIMPLE)
    before = query_lists(topics, "simple")
    server.act = answer(status, {"error": {"message": "out of order"}})
    result = strop(*command(topics, server, *SIMPLE, lm="openai:other"))
    assert result.code == 1
    assert "every request failed" in result.stderr
    assert query_lists(topics, "simple") == before
    again = (*SIMPLE, "--set", "new", "--retry-failed")
    other = strop(*command(topics, server, *again, lm="openai:other"))
    assert other.code == 1
    assert set(strop("info", topics, "--json").json["sets"]) == {"simple"}


def test_a_refused_key_stops_the_run(topics: Path, server: ScriptedServer) -> None:
    server.key = "sk-another"
    result = strop(*command(topics, server, *SIMPLE))
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "STROP_API_KEY" in result.stderr
    server.key = KEY
    run(topics, server, *SIMPLE)
    assert len(query_lists(topics, "simple")) == 12


# -- parsing and filtering of replies ----------------------------------------------------------


def test_replies_without_a_query_are_counted_and_stored(
    topics: Path, server: ScriptedServer
) -> None:
    write = server.text

    def text(prompt: str) -> str:
        own = topics_in(prompt)[0]
        bad = {TOPICS[1]: "I'm sorry, I can't help with that.", TOPICS[2]: "<QUERY>...</QUERY>"}
        return bad.get(own) or write(prompt)

    server.text = text
    result = run(topics, server, *SIMPLE)
    assert "dropped: 1 refusal, 1 query without words (2 replies without a query; " in result.stdout
    report = run(topics, server, *SIMPLE, "--json").json
    assert report["dropped"] == {"refusal": 1, "query without words": 1}
    assert report["empty_replies"] == 2
    assert count_requests(server) == 12  # they were paid for, and a retry would return the same
    texts = {text for (text,) in rows(topics, "SELECT text FROM replies")}
    assert {"I'm sorry, I can't help with that.", "<QUERY>...</QUERY>"} < texts
    assert set(query_lists(topics, "simple")) == set(IDS) - {"d1", "d2"}


def test_filtered_queries_are_reported(topics: Path, server: ScriptedServer) -> None:
    server.text = lambda prompt: "".join(
        f"<QUERY>{text}</QUERY>"
        for text in ("how do {0} work", "How do {0} work?", "как работают эти вещи", "{0} and rain")
    ).format(topics_in(prompt)[0])
    result = run(topics, server, *SIMPLE, "--limit", "5", "--json").json
    assert result["queries"] == 10
    assert sum(result["dropped"].values()) == 10
    assert set(result["dropped"].values()) == {5}
    assert "dropped: 5 " in run(topics, server, *SIMPLE, "--limit", "5").stdout


def test_dropped_queries_can_be_shown(topics: Path, server: ScriptedServer) -> None:
    refusal = "I'm sorry, I can't help\nwith that."
    server.text = lambda prompt: (
        refusal
        if topics_in(prompt)[0] == TOPICS[1]
        else "<QUERY>how do {0} work</QUERY><QUERY>How do {0} work?</QUERY>".format(
            topics_in(prompt)[0]
        )
    )
    run(topics, server, *SIMPLE, "--limit", "3")
    server.seen.clear()
    with FileLock(topics / "writer.lock"):  # it needs no lock
        shown = run(topics, server, *SIMPLE, "--limit", "3", "--show-dropped")
        report = run(topics, server, *SIMPLE, "--show-dropped", "--json").json
    assert shown.stdout.splitlines() == [
        f"d0: duplicate: How do {TOPICS[0]} work?",
        "d1: refusal: I'm sorry, I can't help with that.",
        f"d2: duplicate: How do {TOPICS[2]} work?",
    ]
    assert report["dropped"][1] == {"id": "d1", "reason": "refusal", "text": refusal}
    assert not server.seen


def test_commands_that_only_read_need_no_lock(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE, "--batch", "submit")
    before = catalog_dump(topics)
    with FileLock(topics / "writer.lock"):
        run(topics, server, "--style", "contrastive", "--dry-run")
        assert "batch_0" in run(topics, server, *SIMPLE, "--batch", "status").stdout
        assert strop("info", topics).code == 0
        busy = strop(*command(topics, server, *SIMPLE))
    assert busy.code == 1
    assert "writing to" in busy.stderr
    assert catalog_dump(topics) == before


def test_a_run_and_info_give_the_same_counts(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    """Also if a document has no query left, or the run was limited to some documents."""

    def text(prompt: str) -> str:
        own = topics_in(prompt)[0]
        return "<QUERY>...</QUERY>" if own == TOPICS[3] else f"<QUERY>{own}</QUERY>"

    server.text = text
    for limit in ("12", "2"):
        report = run(topics, server, *SIMPLE, "--limit", limit, "--json").json
        info = strop("info", topics, "--json").json["sets"]["simple"]
        assert (report["documents"], report["queries"]) == (11, 11)
        assert (info["documents"], info["queries"]) == (11, 11)
    empty = tmp_path / "none.jsonl"
    empty.write_text("")
    report = run(topics, server, *SIMPLE, "--replies-in", empty, "--json").json
    assert (report["documents"], report["queries"]) == (11, 11)


def is_nearer_own(index: Index, id_: str, queries: list[str]) -> list[bool]:
    """Whether each query is nearer its document than every reference."""
    selected = index.references_of(id_)
    assert selected is not None
    vectors = [
        np.asarray(index.embedder.embed([index.get(text_id).content], "document"))[0]
        for text_id in (id_, *(reference.id for reference in selected.references))
    ]
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    embedded = index.embed_queries(queries)
    return [all(float(q @ units[0]) > float(q @ other) for other in units[1:]) for q in embedded]


@pytest.mark.parametrize("style", ["contrastive", "negative"])
def test_the_contrast_rate(topics: Path, server: ScriptedServer, style: str) -> None:
    def text(prompt: str) -> str:
        own, *others = topics_in(prompt)
        return f"<QUERY>how do {own} work</QUERY><QUERY>all about {others[0]}</QUERY>"

    server.text = text
    report = run(topics, server, "--style", style, "--json").json
    queries = query_lists(topics, style)
    with Index.open(topics) as index:
        nearer_own = {id_: is_nearer_own(index, id_, texts) for id_, texts in queries.items()}
        if style == "negative":  # these are for the references
            nearer_own = {id_: [not value for value in mask] for id_, mask in nearer_own.items()}
        share = sum(map(sum, nearer_own.values())) / sum(map(len, nearer_own.values()))
        assert 0 < share < 1
        assert index.searcher.contrast_rate(style) == pytest.approx(share)
    assert report["contrast"] == pytest.approx(share)
    nearer = {
        "contrastive": "to their document than to all of its references",
        "negative": "to a reference than to their document",
    }
    result = run(topics, server, "--style", style)
    rate = f"contrast rate of the set: {share:.1%} of its queries are nearer {nearer[style]}"
    assert rate in result.stdout


# -- changed documents, prompts and models ---------------------------------------------------


def test_only_changed_texts_and_prompts_are_sent(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE)
    server.seen.clear()
    strop("add", topics, "-", stdin=jsonl(record(3, " Now with a new end.")))
    run(topics, server, *SIMPLE)
    assert [document_of(seen) for seen in server.seen] == ["d3"]
    server.seen.clear()
    run(topics, server, *SIMPLE, "--noun", "question")
    assert count_requests(server) == 12
    server.seen.clear()
    run(topics, server, *SIMPLE)  # the first prompt again: all replies are stored
    assert not server.seen


def test_another_model_replaces_all_queries(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE)
    first = query_lists(topics, "simple")
    server.text = lambda prompt: f"<QUERY>{topics_in(prompt)[0]} by another</QUERY>"
    result = run(topics, server, *SIMPLE, "--limit", "4", lm="openai:other")
    assert query_lists(topics, "simple") == {f"d{i}": [f"{TOPICS[i]} by another"] for i in range(4)}
    assert "8 lists of another generator were dropped" in " ".join(result.stderr.split())
    with Index.open(topics) as index:
        hits = index.search("how do paper mills work", 12, "simsharp", alpha=5)
        assert hits.ids[0, 0] == "d11"
        plain = dict(zip(*(x[0] for x in (hits.ids, hits.scores)), strict=True))
        trad = index.search("how do paper mills work", 12, "trad")
        assert plain["d11"] == pytest.approx(trad.scores[0, 0], abs=1e-6)
    n_requests = count_requests(server)
    restored = run(topics, server, *SIMPLE)
    assert count_requests(server) == n_requests
    assert query_lists(topics, "simple") == first
    assert "dropped from" not in restored.stderr


def test_replacing_lists_from_a_file_needs_an_option(topics: Path, server: ScriptedServer) -> None:
    """No reply has them, so the error says where they came from."""
    lines = jsonl(*({"id": id_, "queries": [f"my own on {id_}"]} for id_ in IDS))
    assert strop("queries", topics, "--file", "-", *SIMPLE, stdin=lines).code == 0
    packed = ("--style", "contrastive", "--set", "simple", "--replace", "--dry-run", "--json")
    assert run(topics, server, *packed).json["packed"]["calls"] > 0
    for action in ((), ("--dry-run",)):
        refused = strop(*command(topics, server, *SIMPLE, "--limit", "4", *action))
        assert refused.code == 1
        assert "came from a file" in refused.stderr
        assert "--set NAME" in refused.stderr
    assert (count_requests(server), len(query_lists(topics, "simple"))) == (0, 12)
    result = run(topics, server, *SIMPLE, "--limit", "4", "--replace")
    warning = " ".join(result.stderr.split())
    assert "8 lists from a file were dropped" in warning
    assert "replies" not in warning


# -- export and import ---------------------------------------------------------------------------


def test_a_set_is_exported_and_imported_into_another_index(
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
    assert query_lists(other, "simple") == query_lists(topics, "simple")
    with Index.open(topics) as first, Index.open(other) as second:
        for method in ("sharp", "simsharp", "maxsim"):
            scores = [index.search(TOPICS, 12, method).scores for index in (first, second)]
            assert np.array_equal(scores[0], scores[1])


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
def test_usage_errors_are_one_line(
    topics: Path,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    args: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(topics.parent)
    before = list(catalog_dump(topics))
    result = strop("queries", topics, *args.split())
    assert (result.code, result.stdout) == (code, "")
    *usage, last = result.stderr.splitlines()
    assert words in last
    assert last.startswith("Error: " if code == 2 else "error: ")
    assert len(usage) == (3 if code == 2 else 0)
    assert not server.seen
    assert list(catalog_dump(topics)) == before


def catalog_dump(index: Path) -> list[str]:
    connection = sqlite3.connect(index / "catalog.sqlite")
    try:
        return list(connection.iterdump())
    finally:
        connection.close()
