"""Tables of what a command reports: hits, documents, scores, tuning, what an index holds."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strop.cli.common import waiting_for_vectors, worth_compacting
from strop.common.text import escape_controls, human_bytes, shorten
from strop.methods import method_spec, sharp_with
from strop.types import Document

if TYPE_CHECKING:
    from strop.evaluation.grid import Grid
    from strop.evaluation.scoring import Report
    from strop.evaluation.tune import Choice
    from strop.storage.references import Selected

_WIDE = 10_000


def standard_output() -> Console:
    """Return a console as wide as COLUMNS or the terminal; without either, lines stay whole."""
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console = Console(highlight=False, width=_WIDE, soft_wrap=True)
    return console


def plain(text: str, style: str = "") -> Text:
    """Return a text to be shown as it is: no markup, no emoji codes, no control characters."""
    return Text(escape_controls(text.replace("\r\n", "\n")), style)


def plain_table(*columns: str) -> Table:
    """Return an empty table in the house style."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def print_hits(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents."""
    shown = plain_table("", "score", "id", "document")
    for row in rows:
        shown.add_row(
            str(row["rank"]),
            f"{row['score']:.4f}",
            plain(row["id"]),
            plain(shorten(f"{row['title']} {row['text']}", 160)),
        )
    standard_output().print(shown)


def print_document(
    document: Document, queries: Mapping[str, Sequence[str]], selected: Selected | None
) -> None:
    """Print one document, its stored queries and its references."""
    out = standard_output()
    out.print(plain(document.id, "bold"), plain(document.title), sep="  ")
    out.print(plain(document.text))
    for key, value in document.metadata.items():
        out.print(plain(f"{key}:", "dim"), plain(str(value)))
    for name, texts in queries.items():
        out.print()
        out.print(plain(name, "bold"), f"({len(texts)})")
        for text in texts:
            out.print(plain(f"  - {text}"))
    if selected is not None:
        out.print()
        out.print(plain("references", "bold"), f"(silhouette {selected.silhouette:.3f})")
        for one in selected.references:
            line = f"  {one.similarity:.3f}  {one.id}  (for {one.cluster_size} neighbours)"
            out.print(plain(line))


