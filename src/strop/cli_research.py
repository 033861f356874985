"""Verbs for research: the paper's tables, analyses with figures, a page about an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli_common import AS_JSON, named_options, split_list
from strop.display import plain, plain_table, print_json, progress_bars, standard_output

if TYPE_CHECKING:
    from strop.paper import Table
    from strop.reproduce import Outcome


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--list", "only_list", is_flag=True, help="Say what there is and what is missing.")
@click.option("--data", type=Path, envvar="STROP_DATA", help="Collections.  [OUTPUT/data]")
@click.option("--models", type=Path, envvar="STROP_MODELS", help="Weights.  [OUTPUT/models]")
@click.option("--queries", type=Path, help="Generated queries.  [OUTPUT/queries]")
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
    from strop.paper import chosen_tables, figures_of
    from strop.reproduce import averages, reproduce

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
    from strop.files import filled_lines
    from strop.perplexity import PerplexitySettings
    from strop.reproduce_plan import Setup

    shown = tuple(line.strip() for _, line in filled_lines(examples)) if examples else ()
    perplexity = None
    if perplexity_lm:
        perplexity = PerplexitySettings(perplexity_lm, documents=documents or 500)
    return Setup(
        output, data, models, queries, sentences, lm, named_options(lm_options), shown, budget,
        embedder, named_options(options), perplexity, download,
    )  # fmt: skip


def _print_list(table: Table, outcomes: Sequence[Outcome]) -> None:
    """Print a table as the paper has it: what is expected, and what can be measured here."""
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
    out = standard_output()
    for verdict, heading in (
        ("not run", "Not run, for want of:"),
        ("not comparable", "Not comparable:"),
    ):
        reasons = Counter(why for one in outcomes if one.verdict == verdict for why in one.why)
        if reasons:
            out.print(f"\n{heading}")
            for why, count in sorted(reasons.items()):
                out.print(plain(f"  {why}  ({count} figures)"))


COMMANDS = (reproduce,)
