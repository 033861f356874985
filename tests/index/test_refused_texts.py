"""A text that the embedder refuses is set aside; all other work continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import jsonl, strop
from helpers.embedding_server import Handler, Server, good, items, serve
from helpers.fakes import Bag, Doubles, create, reopen

from strop import Document, Index
from strop.errors import BadInput, ServiceError, StropError, TextRefused


class Picky(Bag):
    """Refuses texts with the word ``bad``: by an error, or by NaN."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error
        self.refuses = "bad"

    def __call__(self, texts: Sequence[str], kind: str) -> Doubles:
        refused = [bool(self.refuses) and self.refuses in text.split() for text in texts]
        if any(refused) and self.error is not None:
            raise self.error
        vectors = super().__call__(texts, kind)
        vectors[refused] = np.nan
        return vectors


REFUSALS = [None, BadInput("too long"), TextRefused("too long"), ServiceError("too long", 413)]


@pytest.mark.parametrize("error", REFUSALS)
def test_other_texts_are_embedded_and_finish_tries_again(
    tmp_path: Path, error: Exception | None
) -> None:
    picky = Picky(error)
    texts = {f"d{at}": f"word{at} here." for at in range(20)} | {
        "d7": "bad one.",
        "d13": "bad two.",
    }
    with create(tmp_path / "index", picky) as index:
        index.add(Document(id_, text) for id_, text in texts.items())
        index.import_queries(
            {"d3": ["good"], "d4": ["fine", "a bad one"], "d5": ["nice"]}, "simple"
        )
        info = index.info()
        assert [(refusal["id"], refusal["set"]) for refusal in info["refused"]] == [
            ("d4", "simple"), ("d7", ""), ("d13", ""),
        ]  # fmt: skip
        reason = "NaN" if error is None else "too long"
        assert all(reason in refusal["reason"] for refusal in info["refused"])
        assert info["waiting"] == info["sets"]["simple"]["waiting"] == 0
        assert set(index.search("word3", k=30).ids[0]) == texts.keys() - {"d7", "d13"}
        assert index.queries_of("d5") == {"simple": ["nice"]}
        assert index.check() == []
        index.add([Document("d20", "word20 here.")])  # later documents are not blocked
        assert index.search("word20", k=1).ids[0, 0] == "d20"
        index.finish()
        assert len(index.info()["refused"]) == 3
        index.add([Document("d7", "good now.")])
        assert [refusal["id"] for refusal in index.info()["refused"]] == ["d4", "d13"]
        picky.refuses = ""
    with reopen(tmp_path / "index", picky) as index:
        index.finish()
        assert index.info()["refused"] == []
        assert index.search("bad two", k=1, method="trad").ids[0, 0] == "d13"
        assert index.queries_of("d4") == {"simple": ["fine", "a bad one"]}
        assert index.check() == []


@pytest.mark.parametrize("error", [ServiceError("down"), ServiceError("down", 503)])
def test_a_service_that_is_down_does_not_refuse_documents(
    tmp_path: Path, error: StropError
) -> None:
    with create(tmp_path / "index", Picky(error)) as index:
        with pytest.raises(ServiceError, match="down"):
            index.add([Document("a", "fine."), Document("b", "bad one.")])
        assert index.info()["refused"] == []
        assert index.info()["waiting"] == 2


def test_an_embedder_that_always_fails_does_not_refuse_documents(tmp_path: Path) -> None:
    class Broken(Bag):
        def __call__(self, texts: Sequence[str], kind: str) -> Doubles:
            raise BadInput("no such model")

    with create(tmp_path / "index", Broken()) as index:
        with pytest.raises(BadInput, match="no such model"):
            index.add([Document("a", "fine."), Document("b", "fine too.")])
        assert index.info()["refused"] == []


def test_refused_augmented_texts_are_named(tmp_path: Path) -> None:
    picky = Picky(BadInput("too long"))
    picky.refuses = "fine."
    with create(tmp_path / "index", picky) as index:
        index.add([Document("a", "good."), Document("b", "well")])
        picky.refuses = "well"
        index.import_queries({"a": ["x"], "b": ["y"]}, "simple")
        with pytest.raises(BadInput, match=r"first 'b': too long"):
            index.augment("simple")


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serve()


def test_a_service_refuses_one_text_and_takes_the_others(tmp_path: Path, server: Server) -> None:
    def at_most_100(handler: Handler, body: dict[str, Any]) -> None:
        if any(len(text) > 100 for text in body["input"]):
            handler.reply(400, {"error": {"message": "maximum context length"}})
        else:
            good(handler, body)

    server.default = at_most_100
    path = tmp_path / "index"
    with Index.create(path, "api:x", base_url=server.url) as index:
        index.add([Document("a", "short"), Document("b", "long " * 50), Document("c", "also")])
        (refused,) = index.info()["refused"]
        assert refused["id"] == "b"
        assert "maximum context length" in refused["reason"]
        assert set(index.search("short").ids[0]) == {"a", "c"}
    with Index.open(path, max_chars=80) as index:  # the named remedy
        index.finish()
        assert index.info()["refused"] == []
        assert set(index.search("short").ids[0]) == {"a", "b", "c"}


def test_commands_report_refused_texts(tmp_path: Path, server: Server) -> None:
    def no_whales(handler: Handler, body: dict[str, Any]) -> None:
        rows = items(body["input"])
        for row, text in zip(rows, body["input"], strict=True):
            if "whale" in text:
                row["embedding"][0] = float("nan")
        handler.reply(200, {"data": rows})

    server.default = no_whales
    path, corpus = tmp_path / "index", tmp_path / "corpus.jsonl"
    corpus.write_text(jsonl({"id": "cow", "text": "Cows."}, {"id": "sea", "text": "A whale."}))
    options = ("--base-url", server.url, "--option", "backoff=0.001", "--queries", "none")
    built = strop("build", corpus, "-o", path, "--embedder", "api:x", *options)
    assert built.code == 0
    assert "refuses 1 text" in built.stderr
    for verb in ("info", "check"):
        output = " ".join(strop(verb, path).stdout.split())
        assert "First: sea: " in output
        assert "NaN" in output
        assert strop(verb, path, "--json").json["refused"][0]["id"] == "sea"
    assert "refuses 1 text" in strop("finish", path).stderr
    server.default = good
    assert strop("finish", path, "--option", "max_chars=500").stderr == ""
    assert strop("check", path).stdout == "No damage found\n"
