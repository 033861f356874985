"""Requests, replies and queries on shards, with a local service, compared with an index folder."""

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


def run_cluster(
    corpus: Path, folder: Path, server: ScriptedServer, *args: str
) -> dict[str, object]:
    options = ("--lm-option", "retries=0", "--lm-option", "backoff=0.01", "--workers", "1")
    model = ("--lm", "openai:m", "--base-url", server.url, *options, "--shard-documents", "4")
    result = strop("cluster", "run", corpus, "-o", folder, *model, *args, "--json")
    assert result.code == 0, result.stderr
    return dict(result.json)


@pytest.mark.parametrize("style", ["contrastive", "simple"])
def test_queries_equal_those_of_an_index(
    corpus: Path, server: ScriptedServer, tmp_path: Path, style: str
) -> None:
    shards, style_option = tmp_path / "shards", ("--style", style)
    run_cluster(corpus, shards, server, "--stage", "replies", *style_option)
    n_requests = len(server.seen)
    assert n_requests >= len(TOPICS)
    run_cluster(corpus, shards, server, "--stage", "queries", *style_option)
    assert run_cluster(corpus, shards, server, "--stage", "queries", *style_option)["done"] == {}
    assert run_cluster(corpus, shards, server, "--stage", "replies", *style_option)["done"] == {}
    assert strop("cluster", "import", shards, tmp_path / "imported").code == 0
    records = "".join(file.read_text() for file in sorted(corpus.iterdir()))
    strop("build", "-", "-o", tmp_path / "built", "--queries", "none", stdin=records)
    assert len(server.seen) == n_requests
    command: list[str | Path] = [
        "queries",
        tmp_path / "built",
        "--lm",
        "openai:m",
        "--base-url",
        server.url,
        *style_option,
    ]
    assert strop(*command).code == 0
    bodies = {request.raw for request in server.seen[:n_requests]}
    assert {request.raw for request in server.seen[n_requests:]} == bodies  # the same requests
    with Index.open(tmp_path / "built") as built, Index.open(tmp_path / "imported") as index:
        for id_ in built.ids():
            assert index.queries_of(id_) == built.queries_of(id_)
            assert index.queries_of(id_)[style]
        expected, imported = built.info()["sets"][style], index.info()["sets"][style]
        assert (imported["source"], imported["queries"]) == ("lm", expected["queries"])
    # The index has the replies, so no request is sent again.
    before = len(server.seen)
    command[1] = tmp_path / "imported"
    assert strop(*command).code == 0
    assert len(server.seen) == before


def test_request_files_can_be_answered_by_another_service(
    corpus: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    shards, style_option = tmp_path / "shards", ("--style", "simple")
    assert run_cluster(corpus, shards, server, "--stage", "requests", *style_option)["done"]
    result = strop(
        "cluster", "run", corpus, "-o", shards, "--lm", "openai:m", "--stage", "queries",
        *style_option, "--shard-documents", "4", "--workers", "1",
    )  # fmt: skip
    assert result.code == 1
    assert "put the service's results of requests/simple/00000-00000.jsonl there" in result.stderr
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
    run_cluster(corpus, shards, server, "--stage", "queries", *style_option)
    assert not server.seen
    assert run_cluster(corpus, shards, server, "--stage", "requests", *style_option)["left"] == {}
    open_requests = [
        file.read_text() for file in (shards / "requests" / "simple").glob("*-*.jsonl")
    ]
    assert open_requests == [""] * 4  # no request is open any more
    assert strop("cluster", "import", shards, tmp_path / "index").code == 0
    with Index.open(tmp_path / "index") as index:
        assert all(len(index.queries_of(id_)["simple"]) == 2 for id_ in index.ids())


def test_replies_are_stored_as_they_arrive(
    corpus: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    shards, options = tmp_path / "shards", ("--style", "simple", "--stage", "replies")

    def answer(seen: Seen) -> Answer:
        return server.respond(seen) if b"apple" in seen.raw or b"dams" in seen.raw else Answer(503)

    server.act = answer
    left = run_cluster(corpus, shards, server, *options)["left"]
    assert left == {"replies:open": len(TOPICS) - 2}
    path = shards / "replies" / "simple" / "00000-00000.jsonl"
    assert len(list(read_replies(path))) == 2
    with path.open("a") as file:
        file.write('{"custom_id": "s12", "resp')  # cut off by a kill
    server.act, before = server.respond, len(server.seen)
    assert run_cluster(corpus, shards, server, *options)["left"] == {}
    assert len(server.seen) - before == len(TOPICS) - 2
    lines = Manifest(shards / "replies" / "simple").lines
    assert all(line["complete"] for line in lines.values())


def test_the_budget_is_split_among_shards(
    corpus: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    price = ("--price", "1,1000", "--max-tokens", "100", "--budget", "0.5")
    run_cluster(corpus, tmp_path / "s", server, "--style", "simple", "--stage", "replies", *price)
    assert len(server.seen) == 4  # a request can cost a little over 0.10, a shard's share is 0.125


def test_generated_styles_need_a_model(corpus: Path, tmp_path: Path) -> None:
    result = strop("cluster", "run", corpus, "-o", tmp_path / "s", "--stage", "requests",
                "--style", "simple")  # fmt: skip
    assert result.code == 2
    assert "--style simple needs a language model: --lm SPEC" in result.stderr
