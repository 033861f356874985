"""Queries refined by a language model: HyDE, Query2Doc, LameR and ReDE-RF.

Each turns the text of a query into a refined vector q_r, which replaces q in the weights of
sharpening and in the score. So every query method works with every scoring method:
``index.search(queries, method="consharp", expand=HyDE("openai:…"))``.

Replies are stored in the index's catalog, so that no call is made twice. A query that cannot be
refined is searched unchanged, and counted as failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, get_args

import numpy as np

from strop.common.specs import check_choice, check_temperature
from strop.errors import BadInput
from strop.expand.prompts import EXPAND_PROMPT_VERSION, TaskWording, task_named
from strop.expand.refining import Embed, Refined, Refinement
from strop.filters import read_filter
from strop.generate.templates import Profile
from strop.lm import LM, Price
from strop.lm import load as load_lm
from strop.methods import check_count
from strop.search.searcher import Searcher
from strop.types import Progress, Vectors


@dataclass(frozen=True)
class QueryMethod(ABC):
    """The common settings. ``lm`` is a language model, its name or a function.

    ``task`` describes queries and documents: one of ``TASKS`` or a ``TaskWording``. The prompt of
    ``profile`` "small" is a text to complete, for models that do not follow instructions. With a
    ``temperature`` of None the model uses its own: some accept no other. ``examples`` are
    pairs of a query and a passage that answers it.
    """

    lm: str | LM | Callable[[str], str]
    task: str | TaskWording = "web"
    profile: Profile = "instruct"
    max_tokens: int = 512
    temperature: float | None = 0.7
    examples: tuple[tuple[str, str], ...] = ()

    name: ClassVar[str]

    def __post_init__(self) -> None:
        task_named(self.task)
        check_choice("profile", self.profile, get_args(Profile))
        for field in fields(self):
            if field.type in ("int", int):
                check_count(field.name, getattr(self, field.name))
        check_temperature(self.temperature)
        object.__setattr__(self, "examples", tuple(map(tuple, self.examples)))
        object.__setattr__(self, "lm", load_lm(self.lm))

    @property
    def model(self) -> LM:
        """The language model, which was loaded with the settings."""
        return load_lm(self.lm)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, without the model."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        del settings["lm"]
        if isinstance(self.task, TaskWording):
            settings["task"] = asdict(self.task)
        return {"expand": self.name, **settings, "prompts": EXPAND_PROMPT_VERSION}

    @abstractmethod
    def _refine(self, work: Refinement) -> None:
        """Write the refined vector of each query to ``work.refined_vectors``."""


@dataclass(frozen=True)
class HyDE(QueryMethod):
    """Passages that answer the query; q_r is the mean of their vectors and q (2212.10496)."""

    samples: int = 8

    name: ClassVar[str] = "hyde"

    def _refine(self, work: Refinement) -> None:
        for place, vectors in work.passages("passage", range(work.count), self.samples):
            work.refined_vectors[place] = np.mean([work.query_vectors[place], *vectors], axis=0)


@dataclass(frozen=True)
class Query2Doc(QueryMethod):
    """One passage that answers the query, embedded together with it (2303.07678)."""

    max_tokens: int = 128
    temperature: float | None = 1.0

    name: ClassVar[str] = "query2doc"

    def _refine(self, work: Refinement) -> None:
        texts = dict(work.texts("passage", range(work.count), 1))
        with work.timed():
            vectors = work.embed(
                [f"{work.queries[place]} {passages[0]}" for place, passages in texts.items()],
                "query",
            )
        work.refined_vectors.update(zip(texts, vectors, strict=True))


@dataclass(frozen=True)
class LameR(QueryMethod):
    """Answers written by a model that sees the candidates of a first pass (2304.14233).

    q_r lies half-way between q and the mean of the answers' vectors. ``first_pass`` is the
    method that finds the ``candidates``.
    """

    max_tokens: int = 128
    temperature: float | None = 1.0
    samples: int = 5
    candidates: int = 10
    first_pass: str = "trad"

    name: ClassVar[str] = "lamer"

    def _refine(self, work: Refinement) -> None:
        work.search(self.first_pass, self.candidates)
        for place, vectors in work.passages("answer", range(work.count), self.samples):
            work.refined_vectors[place] = (work.query_vectors[place] + np.mean(vectors, axis=0)) / 2


@dataclass(frozen=True)
class ReDERF(QueryMethod):
    """Real documents that the model judges relevant (2410.21242).

    q_r is the mean of q and the vectors of the ``candidates`` judged relevant. If none is, it is
    the mean of q and of ``samples`` passages, written by a model that sees the candidates.
    """

    samples: int = 8
    candidates: int = 20
    first_pass: str = "trad"

    name: ClassVar[str] = "rede-rf"

    def _refine(self, work: Refinement) -> None:
        work.search(self.first_pass, self.candidates)
        none_relevant = []
        for place, verdicts in work.verdicts():
            if relevant := [document.vector for document, verdict in verdicts if verdict]:
                vectors = [work.query_vectors[place], *relevant]
                work.refined_vectors[place] = np.mean(vectors, axis=0)
            else:
                none_relevant.append(place)
        work.no_relevant = tuple(none_relevant)
        for place, passages in work.passages("answer", none_relevant, self.samples):
            vectors = [work.query_vectors[place], *passages]
            work.refined_vectors[place] = np.mean(vectors, axis=0)


QUERY_METHODS: Mapping[str, type[QueryMethod]] = {
    kind.name: kind for kind in (HyDE, Query2Doc, LameR, ReDERF)
}


def refine(
    queries: str | Sequence[str] | Vectors,
    method: QueryMethod,
    searcher: Searcher,
    embed: Embed,
    *,
    where: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] | None = None,
    budget: float | None = None,
    price: Price | None = None,
    progress: Progress | None = None,
) -> Refined:
    """Refine queries, given as texts.

    Replies are stored in the index, even while another process writes to it. The model sees only
    documents that match ``where``; ``leave_out`` has for each query the id of a document that it
    must not see. Calls stop before the next one could exceed ``budget`` (USD); queries without a
    reply then stay unchanged.
    """
    if not isinstance(method, QueryMethod):
        raise BadInput(
            f"expand takes a query method with its model, such as HyDE('openai:…'), not {method!r}"
        )
    if isinstance(queries, np.ndarray):
        raise BadInput(f"{method.name} needs the text of the queries, not their vectors")
    texts = [queries] if isinstance(queries, str) else list(queries)
    refinement = Refinement(
        method, searcher, embed, texts, where=None if where is None else read_filter(where),
        leave_out=leave_out, budget=budget, price=price, progress=progress,
    )  # fmt: skip
    method._refine(refinement)
    return refinement.result()
