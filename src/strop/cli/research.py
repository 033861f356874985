"""Verbs for research: the paper's tables, analyses with figures, a page about an index."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import open_index
from strop.cli.options import (
    DATASET,
    INDEX,
    LABELLED,
    MEASURES,
    SETS,
    Answer,
    named_values,
    read_labelled,
    split_option,
    verb,
)
from strop.cli.progress import progress_bars
from strop.common.text import counted

if TYPE_CHECKING:
    from strop.research.paper import Row, Table
    from strop.research.reproduce import Outcome


@verb(
    click.argument("tables", nargs=-1, metavar="[TABLE]..."),
    click.option(
        "--list", "only_list", is_flag=True, help="List the figures and what each one needs."
    ),
    click.option(
        "--data", type=Path, envvar="STROP_DATA", help="Folder of collections.  [OUTPUT/data]"
    ),
    click.option(
        "--models",
        type=Path,
        envvar="STROP_MODELS",
        help="Folder of model weights.  [OUTPUT/models]",
    ),
    click.option("--queries", type=Path, help="Folder of generated queries.  [OUTPUT/queries]"),
    click.option("--queries-by", help="The model that wrote the generated queries."),
    click.option("--sentences", is_flag=True, help="Use the documents' own sentences as queries."),
    click.option("--lm", help="Language model that writes missing queries."),
    named_values("--lm-option", "lm_options", "Option of --lm"),
    click.option(
        "--examples",
        type=Path,
        help="File of example queries for the prompt, one per line.  [5 unused ones]",
    ),
    click.option(
        "--budget", type=float, help="Stop before spending more than this per query set (USD)."
    ),
    click.option("--embedder", help="Use this embedder for every row."),
    named_values("--option", "options", "Option of --embedder"),
    click.option(
        "--perplexity-lm", help="Model that measures perplexity: hf:MODEL, hf:FILE.gguf or smollm2."
    ),
    click.option("--documents", type=int, help="Number of documents for perplexity.  [500]"),
    split_option("--datasets", help="Only these collections, such as scifact,nfcorpus."),
    split_option("--methods", help="Only these methods, such as trad,consharp."),
    split_option("--embedders", help="Only these embedders, such as contriever."),
    click.option(
        "--tolerance",
        type=float,
        help="Accepted difference in points.  [0.3; 1 with generated text]",
    ),
    click.option(
        "-o",
        "--output",
        type=Path,
        default=Path("reproduction"),
        help="Folder of indexes and results; run again to continue.",
    ),
)
def reproduce(
    tables: tuple[str, ...],
    only_list: bool,
    datasets: list[str],
    methods: list[str],
    embedders: list[str],
    tolerance: float | None,
    examples: Path | None,
    perplexity_lm: str | None,
    documents: int | None,
    **options: Any,
) -> Answer:
    """Measure the paper's tables with the available data and models, and compare.

    Tables: beir, beir-recall, beir-map, query-side, index-time, bright, miracl, perplexity; without
    TABLE all of them. Missing data is listed with the folder it belongs in: docs/reproduce.md.
    """
    from strop.io.files import filled_lines
    from strop.research.paper import chosen_tables, figures_of
    from strop.research.perplexity import PerplexitySettings
    from strop.research.reproduce import averages, reproduce
    from strop.research.reproduce_plan import Setup

    chosen = chosen_tables(tables)
    figures = [
        figure
        for figure in figures_of(chosen)
        if (not datasets or figure.dataset in datasets)
        and (not methods or figure.row.method in methods)
        and (not embedders or figure.row.embedder in embedders)
    ]
    if not figures:
        raise click.UsageError(
            "no figure of the paper has these datasets, methods and embedders together"
        )
    shown = tuple(line.strip() for _, line in filled_lines(examples)) if examples else ()
    perplexity = None
    if perplexity_lm:
        perplexity = PerplexitySettings(perplexity_lm, documents=documents or 500)
    setup = Setup(examples=shown, perplexity=perplexity, **options)
    with progress_bars() as progress:
        outcomes = list(
            reproduce(figures, setup, tolerance=tolerance, run=not only_list, progress=progress)
        )
    outcomes += averages(outcomes, tolerance)
    value = [outcome.to_json() for outcome in outcomes]
    return Answer(value, partial(_print_outcomes, chosen, outcomes, only_list))


def _print_outcomes(tables: Sequence[Table], outcomes: Sequence[Outcome], only_list: bool) -> None:
    from strop.cli.tables import plain, standard_output

    out = standard_output()
    differs = sorted({why for outcome in outcomes for why in outcome.differs})
    notes = {why: str(number) for number, why in enumerate(differs, 1)}
    for table in tables:
        here = [outcome for outcome in outcomes if outcome.table == table.name]
        if here:
            title = plain(f"{table.title} ({table.measure})")
            out.print(plain(f"\n{table.name}", "bold"), title, sep="  ")
            if only_list:
                _print_list(table, here, notes)
            else:
                _print_measured(table, here)
    _print_missing(outcomes, notes)


def _print_list(table: Table, outcomes: Sequence[Outcome], notes: Mapping[str, str]) -> None:
    """Print the paper's figures; then what each row needs and whether a run could be compared."""
    from strop.cli.tables import plain, plain_table, standard_output

    out = standard_output()
    datasets = list(
        dict.fromkeys(outcome.dataset for outcome in outcomes if outcome.dataset != "average")
    )
    expected = plain_table("", *(name.removeprefix(f"{table.name}-") for name in datasets), "mean")
    needed = plain_table("", "method", "needs", "ready", "a run is comparable")
    for row in table.rows:
        mine = {outcome.dataset: outcome for outcome in outcomes if outcome.row == row}
        if not mine:
            continue
        cells = []
        for name in datasets:
            outcome = mine.get(name)
            mark = (
                ""
                if outcome is None or outcome.verdict == "not run"
                else " ✓"
                if outcome.measured
                else " ○"
            )
            cells.append(plain(f"{outcome.expected:.2f}{mark}" if outcome else ""))
        mean = "" if row.average is None else f"{row.average:.2f}"
        label = plain(f"{row.label} (quoted there)" if row.quoted else row.label)
        expected.add_row(label, *cells, mean)
        ready = sum(outcome.verdict != "not run" for outcome in mine.values())
        needed.add_row(
            label, plain(row.spec()), plain(", ".join(row.needs())), f"{ready} of {len(mine)}",
            plain(_comparable(row, [why for cell in mine.values() for why in cell.differs], notes)),
        )  # fmt: skip
    counts = Counter(
        "measured" if outcome.measured is not None else outcome.verdict for outcome in outcomes
    )
    expected.caption = (
        f"{counted(len(outcomes), 'figure')}: {counts['measured']} measured ✓,"
        f" {counts['ready']} can be ○, {counts['not run']} lack something"
    )
    out.print(expected)
    out.print(needed)


