"""Verbs for research: the paper's tables, analyses with figures, a page about an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import AS_JSON, named_options, open_index, split_list
from strop.cli.messages import echo, print_json
from strop.cli.progress import progress_bars

if TYPE_CHECKING:
    from strop.research.paper import Table
    from strop.research.reproduce import Outcome


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--list", "only_list", is_flag=True, help="Say what there is and what is missing.")
@click.option("--data", type=Path, envvar="STROP_DATA", help="Collections.  [OUTPUT/data]")
@click.option("--models", type=Path, envvar="STROP_MODELS", help="Weights.  [OUTPUT/models]")
@click.option("--queries", type=Path, help="Generated queries.  [OUTPUT/queries]")
@click.option("--queries-by", default="", help="The model that wrote the generated queries.")
@click.option("--sentences", is_flag=True, help="Documents' own sentences in place of queries.")
@click.option("--lm", help="The language model that writes what is not there.")
@click.option("--lm-option", "lm_options", multiple=True, metavar="NAME=VALUE", help="Its options.")
@click.option(
    "--examples", type=Path, help="A file with a query a line to show it.  [5 spare ones]"
)
@click.option("--budget", type=float, help="Dollars for each set of queries, at most.")
@click.option("--embedder", help="An embedder in place of each row's own.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Its options.")
@click.option("--perplexity-lm", help="hf:MODEL, hf:FILE.gguf or smollm2, for perplexity.")
@click.option("--documents", type=int, help="Documents to read for perplexity.  [500]")
@click.option("--download", is_flag=True, help="Copy missing collections and weights from the hub.")
@click.option("--datasets", help="Only these, such as scifact,nfcorpus.")
@click.option("--methods", help="Only these, such as trad,consharp.")
@click.option("--embedders", help="Only rows of these, such as contriever.")
@click.option("--tolerance", type=float, help="Percent points.  [0.3; 1 with generated texts]")
@click.option(
    "-o", "--output", type=Path, default=Path("reproduction"), show_default=True,
    help="Where indexes and results are kept; run again, it goes on.",
)  # fmt: skip
@AS_JSON
def reproduce(
    tables: tuple[str, ...],
    only_list: bool,
    datasets: str | None,
    methods: str | None,
    embedders: str | None,
    tolerance: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the paper's tables with what this machine has, against what the paper says.

    Without TABLE all of them: beir, beir-recall, beir-map, query-side, index-time, bright,
    miracl, perplexity. What is missing is named with the place where it belongs: docs/reproduce.md.
    """
    from strop.research.paper import chosen_tables, figures_of
    from strop.research.reproduce import averages, reproduce

    chosen = chosen_tables(tables)
    only = [split_list(part) for part in (datasets, methods, embedders)]
    figures = [
        figure
        for figure in figures_of(chosen)
        if all(
            not wanted or value in wanted
            for wanted, value in zip(
                only, (figure.dataset, figure.row.method, figure.row.embedder), strict=True
            )
        )
    ]
    if not figures:
        raise click.UsageError("no figure is of these datasets, methods and embedders together")
    setup = _setup(**given)
    with progress_bars() as progress:
        outcomes = list(
            reproduce(figures, setup, tolerance=tolerance, run=not only_list, progress=progress)
        )
    outcomes += averages(outcomes, tolerance)
    if as_json:
        print_json([outcome.to_json() for outcome in outcomes])
        return
    for table in chosen:
        here = [outcome for outcome in outcomes if outcome.table == table.name]
        if here:
            (_print_list if only_list else _print_measured)(table, here)
    _print_missing(outcomes)


def _setup(
    *,
    output: Path,
    data: Path | None,
    models: Path | None,
    queries: Path | None,
    queries_by: str,
    sentences: bool,
    lm: str | None,
    lm_options: Sequence[str],
    examples: Path | None,
    budget: float | None,
    embedder: str | None,
    options: Sequence[str],
    perplexity_lm: str | None,
    documents: int | None,
    download: bool,
) -> Any:
    from strop.io.files import filled_lines
    from strop.research.perplexity import PerplexitySettings
    from strop.research.reproduce_plan import Setup

    shown = tuple(line.strip() for _, line in filled_lines(examples)) if examples else ()
    perplexity = None
    if perplexity_lm:
        perplexity = PerplexitySettings(perplexity_lm, documents=documents or 500)
    return Setup(
        output, data, models, queries, sentences, lm, named_options(lm_options), shown, budget,
        embedder, named_options(options), perplexity, download, queries_by,
    )  # fmt: skip


