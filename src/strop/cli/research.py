"""Verbs for research: the paper's tables, analyses with figures, a page about an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import AS_JSON, named_options, open_index, split_list, split_sets
from strop.cli.messages import echo, print_json
from strop.cli.progress import progress_bars

if TYPE_CHECKING:
    from strop.research.paper import Table
    from strop.research.reproduce import Outcome


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--list", "only_list", is_flag=True, help="List the figures and what each one needs.")
@click.option(
    "--data", type=Path, envvar="STROP_DATA", help="Folder of collections.  [OUTPUT/data]"
)
@click.option(
    "--models", type=Path, envvar="STROP_MODELS", help="Folder of model weights.  [OUTPUT/models]"
)
@click.option("--queries", type=Path, help="Folder of generated queries.  [OUTPUT/queries]")
@click.option("--queries-by", default="", help="The model that wrote the generated queries.")
@click.option("--sentences", is_flag=True, help="Use the documents' own sentences as queries.")
@click.option("--lm", help="Language model that writes missing queries.")
@click.option(
    "--lm-option", "lm_options", multiple=True, metavar="NAME=VALUE", help="Option of --lm."
)
@click.option(
    "--examples",
    type=Path,
    help="File of example queries for the prompt, one per line.  [5 unused ones]",
)
@click.option(
    "--budget", type=float, help="Stop before spending more than this per query set (USD)."
)
@click.option("--embedder", help="Use this embedder for every row.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="Option of --embedder."
)
@click.option(
    "--perplexity-lm", help="Model that measures perplexity: hf:MODEL, hf:FILE.gguf or smollm2."
)
@click.option("--documents", type=int, help="Number of documents for perplexity.  [500]")
@click.option("--download", is_flag=True, help="Download missing collections and weights.")
@click.option("--datasets", help="Only these collections, such as scifact,nfcorpus.")
@click.option("--methods", help="Only these methods, such as trad,consharp.")
@click.option("--embedders", help="Only these embedders, such as contriever.")
@click.option(
    "--tolerance", type=float, help="Accepted difference in points.  [0.3; 1 with generated text]"
)
@click.option(
    "-o", "--output", type=Path, default=Path("reproduction"), show_default=True,
    help="Folder of indexes and results; run again to continue.",
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
    """Measure the paper's tables with the data and models at hand, and compare.

    Tables: beir, beir-recall, beir-map, query-side, index-time, bright, miracl, perplexity; without
    TABLE all of them. Missing data is listed with the folder it belongs in: docs/reproduce.md.
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
        raise click.UsageError(
            "no figure of the paper has these datasets, methods and embedders together"
        )
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
@click.option("-o", "--output", type=Path, required=True, help="Folder for the figures.")
@click.option("--sets", help="Query sets to use, such as simple+contrastive.  [all]")
@click.option("--measure", default="nDCG@10", show_default=True, help="Measure to draw.")
@click.option("--split", default="test", show_default=True, help="Which qrels of DATASET.")
@click.option("--exclude-queries", help="Ids of queries to leave out, such as 1,3.")
@click.option("--ignore-same-id", is_flag=True, help="Skip a document with the id of the query.")
@click.option(
    "--method",
    default="sharp:temperature=1",
    show_default=True,
    help="Perplexity: method whose gain is correlated.",
)
@click.option(
    "--perplexity-lm", default="smollm2", show_default=True,
    help="Perplexity: the model, hf:MODEL, hf:FILE.gguf or smollm2.",
)  # fmt: skip
@click.option(
    "--documents", default=500, show_default=True, help="Perplexity: number of documents."
)
@click.option("--tokens", default=256, show_default=True, help="Perplexity: tokens per document.")
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
    """Draw how settings change the quality of INDEX on DATASET, as PNG, SVG and CSV.

    alpha, temperature and n are varied. sets uses each query set alone, to compare generators.
    perplexity correlates the gain of a document with how predictable its text is.
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
    chosen = split_sets(sets)
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
@click.option("-o", "--output", type=Path, required=True, help="Folder for the page.")
@click.option(
    "--methods", help="Methods of `strop eval` to compare.  [those that fit the query sets]"
)
@click.option("--method", help="Method whose gains and losses are explained.  [sharp]")
@click.option("--sets", help="Query sets to use, such as simple+contrastive.  [all]")
@click.option(
    "--measures", default="nDCG@10,R@50,AP@50", show_default=True, help="Measures to show."
)
@click.option("--split", default="test", show_default=True, help="Which qrels of DATASET.")
@click.option("--exclude-queries", help="Ids of queries to leave out, such as 1,3.")
@click.option("--ignore-same-id", is_flag=True, help="Skip a document with the id of the query.")
@click.option("--most", default=5, show_default=True, help="Number of gains and losses to explain.")
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
    """Write an HTML report on INDEX and DATASET: tables, figures, explained gains and losses."""
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
            sets=split_sets(sets),
            most=most,
            command=shlex.join(["strop", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "",
            progress=progress,
        )
    if as_json:
        print_json({"page": str(page), "bytes": page.stat().st_size})
    else:
        echo(str(page))
