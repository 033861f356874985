"""Generation with batch services and with files of requests and replies."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
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
from helpers.scripted_server import Json, ScriptedServer, answer, drop

from strop.errors import BadIndex
from strop.lm.batches import AnthropicBatches, OpenAIBatches

SIMPLE = ("--style", "simple")
SUBMIT, COLLECT = ("--batch", "submit"), ("--batch", "collect")
both = pytest.mark.parametrize("lm", ["openai:m", "anthropic:m"])


def make_result(server: ScriptedServer, lm: str) -> Callable[[str, Json, str], Json | None]:
    """The service's function that makes the result of a request in a batch."""
    return server.openai_result if lm.startswith("openai") else server.anthropic_result


def make_results(
    server: ScriptedServer, requests: Iterable[tuple[str, Json]], lm: str
) -> list[Json]:
    """The results of the requests (custom id, body) of a batch that succeeded."""
    results = [make_result(server, lm)(name, body, "succeeded") for name, body in requests]
    return [result for result in results if result is not None]


def download(server: ScriptedServer, batch: str, lm: str) -> list[Json]:
    """The results of a batch as the vendor's website gives them."""
    return make_results(server, server.batches[batch]["requests"], lm)


def count_submitted(server: ScriptedServer) -> int:
    return sum(len(batch["requests"]) for batch in server.batches.values())


@both
def test_submit_status_and_collect(topics: Path, server: ScriptedServer, lm: str) -> None:
    report = run(topics, server, *SIMPLE, *SUBMIT, "--json", lm=lm).json
    assert report == {"batches": {"batch_0": 12}, "stopped": "", "next_cost": 0.0}
    assert "no request is open" in run(topics, server, *SIMPLE, *SUBMIT, lm=lm).stdout
    run(topics, server, *SIMPLE, lm=lm)  # a plain run does not send submitted requests
    assert (count_submitted(server), count_requests(server)) == (12, 0)
    server.polls = 1
    assert "batch_0: in_progress" in run(topics, server, *SIMPLE, "--batch", "status", lm=lm).stdout
    price = ("--price", "1,1000", "--json")
    collected = run(topics, server, *SIMPLE, *COLLECT, *price, lm=lm).json
    assert (collected["replies"], collected["failures"], collected["documents"]) == (12, 0, 12)
    n_input, n_output = rows(topics, "SELECT sum(input_tokens), sum(output_tokens) FROM replies")[0]
    assert collected["cost"] == pytest.approx((n_input + 1000 * n_output) / 1e6 / 2)
    assert "no batch is running" in run(topics, server, *SIMPLE, "--batch", "status", lm=lm).stdout
    assert set(query_lists(topics, "simple")) == set(IDS)
    run(topics, server, *SIMPLE, lm=lm)
    assert count_requests(server) == 0


@both
def test_failed_requests_of_a_batch_are_submitted_again(
    topics: Path, server: ScriptedServer, tmp_path: Path, lm: str
) -> None:
    outcomes = iter(["errored", "invalid", "expired", "canceled", "missing"])
    server.outcome, server.polls = lambda name: next(outcomes, "succeeded"), 0
    run(topics, server, *SIMPLE, *SUBMIT, lm=lm)
    result = run(topics, server, *SIMPLE, *COLLECT, "--again", lm=lm)
    assert "5 requests failed" in result.stderr
    assert len(query_lists(topics, "simple")) == 7
    assert count_rows(topics, "failures WHERE final") == 1
    retry = shlex.split(result.stderr.splitlines()[-1].partition(": ")[2])[1:]
    assert not {"collect", "--again"} & set(retry)
    assert strop(*retry).code == 0
    assert count_submitted(server) == 17
    out = tmp_path / "made.jsonl"
    run(topics, server, *SIMPLE, *COLLECT, "--queries-out", out, lm=lm)
    assert len(out.read_text("utf-8").splitlines()) == 12
    assert len(query_lists(topics, "simple")) == 12
    assert count_rows(topics, "failures") == 0


