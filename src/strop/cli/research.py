"""Verbs for research: the paper's tables, analyses with figures, a page about an index."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import argument

from strop.cli import options as opt
from strop.cli.messages import progress_bars
from strop.cli.verbs import Answer, flag, named_values, option, output_option, split_option, verb
from strop.common.text import counted

if TYPE_CHECKING:
    from strop.research.paper import Table
    from strop.research.reproduce import Outcome


@verb(
    argument("tables", nargs=-1, metavar="[TABLE]..."),
    flag("--list", "List the figures and what each one needs.", "only_list"),
    option("--data", "Folder of collections.", type=Path, envvar="STROP_DATA", shown="OUTPUT/data"),
    option(
        "--models",
        "Folder of model weights.",
        type=Path,
        envvar="STROP_MODELS",
        shown="OUTPUT/models",
    ),
    option("--queries", "Folder of generated queries.", type=Path, shown="OUTPUT/queries"),
    option("--queries-by", "Model that generated the queries in --queries."),
    flag("--sentences", "Use the documents' own sentences as queries."),
    option("--lm", "Language model that generates missing queries."),
    opt.LM_OPTIONS,
    option("--budget", "Stop before spending more than this per query set (USD).", type=float),
    option("--embedder", "Use this embedder for every row."),
    named_values("--option", "Option of --embedder", "options"),
    option("--perplexity-lm", "Model that measures perplexity: hf:MODEL, hf:FILE.gguf or smollm2."),
    option("--documents", "Number of documents for perplexity.", default=500),
    split_option("--datasets", "Only these collections, such as scifact,nfcorpus."),
    split_option("--methods", "Only these methods, such as trad,consharp."),
    split_option("--embedders", "Only these embedders, such as contriever."),
    option(
        "--tolerance",
        "Accepted difference in points.",
        type=float,
        shown="0.3; 1 with generated text",
    ),
    output_option(
        "Folder of indexes and results; run again to continue.", default=Path("reproduction")
    ),
)
def reproduce(
    tables: tuple[str, ...],
    only_list: bool,
    datasets: list[str],
    methods: list[str],
    embedders: list[str],
    tolerance: float | None,
    perplexity_lm: str | None,
    documents: int,
    **options: Any,
) -> Answer:
    """Reproduce the paper's tables with the available data and models.

    Each figure is measured and compared with the paper's. Tables: beir, beir-recall, beir-map,
    query-side, index-time, bright, miracl, perplexity; without TABLE, all of them. Missing data is
    listed with the folder it belongs in. See docs/reproduce.md.
    """
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
            "the paper has no figure with this combination of datasets, methods and embedders"
        )
    perplexity = PerplexitySettings(perplexity_lm, documents=documents) if perplexity_lm else None
    setup = Setup(perplexity=perplexity, **options)
    with progress_bars() as progress:
        outcomes = list(
            reproduce(figures, setup, tolerance=tolerance, run=not only_list, progress=progress)
        )
    outcomes += averages(outcomes, tolerance)
    value = [outcome.to_json() for outcome in outcomes]
    return Answer(value, partial(_print_outcomes, chosen, outcomes, only_list))


def _print_outcomes(tables: Sequence[Table], outcomes: Sequence[Outcome], only_list: bool) -> None:
    """Print each table, then why figures were not measured or cannot be compared, each once."""
    from strop.cli.tables import plain, standard_output

    out = standard_output()
    missing = Counter(why for one in outcomes if one.verdict == "not run" for why in one.why)
    differs = Counter(why for one in outcomes for why in one.differs)
    notes = {why: number for number, why in enumerate(sorted(differs), 1)}
    for table in tables:
        if here := [outcome for outcome in outcomes if outcome.table == table]:
            title = plain(f"{table.title} ({table.measure})")
            out.print(plain(f"\n{table.name}", "bold"), title, sep="  ")
            if only_list:
                _print_list(table, here, notes)
            else:
                _print_measured(here)
    if missing:
        out.print("\nNot run, because something is missing:")
        for why, count in sorted(missing.items()):
            out.print(plain(f"  {why}  ({counted(count, 'figure')})"))
    if differs:
        out.print("\nNot comparable with the paper:")
        for why, number in notes.items():
            out.print(plain(f"  {number}. {why}  ({counted(differs[why], 'figure')})"))


_MARKS = {"measured": " ✓", "ready": " ○", "not run": ""}


def _state(outcome: Outcome) -> str:
    return outcome.verdict if outcome.measured is None else "measured"


def _print_list(table: Table, outcomes: Sequence[Outcome], notes: Mapping[str, int]) -> None:
    """Print the paper's figures; then what each row needs and whether a run could be compared."""
    from strop.cli.tables import plain, plain_table, standard_output

    datasets = dict.fromkeys(one.dataset for one in outcomes if one.dataset != "average")
    expected = plain_table("", *(name.removeprefix(f"{table.name}-") for name in datasets), "mean")
    needed = plain_table("", "method", "needs", "ready", "a run is comparable")
    for row in table.rows:
        mine = {outcome.dataset: outcome for outcome in outcomes if outcome.row == row}
        if not mine:
            continue
        label = plain(f"{row.label} (quoted there)" if row.quoted else row.label)
        cells = [
            f"{mine[name].expected:.2f}{_MARKS[_state(mine[name])]}" if name in mine else ""
            for name in datasets
        ]
        expected.add_row(label, *cells, "" if row.average is None else f"{row.average:.2f}")
        comparable = f"if by {row.generator}" if row.generator else "yes"
        if numbers := sorted({notes[why] for one in mine.values() for why in one.differs}):
            comparable = f"no: note {', '.join(map(str, numbers))}"
        ready = sum(outcome.verdict != "not run" for outcome in mine.values())
        needed.add_row(
            label, plain(row.spec()), plain(", ".join(row.needs())), f"{ready} of {len(mine)}",
            plain(comparable),
        )  # fmt: skip
    counts = Counter(map(_state, outcomes))
    expected.caption = (
        f"{counted(len(outcomes), 'figure')}: {counts['measured']} measured ✓,"
        f" {counts['ready']} ready ○, {counts['not run']} lack something"
    )
    standard_output().print(expected)
    standard_output().print(needed)