def _print_list(table: Table, outcomes: Sequence[Outcome]) -> None:
    """Print a table as the paper has it: what is expected, and what can be measured here."""
    from strop.cli.tables import plain, plain_table, standard_output

    out = standard_output()
    out.print(plain(f"\n{table.name}", "bold"), plain(f"{table.title} ({table.measure})"), sep="  ")
    datasets = list(dict.fromkeys(one.dataset for one in outcomes if one.dataset != "average"))
    shown = plain_table("", "embedder", "method", "texts by", *datasets, "average")
    for row in table.rows:
        mine = {one.dataset: one for one in outcomes if one.row == row}
        if not mine:
            continue
        cells = []
        for name in datasets:
            one = mine.get(name)
            mark = "" if one is None or one.verdict == "not run" else " ✓" if one.measured else " ○"
            cells.append(plain(f"{one.expected:.2f}{mark}" if one else ""))
        how = row.spec() + (f" + {row.query_side}" if row.query_side else "")
        mean = "" if row.average is None else f"{row.average:.2f}"
        label = f"{row.label} (quoted there)" if row.quoted else row.label
        shown.add_row(
            plain(label), plain(row.embedder), plain(how), plain(row.generator), *cells, mean
        )
    counts = Counter("measured" if one.measured is not None else one.verdict for one in outcomes)
    shown.caption = (
        f"{len(outcomes)} figures: {counts['measured']} measured ✓, {counts['ready']} can be ○, "
        f"{counts['not run']} lack something"
    )
    out.print(shown)


def _print_measured(table: Table, outcomes: Sequence[Outcome]) -> None:
    """Print what was measured against what is expected."""
    from strop.cli.tables import plain, plain_table, standard_output

    out = standard_output()
    out.print(plain(f"\n{table.name}", "bold"), plain(f"{table.title} ({table.measure})"), sep="  ")
    done = [one for one in outcomes if one.measured is not None]
    if done:
        shown = plain_table("", "dataset", "expected", "measured", "difference", "verdict")
        for column in shown.columns[2:5]:
            column.justify = "right"
        for one in done:
            assert one.measured is not None
            shown.add_row(
                plain(one.row.label), plain(one.dataset), f"{one.expected:.2f}",
                f"{one.measured:.2f}", f"{one.measured - one.expected:+.2f}", plain(one.verdict),
            )  # fmt: skip
        out.print(shown)
    out.print(f"{len(done)} of {len(outcomes)} figures were measured")


def _print_missing(outcomes: Sequence[Outcome]) -> None:
    """Print why figures were not measured, or cannot be compared, each reason once."""
    from strop.cli.tables import plain, standard_output

    out = standard_output()
    reasons = {
        "Not run, because of what is missing:":
            Counter(why for one in outcomes if one.verdict == "not run" for why in one.why),
        "Not comparable with the paper:":
            Counter(why for one in outcomes for why in one.differs),
    }  # fmt: skip
    for heading, counts in reasons.items():
        if counts:
            out.print(f"\n{heading}")
            for why, count in sorted(counts.items()):
                out.print(plain(f"  {why}  ({count} figures)"))


