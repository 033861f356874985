"""Estimates a cluster run: shards, time, storage and cost of each stage.

Rates are measured on a sample of the corpus on this machine, by the functions that the stages call.
The arithmetic is in ``stages_of``; ``benchmarks/plan.py`` checks it against runs.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from strop.common.arrays import unit_rows
from strop.distributed.generation import SENTENCES
from strop.distributed.neighbors import SAMPLED
from strop.distributed.run import cells_for, find_inputs
from strop.distributed.runners import in_subprocess
from strop.distributed.shards import read_table, vectors_in
from strop.distributed.tasks import Task, perform
from strop.errors import BadInput
from strop.generate import GenerationSettings, PromptSettings
from strop.generate.plan import EXPECTED_REFERENCES, expected_output
from strop.generate.prompts import build_prompt
from strop.io.corpora import read_corpus
from strop.io.files import atomic_write
from strop.io.sentences import MOST
from strop.lm import Price, count_tokens
from strop.references.neighbors import APPROXIMATE_ABOVE, neighbors_of, nonzero_rows
from strop.references.selection import choose_references
from strop.references.settings import ReferenceSettings
from strop.types import Document, Vectors

T = TypeVar("T")

SAMPLE = 2000
"""Documents on which rates are measured."""
PROBED_SHARE, PROBED_AT, PROBED_EXPONENT = 0.24, 50_000, -0.22
"""The share of cells that a document probes for a recall of 0.96, the number of documents at which
it was measured, and the exponent of its decrease with that number: measured on sentences
(docs/scaling.md)."""
_ONE_SHARD = {"reading": {}, "shard_documents": SAMPLE}
_LONGEST_TO_MEAN = 2.0
"""The duration of a stage's longest task, divided by the mean duration."""
_COPIES = 20
"""Copies of the sample, each slightly moved, that are compared."""
_LIST_BYTES = 1300
"""Bytes of references per document: a hundred neighbours, the references."""


@dataclass(frozen=True)
class Rates:
    """Work of one core per second, and properties of one document."""

    read: float
    """documents"""
    embed: float
    """texts of documents"""
    embed_queries: float
    """sentences"""
    pairs: float
    """documents compared with documents"""
    choose: float
    """documents whose references are chosen"""
    dim: int
    document_bytes: float
    """in a shard, compressed"""
    queries: float
    """sentences of a document"""
    query_bytes: float
    input_tokens: float
    """of a packed request"""
    output_tokens: float


@dataclass(frozen=True)
class Stage:
    """One stage: tasks, core-seconds in all, seconds on the cluster, bytes written, USD."""

    name: str
    tasks: int
    core_seconds: float
    seconds: float
    bytes: float
    cost: float | None = None


def measure(
    corpus: Path,
    embedder: Mapping[str, Any],
    reading: Mapping[str, Any],
    style: str = "contrastive",
) -> tuple[Rates, int]:
    """Measure rates on the first documents of a corpus; return them and its estimated size.

    A process with one thread measures processor time, so that other programs do not change the
    result; except for a service, whose waiting time is measured.
    """
    return in_subprocess(_measured, corpus, dict(embedder), dict(reading), style)


def _measured(
    corpus: Path, embedder: dict[str, Any], reading: dict[str, Any], style: str
) -> tuple[Rates, int]:
    inputs = find_inputs(corpus)
    documents = list(islice(read_corpus(inputs[0], **reading), SAMPLE))
    if len(documents) < 20:
        raise BadInput(f"{inputs[0]} has {len(documents)} documents: too few to measure anything")
    with tempfile.TemporaryDirectory() as scratch:
        measured, points, queries = _stages_on_sample(Path(scratch), documents, embedder)
    queried, settings = np.arange(min(200, len(points))), ReferenceSettings()
    replicated = _replicated(points)
    usable = nonzero_rows(replicated)
    near = neighbors_of(replicated, usable, queried, 100)  # compiles, as the next line does
    choose_references(replicated, near.rows[:1], near.similarities[:1], settings)
    compare, near = _timed(lambda: neighbors_of(replicated, usable, queried, 100))
    choose, _ = _timed(
        lambda: choose_references(replicated, near.rows, near.similarities, settings)
    )
    rates = Rates(
        read=len(documents) / measured["documents"],
        embed=len(documents) / measured["vectors"],
        embed_queries=max(1, len(queries)) / measured["queries"],
        pairs=len(replicated) * len(queried) / compare,
        choose=len(queried) / choose,
        dim=points.shape[1],
        document_bytes=measured.pop("bytes") / len(documents),
        queries=len(queries) / len(documents),
        query_bytes=sum(len(one.encode()) for one in queries) / max(1, len(queries)),
        **_tokens(documents, style),
    )
    return rates, _estimated_documents(inputs, documents)


