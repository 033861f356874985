"""Queries by batch services and by files: what is out there, what comes back, what is paid."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from helpers.commands import jsonl, strop
from helpers.generation import (
    IDS,
    command,
    count_requests,
    count_rows,
    query_lists,
    record,
    rows,
    run,
)
from helpers.scripted_server import ScriptedServer, answer, drop

from strop.errors import BadIndex
from strop.lm.batches import AnthropicBatches, OpenAIBatches

SIMPLE = ("--style", "simple")
SUBMIT, COLLECT = ("--batch", "submit"), ("--batch", "collect")
both = pytest.mark.parametrize("lm", ["openai:m", "anthropic:m"])


def downloaded(server: ScriptedServer, batch: str, lm: str) -> list[dict[str, object]]:
    """The results of a batch as the vendor's page gives them."""
    result = server.openai_result if lm.startswith("openai") else server.anthropic_result
    made = [result(name, body, "succeeded") for name, body in server.batches[batch]["requests"]]
    return [one for one in made if one is not None]


def sent(server: ScriptedServer) -> int:
    return sum(len(batch["requests"]) for batch in server.batches.values())


@both
def test_the_life_of_a_batch(topics: Path, server: ScriptedServer, lm: str) -> None:
    told = run(topics, server, *SIMPLE, *SUBMIT, "--json", lm=lm).json
    assert told == {"batches": {"batch_0": 12}, "stopped": "", "next_cost": 0.0}
    assert "no request is open" in run(topics, server, *SIMPLE, *SUBMIT, lm=lm).stdout
    run(topics, server, *SIMPLE, lm=lm)  # a plain run does not ask what is out
    assert (sent(server), count_requests(server)) == (12, 0)
    server.polls = 1
    assert "batch_0: in_progress" in run(topics, server, *SIMPLE, "--batch", "status", lm=lm).stdout
    price = ("--price", "1,1000", "--json")
    got = run(topics, server, *SIMPLE, *COLLECT, *price, lm=lm).json
    assert (got["replies"], got["failures"], got["documents"]) == (12, 0, 12)
    given, out = rows(topics, "SELECT sum(input_tokens), sum(output_tokens) FROM replies")[0]
    assert got["cost"] == pytest.approx((given + 1000 * out) / 1e6 / 2)
    assert "no batch is running" in run(topics, server, *SIMPLE, "--batch", "status", lm=lm).stdout
    assert set(query_lists(topics, "simple")) == set(IDS)
    run(topics, server, *SIMPLE, lm=lm)
    assert count_requests(server) == 0


@both
def test_what_fails_in_a_batch_is_submitted_again(
    topics: Path, server: ScriptedServer, tmp_path: Path, lm: str
) -> None:
    fates = iter(["errored", "invalid", "expired", "canceled", "missing"])
    server.fate, server.polls = lambda name: next(fates, "succeeded"), 0
    run(topics, server, *SIMPLE, *SUBMIT, lm=lm)
    ran = run(topics, server, *SIMPLE, *COLLECT, "--again", lm=lm)
    assert "5 requests failed" in ran.stderr
    assert len(query_lists(topics, "simple")) == 7
    assert count_rows(topics, "failures WHERE final") == 1
    retry = shlex.split(ran.stderr.splitlines()[-1].partition(": ")[2])[1:]
    assert not {"collect", "--again"} & set(retry)
    assert strop(*retry).code == 0
    assert sent(server) == 17
    out = tmp_path / "made.jsonl"
    run(topics, server, *SIMPLE, *COLLECT, "--queries-out", out, lm=lm)
    assert len(out.read_text("utf-8").splitlines()) == 12
    assert len(query_lists(topics, "simple")) == 12
    assert count_rows(topics, "failures") == 0


def test_a_batch_that_fails_as_a_whole(topics: Path, server: ScriptedServer) -> None:
    server.batch_error, server.polls = "the file is bad", 0
    run(topics, server, *SIMPLE, *SUBMIT)
    ran = strop(*command(topics, server, *SIMPLE, *COLLECT))
    assert ran.code == 1
    assert "12 requests failed" in ran.stderr
    assert "the file is bad" in ran.stderr
    server.batch_error = None
    run(topics, server, *SIMPLE, *SUBMIT)
    run(topics, server, *SIMPLE, *COLLECT)
    assert len(query_lists(topics, "simple")) == 12