def _print_measured(outcomes: Sequence[Outcome]) -> None:
    """Print each measured figure next to the expected one."""
    from strop.cli.tables import plain, plain_table, standard_output

    shown = plain_table("", "dataset", "expected", "measured", "difference", "verdict")
    for column in shown.columns[2:5]:
        column.justify = "right"
    for outcome in outcomes:
        if outcome.measured is not None:
            shown.add_row(
                plain(outcome.row.label), plain(outcome.dataset), f"{outcome.expected:.2f}",
                f"{outcome.measured:.2f}", f"{outcome.measured - outcome.expected:+.2f}",
                plain(outcome.verdict),
            )  # fmt: skip
    if shown.row_count:
        standard_output().print(shown)
    standard_output().print(f"{shown.row_count} of {len(outcomes)} figures were measured")


@verb(
    opt.INDEX,
    argument("dataset"),
    split_option(
        "--what",
        "Plots: any of alpha, temperature, n, sets, perplexity.",
        default="alpha,temperature,n,sets",
    ),
    output_option("Folder for the figures."),
    opt.SETS,
    option("--measure", "Measure to plot.", default="nDCG@10"),
    opt.LABELLED,
    option(
        "--method", "Perplexity: method whose gain is correlated.", default="sharp:temperature=1"
    ),
    option(
        "--perplexity-lm",
        "Perplexity: language model, one of hf:MODEL, hf:FILE.gguf, smollm2.",
        default="smollm2",
    ),
    option("--documents", "Perplexity: number of documents.", default=500),
    option("--tokens", "Perplexity: tokens per document.", default=256),
)
def analyse(path: Path, dataset: str, what: list[str], output: Path, **options: Any) -> Answer:
    """Plot how settings change the quality of INDEX on DATASET.

    Each plot is written as PNG, SVG and CSV. alpha, temperature and n vary the setting of that
    name. sets uses each query set alone, to compare generators. perplexity correlates the gain of a
    document with how predictable its text is.
    """
    from strop.research.analyse import SWEPT, boost_against_perplexity, sweep, write_csv
    from strop.research.figures import draw_correlation, draw_sweep, save
    from strop.research.perplexity import PerplexitySettings

    known = (*SWEPT, "perplexity")
    if not what or set(what) - set(known):
        raise click.UsageError(f"--what takes any of {', '.join(known)}, not {','.join(what)!r}")
    sets, results, lines = options["sets"], {}, []
    with opt.open_index(path) as index, progress_bars() as progress:
        data = opt.read_labelled(dataset, options)
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
    opt.INDEX,
    argument("dataset"),
    output_option("Folder for the page."),
    split_option(
        "--methods", "Methods of `strop eval` to compare.", shown="those that fit the query sets"
    ),
    option("--method", "Method whose gains and losses are explained.", shown="sharp"),
    opt.SETS,
    opt.MEASURES,
    opt.LABELLED,
    option("--most", "Number of gains and losses to explain.", default=5),
)
def report(path: Path, dataset: str, output: Path, **options: Any) -> Answer:
    """Write an HTML report on INDEX and DATASET.

    It contains tables, figures, and explained gains and losses.
    """
    from strop.research.html_report import write_report

    args = click.get_current_context().meta.get("strop.args", [])
    passed_on = ("methods", "method", "sets", "measures", "ignore_same_id")
    with opt.open_index(path) as index, progress_bars() as progress:
        page = write_report(
            index,
            opt.read_labelled(dataset, options),
            output,
            limit=options["most"],
            command=shlex.join(["strop", *args]),
            progress=progress,
            **{name: options[name] for name in passed_on},
        )
    return Answer({"page": str(page), "bytes": page.stat().st_size}, str(page))