def _stages_on_sample(
    folder: Path, documents: list[Document], embedder: dict[str, Any]
) -> tuple[dict[str, float], Vectors, list[str]]:
    """Run stages on a sample; return their seconds, the unit vectors and the sentences.

    The dictionary of seconds contains the ``bytes`` of the shard of documents, too.
    """
    shard, service = "00000-00000", embedder["name"].startswith("api:")
    source = folder / "sample.jsonl"
    with atomic_write(source) as file:
        for document in documents:
            record = {"id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps(record) + "\n")
    measured = dict[str, float]()
    for task in (
        Task("documents", "00000", "", {"source": str(source), **_ONE_SHARD}),
        Task("vectors", shard, "", {"embedder": embedder}),
        Task("queries", shard, "", {"style": SENTENCES, "embedder": embedder, "n": MOST}),
    ):
        perform(folder, task)  # loads and compiles what is needed
        result = perform(folder, task)
        # A service costs the time that we wait for it.
        measured[task.stage] = max(result.seconds if service else result.cpu, 1e-6)
        measured.setdefault("bytes", result.files[0].bytes)
    vectors = read_table(folder / "vectors" / f"{shard}.parquet")["vector"]
    queries = read_table(folder / "queries" / SENTENCES / f"{shard}.parquet")["queries"]
    sentences = [text for texts in queries.to_pylist() for text in texts]
    return measured, unit_rows(vectors_in(vectors)), sentences


def _replicated(points: Vectors) -> Vectors:
    """Return many more points than the sample has: among few, most are neighbours."""
    noise = np.random.default_rng(0).normal(0, 0.02, (_COPIES, *points.shape))
    return unit_rows((points + noise).reshape(-1, points.shape[1]).astype(np.float32))


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the processor seconds of a function call, and its result."""
    began = time.process_time()
    result = work()
    return max(time.process_time() - began, 1e-6), result


def _tokens(documents: list[Document], style: str) -> dict[str, float]:
    """Return input and output tokens of a document's packed request; neighbours as references."""
    settings = GenerationSettings(PromptSettings(style=style, packed=style != "simple"))  # type: ignore[arg-type]
    sums = []
    for place in range(min(200, len(documents) - EXPECTED_REFERENCES)):
        others = documents[place + 1 : place + 1 + EXPECTED_REFERENCES]
        prompts = build_prompt(
            settings.prompt, documents[place], () if style == "simple" else others
        )
        sums.append(sum(count_tokens(one.system + one.shared + one.rest) for one in prompts))
    output = float(expected_output(settings, EXPECTED_REFERENCES))
    return {"input_tokens": float(np.mean(sums)), "output_tokens": output}


def _estimated_documents(inputs: list[Path], documents: list[Document]) -> int:
    """Return how many documents a corpus has: all of a small one, else by bytes."""
    if len(documents) < SAMPLE and len(inputs) == 1:
        return len(documents)
    files = [one for path in inputs for one in ([path] if path.is_file() else path.rglob("*"))]
    total = sum(one.stat().st_size for one in files if one.is_file())
    bytes_per_document = sum(len(one.content.encode()) + 40 for one in documents) / len(documents)
    return max(len(documents), round(total / bytes_per_document))


def given_rates(rates: Rates, assignments: Sequence[str]) -> Rates:
    """Return rates with the values of ``NAME=VALUE`` assignments."""
    for pair in assignments:
        name, _, value = pair.partition("=")
        try:
            if name not in vars(rates) or not float(value) > 0:
                raise ValueError
        except ValueError:
            names = ", ".join(vars(rates))
            raise BadInput(f"rate {pair!r}: give NAME=NUMBER above 0; names: {names}") from None
        changed: dict[str, Any] = {name: int(value) if name == "dim" else float(value)}
        rates = replace(rates, **changed)
    return rates


def stages_of(
    rates: Rates,
    documents: int,
    *,
    machines: int = 1,
    cores: int = 1,
    shard_documents: int = 50_000,
    price: Price | None = None,
    probed_share: float | None = None,
    by_cells: bool | None = None,
) -> list[Stage]:
    """Return the stages of a run with language-model queries, packed and batched, and sentences."""
    n, slots = documents, machines * cores
    shards = math.ceil(n / shard_documents)
    cells = cells_for(n)
    by_cells = n > APPROXIMATE_ABOVE if by_cells is None else by_cells
    share = (probed_share or probed_share_at(n)) if by_cells else 1.0
    document, vector = rates.document_bytes, 4.0 * rates.dim
    pairs = n * share * n

    def stage(
        name: str, tasks: int, core_seconds: float, bytes_: float, cost: float | None = None
    ) -> Stage:
        # Upper bound of any schedule: all work divided equally, followed by the longest task.
        longest = core_seconds / tasks * (_LONGEST_TO_MEAN if tasks > 1 else 1)
        seconds = core_seconds / slots + (1 - 1 / slots) * longest if tasks > 1 else core_seconds
        return Stage(name, tasks, core_seconds, seconds, bytes_, cost)

    sampled = min(n, 40 * cells)
    stages = [
        stage("documents", shards, n / rates.read, n * document),
        stage("vectors", shards, n / rates.embed, n * vector),
        stage("cells", 1, 9 * sampled * cells / rates.pairs, cells * vector),
        stage("buckets", shards, n * cells / rates.pairs + n / rates.read, n * (document + vector)),
    ]
    if by_cells:
        stages.append(stage("probes", 1, n * SAMPLED / rates.pairs, 0))
    stages.append(
        stage("references", shards, pairs / rates.pairs + n / rates.choose, n * _LIST_BYTES)
    )
    usd = None
    if price is not None:
        usd = price.cost(1, 0, batch=True) * n * rates.input_tokens
        usd += price.cost(0, 1, batch=True) * n * rates.output_tokens
    request = 4 * rates.input_tokens
    stages.append(stage("requests", shards, n * request / 2e7, n * request, usd))
    sentences = n * rates.queries
    sentence_bytes = sentences * (vector + rates.query_bytes)
    stages.append(stage("queries", shards, sentences / rates.embed_queries, sentence_bytes))
    return stages


def probed_share_at(documents: int) -> float:
    """Return the share of cells probed in a corpus of a size, extrapolated from measured ones."""
    return min(1.0, PROBED_SHARE * math.pow(documents / PROBED_AT, PROBED_EXPONENT))