def test_a_batch_that_fails_as_a_whole(topics: Path, server: ScriptedServer) -> None:
    server.batch_error, server.polls = "the file is bad", 0
    run(topics, server, *SIMPLE, *SUBMIT)
    result = strop(*command(topics, server, *SIMPLE, *COLLECT))
    assert result.code == 1
    assert "12 requests failed" in result.stderr
    assert "the file is bad" in result.stderr
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
    report = run(topics, server, *SIMPLE, *SUBMIT, "--json", lm=lm).json
    assert report["batches"] == {"batch_0": 5, "batch_1": 5, "batch_2": 2}
    server.polls = 0
    assert run(topics, server, *SIMPLE, *COLLECT, "--json", lm=lm).json["replies"] == 12


def test_a_batch_stays_within_the_budget(topics: Path, server: ScriptedServer) -> None:
    price = ("--price", "0,1000", "--max-tokens", "100")  # 0.05 USD each at most
    report = run(topics, server, *SIMPLE, *SUBMIT, *price, "--budget", "0.26", "--json").json
    assert report["batches"] == {"batch_0": 5}
    assert "budget of 0.26 USD" in report["stopped"]
    unpriced = strop(*command(topics, server, *SIMPLE, *SUBMIT, "--budget", "1"))
    assert unpriced.code == 1
    assert "is not known" in unpriced.stderr


@both
def test_a_batch_that_may_have_begun_is_not_sent_twice(
    topics: Path, server: ScriptedServer, tmp_path: Path, lm: str
) -> None:
    """The service took it but the answer was lost: its results are downloaded and read."""

    def taken_and_dropped(seen: object) -> object:
        server.respond(seen)  # type: ignore[arg-type]
        return drop(seen)  # type: ignore[arg-type]

    if lm.startswith("openai"):
        server.script.append(server.respond)  # the upload
    server.script.append(taken_and_dropped)  # type: ignore[arg-type]
    result = strop(*command(topics, server, *SIMPLE, *SUBMIT, lm=lm))
    assert result.code == 1
    assert "may have begun" in result.stderr
    again = strop(*command(topics, server, *SIMPLE, *SUBMIT, lm=lm))
    assert again.code == 1
    assert "--replies-in FILE" in again.stderr
    assert count_submitted(server) == 12
    results = tmp_path / "results.jsonl"
    results.write_text(jsonl(*download(server, "batch_0", lm)))
    run(topics, server, *SIMPLE, "--replies-in", results, lm=lm)
    assert len(query_lists(topics, "simple")) == 12
    assert "no request is open" in run(topics, server, *SIMPLE, *SUBMIT, lm=lm).stdout
    assert count_submitted(server) == 12


def test_again_submits_a_batch_that_did_not_begin(topics: Path, server: ScriptedServer) -> None:
    server.script += [server.respond, drop]
    assert strop(*command(topics, server, *SIMPLE, *SUBMIT)).code == 1
    assert strop(*command(topics, server, *SIMPLE, *SUBMIT)).code == 1
    run(topics, server, *SIMPLE, *SUBMIT, "--again")
    assert count_submitted(server) == 12


def test_two_submitted_plans_keep_their_provenance(topics: Path, server: ScriptedServer) -> None:
    run(topics, server, *SIMPLE, *SUBMIT)
    run(topics, server, *SIMPLE, *SUBMIT, "--noun", "question")
    server.polls = 0
    run(topics, server, *SIMPLE, *COLLECT)
    nouns = [json.loads(settings)["prompt"]["noun"] for (settings,) in rows(
        topics, "SELECT settings FROM replies")]  # fmt: skip
    assert sorted(nouns) == ["query"] * 12 + ["question"] * 12


def test_documents_that_change_while_a_batch_runs(topics: Path, server: ScriptedServer) -> None:
    """Replies are stored; the new text gets a new request."""
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


def answer_file(server: ScriptedServer, requests: Path, lm: str) -> list[Json]:
    """The results that the vendor's batches give for a file of requests."""
    records = [json.loads(line) for line in requests.read_text("utf-8").splitlines()]
    field = "body" if lm.startswith("openai") else "params"
    return make_results(server, [(record["custom_id"], record[field]) for record in records], lm)


