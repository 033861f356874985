"""The perplexity of texts under a causal language model, cached."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strop.common.cache import Cache, cache_file
from strop.errors import BadInput, MissingExtra, StropError
from strop.lm.llama import SMOLLM2, packaged_model
from strop.types import Progress

PREFIX = "hf:"


@dataclass(frozen=True)
class PerplexitySettings:
    """The model, the number of tokens it reads of a text, and the number of sampled documents.

    ``lm`` is ``hf:<hub id or folder>``, ``hf:<file.gguf>`` or ``smollm2`` (from its package).
    """

    lm: str = SMOLLM2
    max_tokens: int = 256
    documents: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lm != SMOLLM2 and not (self.lm.startswith(PREFIX) and self.lm != PREFIX):
            raise BadInput(
                f"no perplexity model {self.lm!r}: use {SMOLLM2}, hf:<hub id or folder> or "
                "hf:<file.gguf>"
            )
        if self.max_tokens < 2 or self.documents < 2:
            raise BadInput("perplexity needs 2 tokens and 2 documents at least")

    def file(self) -> Path | None:
        """Return the GGUF file, None if the model is not a GGUF file."""
        if self.lm == SMOLLM2:
            return packaged_model()
        path = Path(self.lm.removeprefix(PREFIX)).expanduser()
        return path if path.suffix == ".gguf" else None

    def missing(self) -> StropError | None:
        """Return what is missing (a package, a file) as an error, None if nothing is."""
        try:
            file = self.file()
        except StropError as error:
            return error
        needed = ("transformers", "torch", *(("gguf", "accelerate") if file else ()))
        if any(find_spec(package) is None for package in needed):
            return MissingExtra("perplexity", "perplexity")
        if file is not None and not file.is_file():
            return BadInput(f"perplexity: there is no file {file}")
        return None


def perplexities(
    texts: Sequence[str], settings: PerplexitySettings, progress: Progress | None = None
) -> list[float]:
    """Return exp(mean negative log-likelihood) of each text; NaN for one of a single token.

    The first token is given, not predicted. Values are cached, so the model is loaded only for new
    texts.
    """
    if lacking := settings.missing():
        raise lacking
    about = [settings.lm, _identity(settings), settings.max_tokens]
    keys = [hashlib.sha256(json.dumps([*about, text]).encode()).digest() for text in texts]
    cache = Cache(cache_file("perplexity.sqlite"), "perplexities")
    stored = cache.get(keys)
    new = {key: text for key, text in zip(keys, texts, strict=True) if key not in stored}
    if new:
        perplexity = load_perplexity(settings)
        for done, (key, text) in enumerate(new.items(), 1):
            stored[key] = struct.pack("<d", perplexity(text))
            cache.put({key: stored[key]})
            if progress is not None:
                progress("measuring perplexity", done, len(new))
    return [struct.unpack("<d", stored[key])[0] for key in keys]


def _identity(settings: PerplexitySettings) -> str:
    """Return a fingerprint of a GGUF file, "" for other models."""
    file = settings.file()
    if file is None:
        return ""
    with open(file, "rb") as stream:
        return f"{file.stat().st_size} {hashlib.sha256(stream.read(1 << 22)).hexdigest()}"


def load_perplexity(settings: PerplexitySettings) -> Any:
    """Return a function from a text to its perplexity."""
    import torch
    import transformers

    file = settings.file()
    source = str(file.parent) if file else str(settings.lm.removeprefix(PREFIX))
    gguf_options: dict[str, Any] = {"gguf_file": file.name} if file else {}
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    with redirect_stderr(io.StringIO()):  # transformers draws progress bars of its own
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **gguf_options)
            model = load(source, dtype=torch.float32, **gguf_options).eval()
        except (OSError, ValueError) as error:
            problem = f"{settings.lm} cannot be loaded as a causal language model"
            raise StropError(f"{problem}: {error}") from error

    def perplexity(text: str) -> float:
        ids = tokenizer(
            text, return_tensors="pt", truncation=True, max_length=settings.max_tokens
        ).input_ids
        if ids.shape[1] < 2:
            return math.nan
        with torch.inference_mode():
            loss = model(input_ids=ids, labels=ids).loss
        return math.exp(float(loss))

    return perplexity