@both
def test_several_batches(
    topics: Path, server: ScriptedServer, lm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in (OpenAIBatches, AnthropicBatches):
        monkeypatch.setattr(service, "most_requests", 5)
    told = run(topics, server, *SIMPLE, *SUBMIT, "--json", lm=lm).json
    assert told["batches"] == {"batch_0": 5, "batch_1": 5, "batch_2": 2}
    server.polls = 0
    assert run(topics, server, *SIMPLE, *COLLECT, "--json", lm=lm).json["replies"] == 12


def test_a_batch_keeps_to_a_budget(topics: Path, server: ScriptedServer) -> None:
    price = ("--price", "0,1000", "--max-tokens", "100")  # 0.05 USD each at most
    told = run(topics, server, *SIMPLE, *SUBMIT, *price, "--budget", "0.26", "--json").json
    assert told["batches"] == {"batch_0": 5}
    assert "budget of 0.26 USD" in told["stopped"]
    unpriced = strop(*command(topics, server, *SIMPLE, *SUBMIT, "--budget", "1"))
    assert unpriced.code == 1
    assert "is not known" in unpriced.stderr


@both
def test_a_batch_that_may_have_begun_is_not_sent_twice(
    topics: Path, server: ScriptedServer, tmp_path: Path, lm: str
) -> None:
    """The service took it, the answer was lost: its results are downloaded and given as a file."""

    def taken_and_dropped(seen: object) -> object:
        server.respond(seen)  # type: ignore[arg-type]
        return drop(seen)  # type: ignore[arg-type]

    if lm.startswith("openai"):
        server.script.append(server.respond)  # the upload
    server.script.append(taken_and_dropped)  # type: ignore[arg-type]
    ran = strop(*command(topics, server, *SIMPLE, *SUBMIT, lm=lm))
    assert ran.code == 1
    assert "may have begun" in ran.stderr
    again = strop(*command(topics, server, *SIMPLE, *SUBMIT, lm=lm))
    assert again.code == 1
    assert "--replies-in FILE" in again.stderr
    assert sent(server) == 12
    results = tmp_path / "results.jsonl"
    results.write_text(jsonl(*downloaded(server, "batch_0", lm)))
    run(topics, server, *SIMPLE, "--replies-in", results, lm=lm)
    assert len(query_lists(topics, "simple")) == 12
    assert "no request is open" in run(topics, server, *SIMPLE, *SUBMIT, lm=lm).stdout
    assert sent(server) == 12


def test_a_batch_that_did_not_begin_is_sent_with_again(
    topics: Path, server: ScriptedServer
) -> None:
    server.script += [server.respond, drop]
    assert strop(*command(topics, server, *SIMPLE, *SUBMIT)).code == 1
    assert strop(*command(topics, server, *SIMPLE, *SUBMIT)).code == 1
    run(topics, server, *SIMPLE, *SUBMIT, "--again")
    assert sent(server) == 12


def test_two_plans_out_at_once_keep_their_provenance(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE, *SUBMIT)
    run(topics, server, *SIMPLE, *SUBMIT, "--noun", "question")
    server.polls = 0
    run(topics, server, *SIMPLE, *COLLECT)
    nouns = [json.loads(told)["prompt"]["noun"] for (told,) in rows(
        topics, "SELECT settings FROM replies")]  # fmt: skip
    assert sorted(nouns) == ["query"] * 12 + ["question"] * 12


def test_documents_that_change_meanwhile(topics: Path, server: ScriptedServer) -> None:
    """What was paid for is kept; the new text is asked about."""
    run(topics, server, *SIMPLE, *SUBMIT)
    strop("add", topics, "-", stdin=jsonl(record(3, " A new end.")))
    strop("remove", topics, "d5")
    server.polls = 0
    run(topics, server, *SIMPLE, *COLLECT)
    assert count_rows(topics, "replies") == 12
    assert set(query_lists(topics, "simple")) == set(IDS) - {"d3", "d5"}
    run(topics, server, *SIMPLE)
    assert count_requests(server) == 1


# -- files ---------------------------------------------------------------------------------------


def answered(server: ScriptedServer, requests: Path, lm: str) -> list[dict[str, object]]:
    """Answer a file of requests as the vendor's batches do."""
    found = [json.loads(line) for line in requests.read_text("utf-8").splitlines()]
    if lm.startswith("openai"):
        made = [server.openai_result(r["custom_id"], r["body"], "succeeded") for r in found]
    else:
        made = [server.anthropic_result(r["custom_id"], r["params"], "succeeded") for r in found]
    return [one for one in made if one is not None]


@both
def test_requests_go_out_in_a_file_and_replies_come_in(
    topics: Path, server: ScriptedServer, tmp_path: Path, lm: str
) -> None:
    out, back = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    assert run(topics, server, *SIMPLE, "--requests-out", out, "--json", lm=lm).json[
        "requests"
    ] == 12  # fmt: skip
    made = answered(server, out, lm)
    failed = (server.openai_result if lm.startswith("openai") else server.anthropic_result)(
        str(made[0]["custom_id"]), {}, "errored"
    )
    back.write_text(jsonl(failed, *made[1:], {**made[1], "custom_id": "of-someone-else"}))
    ran = run(topics, server, *SIMPLE, "--replies-in", back, lm=lm)
    assert "1 request failed" in ran.stderr
    assert "1 reply left out: no matching request" in ran.stderr
    assert ran.stderr.endswith("--retry-failed\n")
    assert "--replies-in" not in ran.stderr.splitlines()[-1]
    assert len(query_lists(topics, "simple")) == 11
    again = run(topics, server, *SIMPLE, "--replies-in", back, "--json", lm=lm).json
    assert (again["replies"], again["documents"]) == (0, 11)
    stdin = jsonl(made[0])
    assert run(topics, server, *SIMPLE, "--replies-in", "-", "--json", lm=lm, stdin=stdin).json[
        "replies"
    ] == 1  # fmt: skip
    assert len(query_lists(topics, "simple")) == 12
    assert not server.seen


@pytest.mark.parametrize("bad", ["{", '{"custom_id": "x"}', "[]", '{"response": {}}'])
def test_a_bad_line_changes_nothing(
    topics: Path, server: ScriptedServer, tmp_path: Path, bad: str
) -> None:
    out, back = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    run(topics, server, *SIMPLE, "--requests-out", out)
    back.write_text(jsonl(*answered(server, out, "openai:m")) + bad + "\n")
    ran = strop(*command(topics, server, *SIMPLE, "--replies-in", back))
    assert (ran.code, ran.stdout) == (1, "")
    assert "replies.jsonl line 13" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert count_rows(topics, "replies") == 0


def test_texts_to_be_continued_are_written_as_such(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    out = tmp_path / "requests.jsonl"
    run(topics, server, *SIMPLE, "--profile", "small", "--requests-out", out)
    line = json.loads(out.read_text("utf-8").splitlines()[0])
    assert line["url"] == "/v1/completions"
    assert line["body"]["prompt"].endswith("Relevant query:")


def test_a_batch_that_the_service_has_forgotten(topics: Path, server: ScriptedServer) -> None:
    server.polls = 0
    run(topics, server, *SIMPLE, *SUBMIT, "--limit", "5")
    run(topics, server, *SIMPLE, *SUBMIT)
    assert len(server.batches) == 2
    server.script.append(answer(404, {"error": {"message": "no such batch"}}))
    ran = run(topics, server, *SIMPLE, *COLLECT)
    assert "batch batch_0 is not known there" in ran.stderr
    assert "--batch collect --again" in ran.stderr
    assert len(query_lists(topics, "simple")) == 7
    run(topics, server, *SIMPLE)  # it may be of another account: its questions are still out
    assert count_requests(server) == 0
    server.script.append(answer(404, {"error": {"message": "no such batch"}}))
    run(topics, server, *SIMPLE, *COLLECT, "--again")
    run(topics, server, *SIMPLE)
    assert (len(query_lists(topics, "simple")), count_requests(server)) == (12, 5)


def test_a_batch_that_another_key_did_not_see_is_collected_later(
    topics: Path, server: ScriptedServer
) -> None:
    server.polls = 0
    run(topics, server, *SIMPLE, *SUBMIT)
    server.script.append(answer(404, {"error": {"message": "no such batch"}}))
    run(topics, server, *SIMPLE, *COLLECT)
    assert run(topics, server, *SIMPLE, *COLLECT, "--json").json["replies"] == 12
    assert sent(server) == 12


def test_a_batch_that_cannot_be_written_down_is_not_sent_twice(
    topics: Path, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise BadIndex("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("strop.storage.replies.SentBatches.record", refuse)
        ran = strop(*command(topics, server, *SIMPLE, *SUBMIT))
    assert ran.code == 1
    assert "the disk is full" in ran.stderr
    assert "batch batch_0 has begun" in ran.stderr
    assert "--replies-in FILE" in ran.stderr
    assert strop(*command(topics, server, *SIMPLE, *SUBMIT)).code == 1
    results = tmp_path / "results.jsonl"
    results.write_text(jsonl(*downloaded(server, "batch_0", "openai:m")))
    run(topics, server, *SIMPLE, "--replies-in", results)
    assert "no request is open" in run(topics, server, *SIMPLE, *SUBMIT).stdout
    assert (len(query_lists(topics, "simple")), sent(server)) == (12, 12)


def test_batches_say_nothing_about_how_long_a_call_takes(
    topics: Path, server: ScriptedServer
) -> None:
    server.polls = 0
    run(topics, server, *SIMPLE, *SUBMIT, "--limit", "4")
    run(topics, server, *SIMPLE, *COLLECT)
    told = run(topics, server, *SIMPLE, "--dry-run", "--json").json
    assert (told["calls"], told["stored"], told["guessed"]) == (8, 4, False)
    assert told["seconds"] > 0