def _comparable(row: Row, differs: Sequence[str], notes: Mapping[str, str]) -> str:
    if differs:
        return "no: note " + ", ".join(sorted({notes[why] for why in differs}, key=int))
    return f"if by {row.generator}" if row.generator else "yes"


def _print_measured(table: Table, outcomes: Sequence[Outcome]) -> None:
    """Print what was measured against what is expected."""
    from strop.cli.tables import plain, plain_table, standard_output

    out = standard_output()
    done = [outcome for outcome in outcomes if outcome.measured is not None]
    if done:
        shown = plain_table("", "dataset", "expected", "measured", "difference", "verdict")
        for column in shown.columns[2:5]:
            column.justify = "right"
        for outcome in done:
            assert outcome.measured is not None
            shown.add_row(
                plain(outcome.row.label), plain(outcome.dataset), f"{outcome.expected:.2f}",
                f"{outcome.measured:.2f}", f"{outcome.measured - outcome.expected:+.2f}",
                plain(outcome.verdict),
            )  # fmt: skip
        out.print(shown)
    out.print(f"{len(done)} of {len(outcomes)} figures were measured")


def _print_missing(outcomes: Sequence[Outcome], notes: Mapping[str, str]) -> None:
    """Print why figures were not measured, or cannot be compared, each reason once."""
    from strop.cli.tables import plain, standard_output

    out = standard_output()
    missing = Counter(
        why for outcome in outcomes if outcome.verdict == "not run" for why in outcome.why
    )
    differs = Counter(why for outcome in outcomes for why in outcome.differs)
    if missing:
        out.print("\nNot run, because of what is missing:")
        for why, count in sorted(missing.items()):
            out.print(plain(f"  {why}  ({counted(count, 'figure')})"))
    if differs:
        out.print("\nNot comparable with the paper:")
        for why, number in notes.items():
            out.print(plain(f"  {number}. {why}  ({counted(differs[why], 'figure')})"))


