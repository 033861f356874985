"""Requests, replies and queries on shards, against a real local service and an index folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.commands import jsonl, strop
from helpers.generation import TOPICS, write
from helpers.scripted_server import Answer, ScriptedServer, Seen

from strop import Index
from strop.distributed.shards import Manifest
from strop.lm.batch_files import read_replies


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(2):
        rows = [
            {"id": f"d{i}", "text": f"Notes on {topic}, part {i}. They tell how {topic} work."}
            for i, topic in enumerate(TOPICS)
            if i // 6 == part
        ]
        (folder / f"{part}.jsonl").write_text(jsonl(*rows), "utf-8")
    return folder


def cluster(corpus: Path, folder: Path, server: ScriptedServer, *args: str) -> dict[str, object]:
    quick = ("--lm-option", "retries=0", "--lm-option", "backoff=0.01", "--workers", "1")
    model = ("--lm", "openai:m", "--base-url", server.url, *quick, "--shard-documents", "4")
    ran = strop("cluster", "run", corpus, "-o", folder, *model, *args, "--json")
    assert ran.code == 0, ran.stderr
    return dict(ran.json)


@pytest.mark.parametrize("style", ["contrastive", "simple"])
def test_queries_equal_those_of_an_index(
    corpus: Path, server: ScriptedServer, tmp_path: Path, style: str
) -> None:
    shards, given = tmp_path / "shards", ("--style", style)
    cluster(corpus, shards, server, "--stage", "replies", *given)
    calls = len(server.seen)
    assert calls >= len(TOPICS)
    cluster(corpus, shards, server, "--stage", "queries", *given)
    assert cluster(corpus, shards, server, "--stage", "queries", *given)["done"] == {}
    assert cluster(corpus, shards, server, "--stage", "replies", *given)["done"] == {}
    assert strop("cluster", "import", shards, tmp_path / "imported").code == 0
    everything = "".join(file.read_text() for file in sorted(corpus.iterdir()))
    strop("build", "-", "-o", tmp_path / "built", "--queries", "none", stdin=everything)
    assert len(server.seen) == calls
    command: list[str | Path] = [
        "queries",
        tmp_path / "built",
        "--lm",
        "openai:m",
        "--base-url",
        server.url,
        *given,
    ]
    assert strop(*command).code == 0
    sent = {one.raw for one in server.seen[:calls]}
    assert {one.raw for one in server.seen[calls:]} == sent  # the same requests, word for word
    with Index.open(tmp_path / "built") as built, Index.open(tmp_path / "imported") as index:
        for id_ in built.ids():
            assert index.queries_of(id_) == built.queries_of(id_)
            assert index.queries_of(id_)[style]
        want, got = built.info()["sets"][style], index.info()["sets"][style]
        assert (got["source"], got["queries"]) == ("lm", want["queries"])
    # The index has the replies: asking again costs nothing.
    before = len(server.seen)
    command[1] = tmp_path / "imported"
    assert strop(*command).code == 0
    assert len(server.seen) == before


def test_request_files_are_answered_elsewhere(
    corpus: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    shards, given = tmp_path / "shards", ("--style", "simple")
    assert cluster(corpus, shards, server, "--stage", "requests", *given)["done"]
    ran = strop(
        "cluster", "run", corpus, "-o", shards, "--lm", "openai:m", "--stage", "queries", *given,
        "--shard-documents", "4", "--workers", "1",
    )  # fmt: skip
    assert ran.code == 1
    assert "put the service's results of requests/simple/00000-00000.jsonl there" in ran.stderr
    (shards / "replies" / "simple").mkdir(parents=True)
    for file in sorted((shards / "requests" / "simple").glob("*-*.jsonl")):
        answers = []
        for line in file.read_text().splitlines():
            request = json.loads(line)
            text = write(request["body"]["messages"][-1]["content"])
            body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
            response = {"status_code": 200, "body": body}
            answers.append({"custom_id": request["custom_id"], "response": response})
        (shards / "replies" / "simple" / file.name).write_text(jsonl(*answers), "utf-8")
    cluster(corpus, shards, server, "--stage", "queries", *given)
    assert not server.seen
    assert cluster(corpus, shards, server, "--stage", "requests", *given)["left"] == {}
    left = [one.read_text() for one in (shards / "requests" / "simple").glob("*-*.jsonl")]
    assert left == [""] * 4  # no request is open any more
    assert strop("cluster", "import", shards, tmp_path / "index").code == 0
    with Index.open(tmp_path / "index") as index:
        assert all(len(index.queries_of(id_)["simple"]) == 2 for id_ in index.ids())


def test_replies_are_kept_as_they_come(
    corpus: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    shards, given = tmp_path / "shards", ("--style", "simple", "--stage", "replies")

    def act(seen: Seen) -> Answer:
        return server.respond(seen) if b"apple" in seen.raw or b"dams" in seen.raw else Answer(503)

    server.act = act
    left = cluster(corpus, shards, server, *given)["left"]
    assert left == {"replies:open": len(TOPICS) - 2}
    path = shards / "replies" / "simple" / "00000-00000.jsonl"
    assert len(list(read_replies(path))) == 2
    with path.open("a") as file:
        file.write('{"custom_id": "s12", "resp')  # cut off by a kill
    server.act, before = server.respond, len(server.seen)
    assert cluster(corpus, shards, server, *given)["left"] == {}
    assert len(server.seen) - before == len(TOPICS) - 2
    lines = Manifest(shards / "replies" / "simple").lines
    assert all(line["complete"] for line in lines.values())


def test_a_budget_is_shared_by_the_shards(
    corpus: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    price = ("--price", "1,1000", "--max-tokens", "100", "--budget", "0.5")
    cluster(corpus, tmp_path / "s", server, "--style", "simple", "--stage", "replies", *price)
    assert len(server.seen) == 4  # a call may cost 0.10 and a little, a shard's share is 0.125


def test_a_model_is_asked_for(corpus: Path, tmp_path: Path) -> None:
    ran = strop("cluster", "run", corpus, "-o", tmp_path / "s", "--stage", "requests",
                "--style", "simple")  # fmt: skip
    assert ran.code == 2
    assert "--style simple needs a language model: --lm SPEC" in ran.stderr