def print_explained(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents, each with the stored queries that moved it most."""
    out = standard_output()
    for row in rows:
        told = row["explanation"]
        out.print(
            plain(f"{row['rank']}. {row['id']} ", "bold"),
            f"{told['score']:.4f} = {told['plain']:.4f} plain"
            f" {told['score'] - told['words'] - told['plain']:+.4f}"
            + (f" {told['words']:+.4f} words" if told["words"] else ""),
        )
        shown = plain_table("moved", "weight", "similarity", "set", "stored query")
        for part in told["queries"][:5]:
            shown.add_row(
                f"{part['moved']:+.4f}",
                f"{part['weight']:.2f}",
                f"{part['similarity']:.3f}",
                plain(part["set"]),
                plain(shorten(part["text"], 90)),
            )
        out.print(shown)


def print_report(report: Report) -> None:
    """Print methods side by side, in percent, with their change against the baseline."""
    shown = plain_table("", *report.measures)
    shown.columns[0].header = plain(report.dataset)
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, values in report.results.items():
        cells = []
        for measure, value in values.items():
            cell = f"{100 * value:.2f}"
            if name != report.baseline:
                change = 100 * (value - report.results[report.baseline][measure])
                star = "*" if report.p_values[name][measure] < 0.05 else " "
                cell += f" [green]{change:+.2f}[/]{star}" if change > 0 else f" {change:+.2f}{star}"
            cells.append(cell)
        shown.add_row(plain(name), *cells)
    shown.caption = f"{report.queries:,} queries, percent"
    if len(report.results) > 1:
        shown.caption += f"; change against {report.baseline}, * p < 0.05 (paired t-test, Holm)"
    standard_output().print(shown)
    if report.gated is not None:
        counts = ", ".join(f"{count:,} {name}" for name, count in report.left_out.items())
        standard_output().print(
            plain(
                f"\nWithout generated queries of cosine {report.leak_gate:g} or more to a test"
                f" query (left out: {counts or 'none'})"
            )
        )
        print_report(report.gated)


def print_grid(grid: Grid) -> None:
    """Print query methods by scoring methods, in percent, with the change against no expansion."""
    measures = grid.first.measures
    shown = plain_table("", "", *measures)
    shown.columns[0].header = plain(grid.first.dataset)
    for column in shown.columns[2:]:
        column.justify = "right"
    for step, report in grid.reports.items():
        best = {name: max(of[name] for of in report.results.values()) for name in measures}
        for method, values in report.results.items():
            cells = []
            for measure, value in values.items():
                mark = "^" if len(report.results) > 1 and value == best[measure] else " "
                cell = f"[bold]{100 * value:.2f}[/]^" if mark == "^" else f"{100 * value:.2f} "
                if step in grid.p_values:
                    change = 100 * (value - grid.reports["none"].results[method][measure])
                    star = "*" if grid.p_values[step][method][measure] < 0.05 else " "
                    cell += f" {change:+6.2f}{star}"
                elif grid.p_values:
                    cell += " " * 8
                cells.append(cell)
            shown.add_row(plain(step), plain(method), *cells)
        shown.add_section()
    shown.caption = f"{grid.first.queries:,} queries, percent; ^ best with its query method"
    if grid.p_values:
        shown.caption += (
            "; change against the same scoring method without expansion, * p < 0.05 (paired t-test,"
            " Holm)"
        )
    standard_output().print(shown)


def print_choice(choice: Choice) -> None:
    """Print what was chosen for an index, what it should gain and how sure that is."""
    out = standard_output()
    best = method_spec(choice.method)
    if choice.taken:
        out.print(plain(f"sharp is now {best}", "bold"))
    else:
        tried = f"; the best tried was {best}" if choice.queries else ""
        out.print(plain(f"sharp keeps its defaults{tried}", "bold"))
    if choice.gain is not None:
        out.print(
            f"{choice.gain:+.2f} nDCG@10 against the defaults, 95% sure of {choice.low:+.2f} to"
            f" {choice.high:+.2f} ({choice.queries:,} queries)"
        )
    out.print(plain(choice.why))


def print_info(about: dict[str, Any]) -> None:
    """Print what an index holds."""
    made = about["embedder"]
    shown = plain_table("", "")
    shown.show_header = False
    shown.add_row("index", plain(f"{about['path']} (format {about['format']})"))
    shown.add_row("embedder", plain(f"{made['name']}, {made['dim']} dimensions"))
    shown.add_row("documents", f"{about['documents']:,}{_aside(empty=about['empty'])}")
    for name, of in about["sets"].items():
        old = 0 if of["waiting"] else of["older_than_text"]
        shown.add_row(
            plain(f"set {name}"),
            f"{of['queries']:,} texts for {of['documents']:,} documents"
            + f", {of['vectors']}"
            + _aside(older_than_their_text=old),
        )
    if about["references"]:
        of = about["references"]
        shown.add_row(
            "references",
            f"of {of['documents']:,} documents, {of['neighbors']} neighbours, "
            f"k {of['smallest']}:{of['largest']}{_aside(changes_since=of['out_of_date'])}",
        )
    if about["tuned"]:
        unused = "" if about["tuned"]["in_use"] else " (not in use: the query sets are others now)"
        shown.add_row("tuned", plain(method_spec(sharp_with(about["tuned"]["method"])) + unused))
    waiting = waiting_for_vectors(about)
    if waiting:
        finish = f"strop finish {shlex.quote(about['path'])}"
        shown.add_row("waiting", plain(f"{waiting:,} to embed: {finish}"))
    for label, said in _size_rows(about["sizes"], about["path"]):
        shown.add_row(plain(label), plain(said))
    standard_output().print(shown)


def _size_rows(sizes: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield an index's size, what it is made of, and what of it is waste."""
    per = sizes["per_document"]
    yield "size", human_bytes(sizes["total"]) + (f", {human_bytes(per)} a document" if per else "")
    sets = {f"vectors of {name}": size for name, size in sizes["sets"].items()}
    for label, size in {
        "catalog": sizes["catalog"], "vectors of documents": sizes["documents"], **sets,
        "cache": sizes["cache"],
    }.items():  # fmt: skip
        yield f"  {label}", human_bytes(size)
    if sizes["times_plain"]:
        yield (
            "  vectors in all",
            f"{sizes['times_plain']:.2f} times a plain float32 index "
            f"({human_bytes(sizes['plain'])})",
        )
    if sizes["waste"]:
        remedy = f": strop compact {shlex.quote(path)}" if worth_compacting(sizes) else ""
        yield "  of it waste", human_bytes(sizes["waste"]) + remedy


def _aside(**counts: int) -> str:
    said = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return f" ({', '.join(said)})" if said else ""