@both
def test_requests_are_written_and_replies_are_read(
    topics: Path, server: ScriptedServer, tmp_path: Path, lm: str
) -> None:
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    assert run(topics, server, *SIMPLE, "--requests-out", requests, "--json", lm=lm).json[
        "requests"
    ] == 12  # fmt: skip
    results = answer_file(server, requests, lm)
    failure = make_result(server, lm)(results[0]["custom_id"], {}, "errored")
    replies.write_text(jsonl(failure, *results[1:], {**results[1], "custom_id": "of-someone-else"}))
    result = run(topics, server, *SIMPLE, "--replies-in", replies, lm=lm)
    assert "1 request failed" in result.stderr
    assert "1 reply left out: no matching request" in result.stderr
    assert result.stderr.endswith("--retry-failed\n")
    assert "--replies-in" not in result.stderr.splitlines()[-1]
    assert len(query_lists(topics, "simple")) == 11
    again = run(topics, server, *SIMPLE, "--replies-in", replies, "--json", lm=lm).json
    assert (again["replies"], again["documents"]) == (0, 11)
    stdin = jsonl(results[0])
    assert run(topics, server, *SIMPLE, "--replies-in", "-", "--json", lm=lm, stdin=stdin).json[
        "replies"
    ] == 1  # fmt: skip
    assert len(query_lists(topics, "simple")) == 12
    assert not server.seen


@pytest.mark.parametrize("bad", ["{", '{"custom_id": "x"}', "[]", '{"response": {}}'])
def test_a_bad_line_changes_nothing(
    topics: Path, server: ScriptedServer, tmp_path: Path, bad: str
) -> None:
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    run(topics, server, *SIMPLE, "--requests-out", requests)
    replies.write_text(jsonl(*answer_file(server, requests, "openai:m")) + bad + "\n")
    result = strop(*command(topics, server, *SIMPLE, "--replies-in", replies))
    assert (result.code, result.stdout) == (1, "")
    assert "replies.jsonl line 13" in result.stderr
    assert result.stderr.count("\n") == 1
    assert count_rows(topics, "replies") == 0


def test_completion_requests_are_written_as_such(
    topics: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    out = tmp_path / "requests.jsonl"
    run(topics, server, *SIMPLE, "--profile", "small", "--requests-out", out)
    line = json.loads(out.read_text("utf-8").splitlines()[0])
    assert line["url"] == "/v1/completions"
    assert line["body"]["prompt"].endswith("Relevant query:")


def test_a_batch_that_the_service_does_not_know(topics: Path, server: ScriptedServer) -> None:
    server.polls = 0
    run(topics, server, *SIMPLE, *SUBMIT, "--limit", "5")
    run(topics, server, *SIMPLE, *SUBMIT)
    assert len(server.batches) == 2
    server.script.append(answer(404, {"error": {"message": "no such batch"}}))
    result = run(topics, server, *SIMPLE, *COLLECT)
    assert "batch batch_0 is not known there" in result.stderr
    assert "--batch collect --again" in result.stderr
    assert len(query_lists(topics, "simple")) == 7
    run(topics, server, *SIMPLE)  # it may be of another account: its requests stay submitted
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
    assert count_submitted(server) == 12


def test_a_batch_that_cannot_be_recorded_is_not_sent_twice(
    topics: Path, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise BadIndex("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("strop.storage.replies.SentBatches.record", refuse)
        result = strop(*command(topics, server, *SIMPLE, *SUBMIT))
    assert result.code == 1
    assert "the disk is full" in result.stderr
    assert "batch batch_0 has begun" in result.stderr
    assert "--replies-in FILE" in result.stderr
    assert strop(*command(topics, server, *SIMPLE, *SUBMIT)).code == 1
    results = tmp_path / "results.jsonl"
    results.write_text(jsonl(*download(server, "batch_0", "openai:m")))
    run(topics, server, *SIMPLE, "--replies-in", results)
    assert "no request is open" in run(topics, server, *SIMPLE, *SUBMIT).stdout
    assert (len(query_lists(topics, "simple")), count_submitted(server)) == (12, 12)


def test_batches_do_not_change_the_expected_seconds_per_call(
    topics: Path, server: ScriptedServer
) -> None:
    server.polls = 0
    run(topics, server, *SIMPLE, *SUBMIT, "--limit", "4")
    run(topics, server, *SIMPLE, *COLLECT)
    estimate = run(topics, server, *SIMPLE, "--dry-run", "--json").json
    assert (estimate["calls"], estimate["stored"], estimate["guessed"]) == (8, 4, False)
    assert estimate["seconds"] > 0
