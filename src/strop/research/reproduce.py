"""``strop reproduce``: the paper's figures, measured with the data and models of this machine.

Each figure is planned first (``reproduce_plan``). Indexes are kept, and every finished run is
written to ``results.json``, so that a stopped reproduction continues.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.errors import BadInput, StropError
from strop.evaluation.scoring import MEASURES, evaluate
from strop.expand.methods import QUERY_METHODS
from strop.generate import GenerationSettings, PromptSettings
from strop.index import Index
from strop.io.datasets import read_query_lists
from strop.io.files import atomic_write
from strop.lm import load as load_lm
from strop.research.analyse import boost_against_perplexity
from strop.research.paper import PEARSON, Figure, Row, Table
from strop.research.reproduce_plan import Plan, Setup, alpha_plan, plan, slug
from strop.types import Dataset, Progress, Vectors

RESULTS = "results.json"
PLAIN_TOLERANCE, GENERATED_TOLERANCE = 0.3, 1.0
"""Percentage points: without and with texts of a language model, which differ between runs."""
_EXAMPLES = 5
ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5)
"""Values of alpha tried for BRIGHT, on a subset in no table; the paper searched this range."""


@dataclass(frozen=True)
class Outcome(Figure):
    """A figure, measured or not; ``dataset`` is ``average`` for the mean of a row."""

    measured: float | None
    verdict: str
    why: tuple[str, ...] = ()
    """What is missing, what failed, or why it is not comparable."""
    differs: tuple[str, ...] = ()
    """The differences from the paper, even if nothing was measured."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        row = self.row
        return {
            "table": self.table.name, "row": row.label, "dataset": self.dataset,
            "embedder": row.embedder, "method": row.spec(), "query_side": row.query_side,
            "generator": row.generator, "measure": self.table.measure, "expected": self.expected,
            "measured": self.measured, "verdict": self.verdict, "why": list(self.why),
            "needs": row.needs(), "differs": list(self.differs),
        }  # fmt: skip


