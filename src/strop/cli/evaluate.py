"""The verbs that measure search quality and choose settings by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strop.cli.common import AS_JSON, open_index, scoring_options, split_list, split_sets
from strop.cli.expand import chosen_steps, expansion_options, limits, report_expansion
from strop.cli.messages import echo, print_json, warn
from strop.cli.progress import progress_bars
from strop.common.text import counted


@click.command("eval")
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("dataset")
@click.option(
    "--methods",
    default="trad,sharp",
    show_default=True,
    help="Any of trad, sharp, simsharp, consharp, indexsharp, maxsim, doc2query, docexp, bm25,"
    " hybrid. Each may have settings: sharp:alpha=2:temperature=0.1:sets=simple+contrastive:n=5"
    " (T is short for temperature). sharp:words=1 adds keyword matching to the score;"
    " hybrid:of=sharp fuses BM25 with sharp instead of trad.",
)
@click.option(
    "--measures",
    default="nDCG@10,R@50,AP@50",
    show_default=True,
    help="Any measures of ir_measures.",
)
@click.option("--split", default="test", show_default=True, help="Which qrels of DATASET.")
@click.option("--exclude-queries", help="Ids of queries to leave out, such as 1,3.")
@click.option("--limit-queries", type=click.IntRange(1), help="Use only the first N queries.")
@click.option(
    "--ignore-same-id", is_flag=True, help="Skip a document with the id of the query (ArguAna)."
)
@click.option("--baseline", help="Method that the others are compared with.  [the first]")
@scoring_options
@click.option(
    "--run-out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write TREC run files to this folder, one per method.",
)
@click.option(
    "--leak-gate",
    type=float,
    help="Score again without the generated queries whose cosine to a test query is at least this,"
    " such as 0.9.",
)
@click.option("--per-query", is_flag=True, help="With --json: also the values per query.")
@expansion_options(several=True)
@AS_JSON
def eval_(
    path: Path,
    dataset: str,
    methods: str,
    measures: str,
    split: str,
    exclude_queries: str | None,
    limit_queries: int | None,
    ignore_same_id: bool,
    baseline: str | None,
    alpha: float | None,
    temperature: float | None,
    sets: str | None,
    n: int | None,
    run_out: Path | None,
    leak_gate: float | None,
    per_query: bool,
    as_json: bool,
    **expansion: Any,
) -> None:
    """Compare methods on the labelled queries of DATASET.

    DATASET is a BEIR folder with queries.jsonl and qrels. trad is plain search, sharp mixes all
    query sets at temperature 0.1; docs/architecture.md explains the others. doc2query and docexp
    first embed the augmented documents and keep these vectors in the index. With --expand the
    table has a row for each query method and scoring method.
    """
    from strop.cli import tables
    from strop.evaluation.grid import evaluate_grid
    from strop.io.datasets import read_dataset, write_run

    steps = chosen_steps(expansion)
    with open_index(path) as index, progress_bars() as progress:
        if run_out is not None:  # now: an error after the work would waste it
            run_out.mkdir(parents=True, exist_ok=True)
        grid = evaluate_grid(
            index,
            read_dataset(dataset, split),
            split_list(methods),
            steps,
            measures=split_list(measures),
            exclude=split_list(exclude_queries),
            limit=limit_queries,
            ignore_same_id=ignore_same_id,
            baseline=baseline,
            alpha=alpha,
            temperature=temperature,
            sets=split_sets(sets),
            n=n,
            leak_gate=leak_gate,
            progress=progress,
            **limits(expansion),
        )
    report = grid.first
    if report.missing:
        warn(
            f"{counted(report.missing, 'relevant document')} of {report.dataset} not in the index:"
            " no method can find them"
        )
    for name, refined in grid.refined.items():
        report_expansion(name, refined)
    if run_out is not None:
        for step, scored in grid.reports.items():
            for name, run in scored.runs.items():
                label = name if step == "none" else f"{step}.{name}"
                safe = label.replace(":", "_").replace("=", "-")
                write_run(run_out / f"{report.dataset}.{safe}.trec", run, f"strop-{safe}")
    if as_json:
        print_json((grid if grid.refined else report).to_json(per_query))
    elif grid.refined:
        tables.print_grid(grid)
    else:
        tables.print_report(report)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--labels", metavar="DATASET", help="Choose by the labelled queries of DATASET.")
@click.option("--split", default="test", show_default=True, help="Which qrels of DATASET.")
@click.option("--exclude-queries", help="Ids of queries to leave out, such as 1,3.")
@click.option("--ignore-same-id", is_flag=True, help="Skip a document with the id of the query.")
@click.option(
    "--queries", "most", default=1000, show_default=True, help="Stored queries to use per set."
)
@click.option("--reset", is_flag=True, help="Restore the usual defaults.")
@AS_JSON
def tune(
    path: Path,
    labels: str | None,
    split: str,
    exclude_queries: str | None,
    ignore_same_id: bool,
    most: int,
    reset: bool,
    as_json: bool,
) -> None:
    """Choose better defaults of sharp for INDEX, without labels, and store them.

    Two or more generated query sets are cross-validated: the queries of each set search an index
    sharpened by the others. With sentences alone only the weight of words is chosen. The gain is
    measured on queries that had no part in the choice, with a 95% interval; settings without a
    sure gain are not taken. Options such as --alpha override the stored choice. See docs/tuning.md.
    """
    from strop.cli import tables
    from strop.evaluation.tune import tune as choose
    from strop.io.datasets import read_dataset

    if reset and labels:
        raise click.UsageError("--reset cannot be combined with --labels")
    with open_index(path) as index, progress_bars() as progress:
        if reset:
            index.keep_tuned(None)
            echo("{}" if as_json else "sharp has its usual defaults again")
            return
        choice = choose(
            index,
            read_dataset(labels, split) if labels else None,
            exclude=split_list(exclude_queries),
            ignore_same_id=ignore_same_id,
            queries=most,
            progress=progress,
        )
    if as_json:
        print_json(choice.to_json())
    else:
        tables.print_choice(choice)
