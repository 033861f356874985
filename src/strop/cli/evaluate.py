"""The verbs that measure search quality, and choose settings by it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from strop.cli import options as opt
from strop.cli.messages import echo, progress_bars, warn
from strop.cli.verbs import Answer, flag, option, refuse_given, split_option, verb
from strop.common.text import counted

_PASSED_ON = ("measures", "ignore_same_id", "baseline", "leak_gate", *opt.SETTINGS)
"""Options that ``evaluate`` has under the same names."""
_USUAL = "usual"
"""Stands for the methods that are compared unless others are named."""
_LABELS_ONLY = ("run_out", "expand", "exclude_queries", "ignore_same_id", "leak_gate", "baseline")


@verb(
    opt.INDEX_OR_URL,
    click.argument("dataset", required=False),
    split_option(
        "--methods",
        "Any of trad, sharp, simsharp, consharp, indexsharp, maxsim, doc2query, docexp, bm25,"
        " hybrid. Each may have settings: sharp:alpha=2:temperature=0.1:sets=simple+contrastive:n=5"
        " (T is short for temperature). sharp:words=1 adds keyword matching to the score;"
        " hybrid:of=sharp fuses BM25 with sharp instead of trad.",
        default=_USUAL,
        shown="trad,sharp; without DATASET trad,bm25,hybrid,sharp",
    ),
    opt.MEASURES,
    opt.LABELLED,
    option("--limit-queries", "Use only the first N queries.", type=opt.COUNT),
    option("--baseline", "Method that the others are compared with.", shown="the first"),
    opt.SCORING,
    option(
        "--run-out",
        "Write TREC run files to this folder, one per method.",
        type=click.Path(path_type=Path, file_okay=False),
    ),
    option(
        "--leak-gate",
        "Score again without the generated queries whose cosine to a test query is at least"
        " this, such as 0.9.",
        type=float,
    ),
    flag("--per-query", "With --json: also the values per query."),
    opt.expansion_options(several=True),
    name="eval",
)
def eval_(
    path: Path | str,
    dataset: str | None,
    methods: list[str],
    run_out: Path | None,
    per_query: bool,
    **options: Any,
) -> Answer:
    """Compare methods on the labelled queries of DATASET, or without labels.

    DATASET is a BEIR folder with queries.jsonl and qrels. trad is plain search, sharp mixes all
    query sets at temperature 0.1; docs/concepts.md explains the others. doc2query and docexp
    first embed the augmented documents and keep these vectors in the index. With --expand, the
    table has a row for each query method with each scoring method. INDEX_OR_URL may be the URL of a
    published copy, which is searched as in production (approximately); an index folder is searched
    exactly.

    Without DATASET, stored queries serve as test queries: the queries of each generated set search
    an index sharpened by the other sets, and each should find the document it was written for. This
    shows which method is better, not how good it is (docs/evaluation.md).
    """
    from strop.cli import tables
    from strop.evaluation.grid import evaluate_grid
    from strop.io.datasets import write_run

    if dataset is None:
        return _without_labels(path, methods, per_query, options)
    methods, steps = (
        ["trad", "sharp"] if methods == [_USUAL] else methods,
        opt.chosen_steps(options),
    )
    how = {name: options[name] for name in _PASSED_ON}
    with opt.open_readable(path) as index, progress_bars() as progress:
        if run_out is not None:  # now: an error after the work would waste it
            run_out.mkdir(parents=True, exist_ok=True)
        data = opt.read_labelled(dataset, options)
        grid = evaluate_grid(
            index, data, methods, steps, budget=options["budget"], price=opt.given_price(options),
            progress=progress, **how,
        )  # fmt: skip
    report = grid.first
    if report.missing:
        warn(
            f"{counted(report.missing, 'relevant document')} of {report.dataset} not in the index:"
            " no method can find them"
        )
    for name, refined in grid.refined.items():
        opt.report_expansion(name, refined)
    if run_out is not None:
        for label, run in grid.runs():
            safe = label.replace(":", "_").replace("=", "-").replace("/", "_")
            write_run(run_out / f"{report.dataset}.{safe}.trec", run, f"strop-{safe}")
    if grid.refined:
        return Answer(grid.to_json(per_query), partial(tables.print_grid, grid))

    def show() -> None:
        tables.print_report(report)
        if report.compared:
            echo(f"\n{report.conclusion(report.compared[-1])}")

    return Answer(report.to_json(per_query), show)


def _without_labels(
    path: Path | str, methods: list[str], per_query: bool, options: dict[str, Any]
) -> Answer:
    """Compare methods on stored queries."""
    from strop.cli.tables import print_report
    from strop.evaluation.estimate import METHODS, estimate

    refuse_given(_LABELS_ONLY, "needs DATASET")
    if not isinstance(path, Path):
        raise click.UsageError("without DATASET an index folder is needed, not a published copy")
    with opt.open_index(path) as index, progress_bars() as progress:
        report = estimate(
            index,
            METHODS if methods == [_USUAL] else methods,
            measures=options["measures"],
            queries=options["limit_queries"] or 1000,
            progress=progress,
            **{name: options[name] for name in opt.SETTINGS},
        )
    last = [report.baseline, *report.compared][-1]

    def show() -> None:
        print_report(report)
        echo(f"\nBy stored queries, without labels: {report.conclusion(last)}")
        echo("Trust the order of the methods more than the values (docs/evaluation.md).")

    bounds = ("mean", "low", "high")
    gains = {name: dict(zip(bounds, report.gain(name), strict=True)) for name in report.compared}
    return Answer({**report.to_json(per_query), "labels": False, "gains": gains}, show)


@verb(
    opt.WRITTEN_INDEX,
    option("--labels", "Choose on the labelled queries of DATASET.", metavar="DATASET"),
    opt.LABELLED,
    option("--queries", "Number of stored queries to use per set.", type=opt.COUNT, default=1000),
    flag("--reset", "Restore the usual defaults."),
)
def tune(path: Path, labels: str | None, queries: int, reset: bool, **options: Any) -> Answer:
    """Choose and store better settings of sharp, with or without labels.

    The settings become the defaults of INDEX. Without labels, two or more generated query sets are
    cross-validated: the queries of each set search an index sharpened by the others. With sentences
    and only one generated set, only the weight of keyword matching (words) is chosen. The gain
    comes with a 95% confidence interval; settings without a significant gain are not adopted.
    Options of search and eval, such as --alpha, override the stored settings. See docs/tuning.md.
    """
    from strop.cli.tables import print_choice
    from strop.evaluation.tune import tune as choose

    if reset and labels:
        raise click.UsageError("--reset cannot be combined with --labels")
    if not labels:
        refuse_given(("split", "exclude_queries", "ignore_same_id"), "needs --labels")
    with opt.open_index(path) as index, progress_bars() as progress:
        if reset:
            index.keep_tuned(None)
            return Answer({}, "sharp has its usual defaults again")
        choice = choose(
            index,
            opt.read_labelled(labels, options) if labels else None,
            ignore_same_id=options["ignore_same_id"],
            queries=queries,
            progress=progress,
        )
    return Answer(choice.to_json(), partial(print_choice, choice))