def reproduce(
    figures: Iterable[Figure],
    setup: Setup,
    *,
    tolerance: float | None = None,
    run: bool = True,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of each figure; without ``run``, of those measured before."""
    path = setup.output / RESULTS
    runs = _finished_runs(path)
    plans = [plan(figure, setup) for figure in figures]
    ready = sorted(
        (planned for planned in plans if not planned.missing),
        key=lambda planned: (planned.collection.name, planned.embedder),
    )
    failed: dict[str, str] = {}
    if run:
        with closing(_Runner(setup, progress)) as runner:
            for planned in ready:
                if planned.key in runs or planned.key in failed:
                    continue
                try:
                    runs[planned.key] = runner.measure(planned)
                except StropError as error:  # other figures may work
                    failed[planned.key] = str(error)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as file:
                    json.dump({"runs": runs}, file, indent=1, ensure_ascii=False)
    for planned in plans:
        figure, finished = planned.figure, runs.get(planned.key)
        if finished is None:
            measured, differs = None, planned.differs
            why = planned.missing or (failed.get(planned.key, "not run yet"),)
            verdict = "not run" if run or planned.missing else "ready"
        else:
            measured = finished["measures"][figure.table.measure]
            why = differs = (*planned.differs, *finished.get("differs", ()))
            verdict = _verdict(measured, figure.expected, figure.row, differs, tolerance)
        yield Outcome(**vars(figure), measured=measured, verdict=verdict, why=why, differs=differs)


def _finished_runs(path: Path) -> dict[str, dict[str, Any]]:
    """Return each finished run by the key of its plan: measures in percent and details."""
    if not path.exists():
        return {}
    try:
        runs: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a file of results: delete it") from error
    return runs


def averages(outcomes: Sequence[Outcome], tolerance: float | None = None) -> Iterator[Outcome]:
    """Yield the mean of each row that has a mean in the paper and was measured completely."""
    rows: dict[tuple[Table, Row], list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault((outcome.table, outcome.row), []).append(outcome)
    for (table, row), row_outcomes in rows.items():
        values = [outcome.measured for outcome in row_outcomes if outcome.measured is not None]
        if row.average is None or len(values) < len(row.figures):
            continue
        mean = sum(values) / len(values)
        differs = tuple(dict.fromkeys(why for outcome in row_outcomes for why in outcome.differs))
        verdict = _verdict(mean, row.average, row, differs, tolerance)
        yield Outcome(table, row, "average", row.average, mean, verdict, differs, differs)


def _verdict(
    measured: float, expected: float, row: Row, differs: Sequence[str], tolerance: float | None
) -> str:
    if differs:
        return "not comparable"
    if tolerance is None:
        tolerance = GENERATED_TOLERANCE if row.generator else PLAIN_TOLERANCE
    return "within" if abs(measured - expected) <= tolerance + 1e-9 else "differs"


class _Runner:
    """Builds indexes and measures; one index is open at a time, as its model may be large."""

    def __init__(self, setup: Setup, progress: Progress | None) -> None:
        self._setup = setup
        self._progress = progress
        self._open: tuple[Path, Index] | None = None
        self._alpha_scores: dict[str, dict[float, float]] = {}

    def close(self) -> None:
        """Close the index that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def measure(self, plan: Plan) -> dict[str, Any]:
        """Build what a plan needs; return its measures in percent and details."""
        row, alphas = plan.figure.row, {}
        if search_plan := alpha_plan(plan.figure, self._setup):
            alphas = self._alphas(search_plan)
            row = replace(row, alpha=max(alphas, key=alphas.__getitem__))
        index, dataset, differs = self._prepare(plan)
        spec = row.spec(plan.set)
        details: dict[str, Any] = {
            "dataset": dataset.name, "documents": len(index), "queries": len(dataset.queries),
            "embedder": plan.embedder, "method": spec, "index": index.path.name,
            "source": plan.file or plan.queries, "differs": differs, "alphas": alphas,
        }  # fmt: skip
        if plan.figure.table.measure == PEARSON:
            assert self._setup.perplexity is not None
            correlation = boost_against_perplexity(
                index, dataset, spec, self._setup.perplexity, progress=self._progress
            )
            measures = {PEARSON: 100 * correlation.pearson}
            return {"measures": measures, **details, "perplexity": correlation.to_json()}
        report = evaluate(
            index, dataset, [spec], ignore_same_id=plan.collection.ignore_same_id,
            query_vectors=self._refined(plan, index, dataset), progress=self._progress,
        )  # fmt: skip
        (values,) = report.results.values()
        return {"measures": {name: 100 * values[name] for name in MEASURES}, **details}

    def _prepare(self, plan: Plan) -> tuple[Index, Dataset, list[str]]:
        """Build a plan's index; return it, the queries to score, the differences from the paper."""
        index, dataset = self._index(plan), plan.collection.dataset(self._setup.folder("data"))
        shown, differs = self._sharpened(plan, index, dataset) if plan.set else ([], [])
        if shown:
            differs.append("test queries were shown as examples and are not scored")
        kept = {id_: text for id_, text in dataset.queries.items() if id_ not in shown}
        return index, replace(dataset, queries=kept), differs

    def _alphas(self, plan: Plan) -> dict[float, float]:
        """Return the nDCG@10 of each alpha on the subset for choosing it; computed once."""
        if plan.key not in self._alpha_scores:
            index, dataset, _ = self._prepare(plan)
            specs = {replace(plan.figure.row, alpha=x).spec(plan.set): x for x in ALPHAS}
            report = evaluate(
                index, dataset, list(specs), measures=["nDCG@10"], progress=self._progress
            )
            self._alpha_scores[plan.key] = {
                specs[spec]: values["nDCG@10"] for spec, values in report.results.items()
            }
        return self._alpha_scores[plan.key]

    def _index(self, plan: Plan) -> Index:
        name = f"{plan.collection.name}--{slug(plan.embedder)}"
        if self._setup.options:
            options = json.dumps(dict(self._setup.options), sort_keys=True)
            name += f"--{hashlib.sha256(options.encode()).hexdigest()[:8]}"
        path = self._setup.output / "indexes" / name
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self.close()
        if (path / "catalog.sqlite").exists():
            index = Index.open(path)
        else:
            index = Index.create(path, plan.embedder, chunking=None, **plan.options)
        self._open = (path, index)
        if len(index):  # a corpus is stored completely or not at all
            index.finish(self._progress)
        else:
            index.add(plan.collection.documents(self._setup.folder("data")), self._progress)
        return index

    def _sharpened(self, plan: Plan, index: Index, dataset: Dataset) -> tuple[list[str], list[str]]:
        """Add a plan's queries to the index.

        Returns the test queries that were shown as examples, and the differences from the paper.
        """
        if plan.queries == "sentences":
            index.sharpen("sentences", progress=self._progress)
            return [], []
        if plan.file:
            if plan.set not in index.info()["sets"]:
                lists = read_query_lists(plan.file)
                index.import_queries(lists, plan.set, progress=self._progress)
            return [], []
        examples, shown = self._examples(plan, dataset)
        style = plan.figure.row.style
        prompt = PromptSettings(  # as in the paper: no limit of queries or of text
            style=style, examples=examples, noun=plan.collection.noun, max_queries=None,  # type: ignore[arg-type]
            document_chars=None,
        )  # fmt: skip
        assert self._setup.lm is not None
        generation = index.generation(
            self._setup.lm, GenerationSettings(prompt), **self._setup.lm_options
        )
        summary = generation.run(budget=self._setup.budget, progress=self._progress)
        spending = summary.spending
        if spending.failures or spending.stopped:
            why = spending.stopped or f"{spending.failures:,} requests failed"
            raise StropError(f"{self._setup.lm}: {why}; the replies are kept: run it again")
        dropped = sum(summary.dropped.values())
        filtered = f"{dropped:,} generated queries were dropped by filters that the paper lacks"
        return shown, [filtered] if dropped else []

    def _refined(self, plan: Plan, index: Index, dataset: Dataset) -> Vectors | None:
        """Return query vectors refined by a language model, None if the row has none."""
        name = plan.figure.row.query_side
        if not name:
            return None
        assert self._setup.lm is not None
        model = load_lm(self._setup.lm, **self._setup.lm_options)
        refined = index.refine(
            list(dataset.queries.values()),
            QUERY_METHODS[name](model, task=plan.collection.name),
            leave_out=list(dataset.queries) if plan.collection.ignore_same_id else None,
            budget=self._setup.budget,
            progress=self._progress,
        )
        if refined.failed:
            raise StropError(f"{name}: {refined.failure_message()}; replies are kept: run it again")
        return refined.vectors

    def _examples(self, plan: Plan, dataset: Dataset) -> tuple[tuple[str, ...], list[str]]:
        """Return five queries to show, and the ids of those that are test queries."""
        spare = plan.collection.spare_queries(self._setup.folder("data"))
        if len(spare) >= _EXAMPLES:
            return tuple(spare[:_EXAMPLES]), []
        shown = list(dataset.queries)[:_EXAMPLES]
        return tuple(dataset.queries[id_] for id_ in shown), shown