@verb(
    INDEX,
    DATASET,
    split_option(
        "--what",
        default="alpha,temperature,n,sets",
        help="Any of alpha, temperature, n, sets, perplexity.",
    ),
    click.option("-o", "--output", type=Path, required=True, help="Folder for the figures."),
    SETS,
    click.option("--measure", default="nDCG@10", help="Measure to draw."),
    LABELLED,
    click.option(
        "--method",
        default="sharp:temperature=1",
        help="Perplexity: method whose gain is correlated.",
    ),
    click.option(
        "--perplexity-lm",
        default="smollm2",
        help="Perplexity: the model, hf:MODEL, hf:FILE.gguf or smollm2.",
    ),
    click.option("--documents", default=500, help="Perplexity: number of documents."),
    click.option("--tokens", default=256, help="Perplexity: tokens per document."),
)
def analyse(path: Path, dataset: str, what: list[str], output: Path, **options: Any) -> Answer:
    """Draw how settings change the quality of INDEX on DATASET, as PNG, SVG and CSV.

    alpha, temperature and n are varied. sets uses each query set alone, to compare generators.
    perplexity correlates the gain of a document with how predictable its text is.
    """
    from strop.research.analyse import SWEPT, boost_against_perplexity, sweep, write_csv
    from strop.research.figures import draw_correlation, draw_sweep, save
    from strop.research.perplexity import PerplexitySettings

    known = (*SWEPT, "perplexity")
    if not what or set(what) - set(known):
        raise click.UsageError(f"--what takes any of {', '.join(known)}, not {','.join(what)!r}")
    sets, results, lines = options["sets"], {}, []
    with open_index(path) as index, progress_bars() as progress:
        data = read_labelled(dataset, options)
        for name in what:
            if name == "perplexity":
                settings = PerplexitySettings(
                    options["perplexity_lm"], options["tokens"], options["documents"]
                )
                method = options["method"] + (f":sets={'+'.join(sets)}" if sets else "")
                correlation = boost_against_perplexity(
                    index, data, method, settings, progress=progress
                )
                figure, rows = draw_correlation(correlation, data.name), correlation.rows()
                results[name] = correlation.to_json()
                lines.append(f"perplexity: {correlation.summary()}")
            else:
                swept = sweep(
                    index, data, name, sets=sets, measure=options["measure"],
                    ignore_same_id=options["ignore_same_id"], progress=progress,
                )  # fmt: skip
                figure, rows = draw_sweep(swept), swept.rows()
                results[name] = {"plain": swept.plain, "points": rows}
                lines.append(f"{name}: {swept.summary()}")
            files = [*save(figure, output, name), output / f"{name}.csv"]
            write_csv(files[-1], rows)
            results[name]["files"] = [str(file) for file in files]
            lines.append(f"  {files[0]}")
    return Answer(results, "\n".join(lines))


@verb(
    INDEX,
    DATASET,
    click.option("-o", "--output", type=Path, required=True, help="Folder for the page."),
    split_option(
        "--methods", help="Methods of `strop eval` to compare.  [those that fit the query sets]"
    ),
    click.option("--method", help="Method whose gains and losses are explained.  [sharp]"),
    SETS,
    MEASURES,
    LABELLED,
    click.option("--most", default=5, help="Number of gains and losses to explain."),
)
def report(path: Path, dataset: str, output: Path, **options: Any) -> Answer:
    """Write an HTML report on INDEX and DATASET: tables, figures, explained gains and losses."""
    from strop.research.html_report import write_report

    args = click.get_current_context().meta.get("strop.args", [])
    how = {
        name: options[name]
        for name in ("methods", "method", "sets", "measures", "ignore_same_id", "most")
    }
    with open_index(path) as index, progress_bars() as progress:
        page = write_report(
            index,
            read_labelled(dataset, options),
            output,
            command=shlex.join(["strop", *args]),
            progress=progress,
            **how,
        )
    return Answer({"page": str(page), "bytes": page.stat().st_size}, str(page))
