"""Settings of well-known models: pooling, prompts, padding, lengths (``presets.json``).

None of these models has been run with its real weights by strop's tests, which have no access
to them; the tests run every preset on small random models of the same architecture and compare
with a literal computation. The facts were read at the addresses in ``source``.

strop makes unit vectors of all of them. The authors of Contriever score with the dot product of
raw vectors; cosine is what the sharpening formula is defined on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

Pooling = Literal["mean", "cls", "lasttoken", "max", "weightedmean"]

_WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Preset:
    """A model and the way to use it. "{task}" in a prompt is replaced by the task's wording."""

    name: str
    model: str
    """Its id on the model hub; the option ``path`` replaces it by a local folder."""
    pooling: Pooling
    max_length: int
    """In tokens, with prompt and special tokens; longer texts are cut at the end."""
    source: str
    query_prompt: str = ""
    document_prompt: str = ""
    task: str = _WEB_SEARCH
    pool_prompt: bool = True
    """False leaves the tokens of the prompt out of the pooling."""
    padding_side: Literal["left", "right"] = "right"
    end_token: str = ""
    """Put after each text, unless the tokenizer does so by itself."""
    bidirectional: bool = False
    """True for decoder models trained with bidirectional attention."""
    dtype: str = "float32"
    note: str = ""


_DATA = json.loads((files("strop.embed") / "presets.json").read_text("utf-8"))

PRESETS: dict[str, Preset] = {name: Preset(name, **row) for name, row in _DATA["presets"].items()}
TASKS: dict[str, str] = _DATA["tasks"]
"""Wordings of ``task`` by dataset: ``load("e5-mistral", task="scifact")``.

Those of BEIR are as in evaluation/eval_mteb.py of ContextualAI/gritlm, which follows E5; ``miracl``
is the same authors' wording for questions over Wikipedia. Those of BRIGHT are as in
evaluation/bright/configs/reasonir of facebookresearch/ReasonIR, with the names of domains spelled
as in reasonir_model.py of embeddings-benchmark/mteb.
"""