WHAT = ("alpha", "temperature", "n", "sets", "perplexity")


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("dataset")
@click.option(
    "--what", default="alpha,temperature,n,sets", show_default=True,
    help="Any of alpha, temperature, n, sets, perplexity.",
)  # fmt: skip
@click.option("-o", "--output", type=Path, required=True, help="The folder for the figures.")
@click.option("--sets", help="Query sets to use, such as simple+contrastive.  [all]")
@click.option("--measure", default="nDCG@10", show_default=True, help="What is drawn.")
@click.option("--split", default="test", show_default=True, help="Which qrels of the dataset.")
@click.option("--exclude-queries", help="Ids of queries to drop, such as 1,3.")
@click.option("--ignore-same-id", is_flag=True, help="Leave out a document with the query's id.")
@click.option(
    "--method",
    default="sharp:temperature=1",
    show_default=True,
    help="Whose boost, for perplexity.",
)
@click.option(
    "--perplexity-lm", default="smollm2", show_default=True,
    help="Who reads, for perplexity: hf:MODEL, hf:FILE.gguf or smollm2.",
)  # fmt: skip
@click.option("--documents", default=500, show_default=True, help="How many documents it reads.")
@click.option("--tokens", default=256, show_default=True, help="How much of each.")
@AS_JSON
def analyse(
    path: Path,
    dataset: str,
    what: str,
    output: Path,
    sets: str | None,
    measure: str,
    split: str,
    exclude_queries: str | None,
    ignore_same_id: bool,
    method: str,
    perplexity_lm: str,
    documents: int,
    tokens: int,
    as_json: bool,
) -> None:
    """Draw what settings do to INDEX on DATASET: PNG, SVG and a CSV of each figure.

    alpha, temperature and n are varied; sets uses each query set alone, so that generators can be
    compared; perplexity asks whether fluent documents gain more.
    """
    from strop.evaluation.scoring import select_queries
    from strop.io.datasets import read_dataset
    from strop.research.analyse import (
        boost_against_perplexity,
        compare_sets,
        sweep,
        write_csv,
    )
    from strop.research.figures import draw_correlation, draw_sets, draw_sweep, save
    from strop.research.perplexity import PerplexitySettings

    analyses = split_list(what)
    if not analyses or set(analyses) - set(WHAT):
        raise click.UsageError(f"--what takes any of {', '.join(WHAT)}, not {what!r}")
    chosen = split_list((sets or "").replace("+", ","))
    results: dict[str, Any] = {}
    with open_index(path) as index, progress_bars() as progress:
        data = select_queries(read_dataset(dataset, split), split_list(exclude_queries))
        common: Any = {
            "sets": chosen, "measure": measure, "ignore_same_id": ignore_same_id,
            "progress": progress,
        }  # fmt: skip
        for name in analyses:
            if name == "perplexity":
                settings = PerplexitySettings(perplexity_lm, tokens, documents)
                if chosen:
                    method = f"{method}:sets={'+'.join(chosen)}"
                correlation = boost_against_perplexity(
                    index, data, method, settings, progress=progress
                )
                rows = correlation.rows()
                figure = draw_correlation(correlation, data.name)
                results[name] = correlation.to_json()
            elif name == "sets":
                plain_value, compared = compare_sets(index, data, **common)
                rows = [one.row() for one in compared]
                title = f"Query sets alone: {data.name}, {len(data.queries):,} queries, α = 1"
                figure = draw_sets(plain_value, compared, measure, title)
                results[name] = {"plain": plain_value, "sets": rows}
            else:
                swept = sweep(index, data, name, **common)  # type: ignore[arg-type]
                rows, figure = swept.rows(), draw_sweep(swept)
                results[name] = {"plain": swept.plain, "points": rows}
            files = save(figure, output, name)
            write_csv(output / f"{name}.csv", rows)
            results[name]["files"] = [str(file) for file in (*files, output / f"{name}.csv")]
    if as_json:
        print_json(results)
        return
    for name, of in results.items():
        if name == "perplexity":
            echo(
                f"perplexity: Pearson {of['pearson']:+.4f} (95% limits {of['low']:+.4f} to "
                f"{of['high']:+.4f}), {of['pairs']:,} pairs, {of['documents']:,} documents"
            )
        else:
            best = max(of.get("points") or of["sets"], key=lambda row: row["value"])
            settings_ = {
                k: v for k, v in best.items() if k in (name, "fixed", "set", "temperature")
            }
            at = ", ".join(f"{key} {value}" for key, value in settings_.items())
            echo(f"{name}: best {best['value']:.2f} ({at}); plain {of['plain']:.2f}")
        echo(f"  {of['files'][0]}")


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("dataset")
@click.option("-o", "--output", type=Path, required=True, help="The folder for the page.")
@click.option("--methods", help="Methods of `strop eval` to compare.  [those the sets allow]")
@click.option("--method", help="The method whose changes are explained.  [sharp]")
@click.option("--sets", help="Query sets to use, such as simple+contrastive.  [all]")
@click.option("--measures", default="nDCG@10,R@50,AP@50", show_default=True, help="What is shown.")
@click.option("--split", default="test", show_default=True, help="Which qrels of the dataset.")
@click.option("--exclude-queries", help="Ids of queries to drop, such as 1,3.")
@click.option("--ignore-same-id", is_flag=True, help="Leave out a document with the query's id.")
@click.option("--most", default=5, show_default=True, help="How many gains and losses to explain.")
@AS_JSON
def report(
    path: Path,
    dataset: str,
    output: Path,
    methods: str | None,
    method: str | None,
    sets: str | None,
    measures: str,
    split: str,
    exclude_queries: str | None,
    ignore_same_id: bool,
    most: int,
    as_json: bool,
) -> None:
    """Write a page about INDEX on DATASET: tables, figures, what gained and lost and why."""
    import shlex
    import sys

    from strop.evaluation.scoring import select_queries
    from strop.io.datasets import read_dataset
    from strop.research.html_report import write_report

    with open_index(path) as index, progress_bars() as progress:
        page = write_report(
            index,
            select_queries(read_dataset(dataset, split), split_list(exclude_queries)),
            output,
            methods=split_list(methods),
            method=method,
            measures=split_list(measures),
            ignore_same_id=ignore_same_id,
            sets=split_list((sets or "").replace("+", ",")),
            most=most,
            command=shlex.join(["strop", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "",
            progress=progress,
        )
    if as_json:
        print_json({"page": str(page), "bytes": page.stat().st_size})
    else:
        echo(str(page))


COMMANDS = (analyse, report, reproduce)
