"""Queries refined by a language model: HyDE, Query2Doc, LameR and ReDE-RF.

Each makes of a query's text a refined vector q_r, which takes the place of q in the weights of
sharpening as well as in the score. So every way to refine goes with every way to score:
``index.search(queries, method="consharp", expand=HyDE("openai:…"))``.

Replies are kept in the index's catalog, so that nothing is asked twice. A query that cannot be
refined is searched as it is, and counted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from strop.errors import BadInput
from strop.expand.prompts import EXPAND_PROMPT_VERSION, Ask, TaskWording, task_named
from strop.expand.refining import Refined, Run
from strop.generate.prompts import Profile
from strop.lm import LM, Price
from strop.lm import load as load_lm
from strop.storage.catalog import Catalog
from strop.types import Progress

if TYPE_CHECKING:  # it stands below
    from strop.index import Index

Fallback = Literal["hyde-prf", "hyde", "query"]


@dataclass(frozen=True)
class QueryMethod(ABC):
    """What all have in common. ``lm`` is a language model, its name or a function.

    ``task`` says what queries and documents are: one of ``TASKS`` or a ``TaskWording``.
    ``profile`` "small" has a text continued, for models that follow no instructions. A
    ``temperature`` of None is the model's own choice: some accept nothing else. ``examples``
    are pairs of a query and a passage that answers it.
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
        if self.profile not in get_args(Profile):
            raise BadInput(
                f"no profile {self.profile!r}: choose from {', '.join(get_args(Profile))}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("int", int) and (isinstance(value, bool) or value < 1):
                raise BadInput(f"{field.name} must be 1 or more, not {value!r}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise BadInput(f"temperature must be 0 or more, not {self.temperature!r}")
        object.__setattr__(self, "examples", tuple(map(tuple, self.examples)))
        object.__setattr__(self, "lm", load_lm(self.lm))

    @property
    def model(self) -> LM:
        """The language model; made already when the settings were."""
        return load_lm(self.lm)

    def refine(
        self,
        index: Index,
        catalog: Catalog,
        queries: Sequence[str],
        *,
        leave_out: Sequence[str] | None = None,
        budget: float | None = None,
        price: Price | None = None,
        progress: Progress | None = None,
    ) -> Refined:
        """Refine queries; ``Index.refine`` calls it with its catalog, where replies are kept.

        ``leave_out`` has for each query the id of a document that its first pass must not see.
        Asks nothing more before ``budget`` (USD) could be passed; queries that were not asked
        about then stay as they are.
        """
        run = Run(self, index, catalog, list(queries), leave_out, budget, price, progress)
        self._fill(run)
        return run.refined()

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, without the model."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        del own["lm"]
        if isinstance(self.task, TaskWording):
            own["task"] = asdict(self.task)
        return {"expand": self.name, **own, "prompts": EXPAND_PROMPT_VERSION}

    @abstractmethod
    def _fill(self, run: Run) -> None:
        """Put the refined vector of each query into ``run.found``."""


@dataclass(frozen=True)
class HyDE(QueryMethod):
    """Passages that answer the query; q_r is the mean of their vectors and q (2212.10496)."""

    samples: int = 8

    name: ClassVar[str] = "hyde"

    def _fill(self, run: Run) -> None:
        for place, vectors in run.passages("passage", range(run.count), self.samples):
            run.found[place] = np.mean([run.plain[place], *vectors], axis=0)


@dataclass(frozen=True)
class Query2Doc(QueryMethod):
    """One passage that answers the query, embedded together with it (2303.07678)."""

    max_tokens: int = 128
    temperature: float | None = 1.0

    name: ClassVar[str] = "query2doc"

    def _fill(self, run: Run) -> None:
        texts = dict(run.texts("passage", range(run.count), 1))
        with run.timed():
            vectors = run.index.embed_queries(
                [f"{run.queries[place]} {passages[0]}" for place, passages in texts.items()]
            )
        run.found.update(zip(texts, vectors, strict=True))


@dataclass(frozen=True)
class LameR(QueryMethod):
    """Answers written with the candidates of a first pass in view (2304.14233).

    q_r lies half-way between q and the mean of the answers' vectors. ``first_pass`` is the
    method that finds the ``candidates``, each cut to ``candidate_chars``.
    """

    max_tokens: int = 128
    temperature: float | None = 1.0
    samples: int = 5
    candidates: int = 10
    candidate_chars: int = 600
    first_pass: str = "trad"

    name: ClassVar[str] = "lamer"

    def _fill(self, run: Run) -> None:
        run.search(self.first_pass, self.candidates)
        for place, vectors in run.passages("answer", range(run.count), self.samples):
            run.found[place] = (run.plain[place] + np.mean(vectors, axis=0)) / 2


@dataclass(frozen=True)
class ReDERF(QueryMethod):
    """Real documents that the model finds relevant (2410.21242).

    q_r is the mean of the vectors of the ``candidates`` judged relevant and, ``with_query``, q.
    Where none is relevant, ``fallback`` says what to do: write ``samples`` passages with the
    candidates in view ("hyde-prf") or without ("hyde") and take their mean with q, or take q.
    """

    samples: int = 8
    candidates: int = 20
    candidate_chars: int = 600
    first_pass: str = "trad"
    with_query: bool = True
    fallback: Fallback = "hyde-prf"

    name: ClassVar[str] = "rede-rf"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fallback not in get_args(Fallback):
            raise BadInput(
                f"no fallback {self.fallback!r}: choose from {', '.join(get_args(Fallback))}"
            )

    def _fill(self, run: Run) -> None:
        run.search(self.first_pass, self.candidates)
        without = []
        for place, verdicts in run.verdicts():
            own = [run.plain[place]] if self.with_query else []
            if chosen := [one.vector for one, yes in verdicts if yes]:
                run.found[place] = np.mean([*own, *chosen], axis=0)
            else:
                without.append(place)
        run.defaulted = tuple(without)
        if self.fallback == "query":
            run.found.update((place, run.plain[place]) for place in without)
            return
        ask: Ask = "answer" if self.fallback == "hyde-prf" else "passage"
        for place, vectors in run.passages(ask, without, self.samples):
            run.found[place] = np.mean([run.plain[place], *vectors], axis=0)


QUERY_METHODS: Mapping[str, type[QueryMethod]] = {
    kind.name: kind for kind in (HyDE, Query2Doc, LameR, ReDERF)
}
