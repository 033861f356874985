"""The verbs that measure search quality and choose settings by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strop.cli.common import AS_JSON, open_index, scoring_options, split_list
from strop.cli.expand import chosen_steps, expansion_options, limits, report_expansion
from strop.cli.messages import echo, print_json, warn
from strop.cli.progress import progress_bars


@click.command("eval")
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("dataset")
@click.option(
    "--methods",
    default="trad,sharp",
    show_default=True,
    help="Any of trad, sharp, simsharp, consharp, indexsharp, maxsim, doc2query, docexp, bm25,"
    " hybrid; each may carry settings: sharp:alpha=2:temperature=0.1:sets=simple+contrastive:n=5."
    " T is short for temperature. sharp:words=1 adds the share of the query's words a document has;"
    " hybrid:of=sharp fuses the ranks of BM25 with sharp's instead of trad's.",
)
@click.option(
    "--measures",
    default="nDCG@10,R@50,AP@50",
    show_default=True,
    help="Any that ir_measures knows.",
)
@click.option("--split", default="test", show_default=True, help="Which qrels of the dataset.")
@click.option("--exclude-queries", help="Ids of queries to drop, such as 1,3.")
@click.option("--limit-queries", type=click.IntRange(1), help="Take the first N of the others.")
@click.option(
    "--ignore-same-id", is_flag=True, help="Leave out a document with the query's id (ArguAna)."
)
@click.option("--baseline", help="What to test the others against.  [the first method]")
@scoring_options
@click.option(
    "--run-out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for TREC run files, one for each method.",
)
@click.option(
    "--leak-gate",
    type=float,
    help="Also score without every generated query whose cosine to a test query is at least this,"
    " such as 0.9.",
)
@click.option("--per-query", is_flag=True, help="With --json: also the value of each query.")
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
    """Score methods on DATASET, a BEIR folder with queries.jsonl and qrels.

    trad is plain search, sharp all query sets at temperature 0.1; docs/architecture.md has the
    others. doc2query and docexp embed the expanded documents first and keep that in the index.
    With --expand there is one table of query methods by scoring methods.
    """
    from strop.cli import tables
    from strop.evaluation.grid import evaluate_grid
    from strop.io.datasets import read_dataset, write_run

    steps = chosen_steps(expansion)
    with open_index(path) as index, progress_bars() as progress:
        if run_out is not None:  # before the work, not after, if it cannot be made
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
            sets=split_list((sets or "").replace("+", ",")),
            n=n,
            leak_gate=leak_gate,
            progress=progress,
            **limits(expansion),
        )
    report = grid.first
    if report.missing:
        warn(
            f"{report.missing:,} relevant documents of {report.dataset} are not in the index;"
            " no method can find them"
        )
    for name, refined in grid.refined.items():
        report_expansion(name, refined)
    if run_out is not None:
        for step, one in grid.reports.items():
            for name, run in one.runs.items():
                named = name if step == "none" else f"{step}.{name}"
                safe = named.replace(":", "_").replace("=", "-")
                write_run(run_out / f"{report.dataset}.{safe}.trec", run, f"strop-{safe}")
    if not grid.refined:
        if as_json:
            print_json(report.to_json(per_query))
        else:
            tables.print_report(report)
    elif as_json:
        print_json(grid.to_json(per_query))
    else:
        tables.print_grid(grid)


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.option("--labels", metavar="DATASET", help="Choose on this dataset's labelled queries.")
@click.option("--split", default="test", show_default=True, help="Which qrels of the dataset.")
@click.option("--exclude-queries", help="Ids of queries to drop, such as 1,3.")
@click.option("--ignore-same-id", is_flag=True, help="Leave out a document with the query's id.")
@click.option(
    "--queries", "most", default=1000, show_default=True, help="Stored queries to try, of each set."
)
@click.option("--reset", is_flag=True, help="Go back to the usual defaults.")
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
    """Choose the defaults of sharp for INDEX, without labels, and keep them there.

    Two or more generated sets cross-validate each other: the queries of each search an index
    sharpened by the others. With sentences alone only the weight of words is chosen. The gain is
    measured on queries the choice did not see, with a 95% interval; what does not surely gain is
    not taken. Options of other commands, such as --alpha, override the choice. See docs/tuning.md.
    """
    from strop.cli import tables
    from strop.evaluation.tune import tune as choose
    from strop.io.datasets import read_dataset

    if reset and labels:
        raise click.UsageError("--reset goes alone")
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
