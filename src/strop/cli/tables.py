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

from strop.cli.common import set_aside, waiting_for_vectors, worth_compacting
from strop.common.text import counted, escape_controls, human_bytes, shorten
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
    """Return a text to be table as it is: no markup, no emoji codes, no control characters."""
    return Text(escape_controls(text.replace("\r\n", "\n")), style)


def plain_table(*columns: str) -> Table:
    """Return an empty table in the house style."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def print_hits(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents."""
    table = plain_table("", "score", "id", "document")
    for row in rows:
        table.add_row(
            str(row["rank"]),
            f"{row['score']:.4f}",
            plain(row["id"]),
            plain(shorten(f"{row['title']} {row['text']}", 160)),
        )
    standard_output().print(table)


def print_document(
    document: Document, queries: Mapping[str, Sequence[str]], references: Selected | None
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
    if references is not None:
        out.print()
        out.print(plain("references", "bold"), f"(silhouette {references.silhouette:.3f})")
        for reference in references.references:
            cluster = counted(reference.cluster_size, "neighbour")
            line = f"  {reference.similarity:.3f}  {reference.id}  (stands for {cluster})"
            out.print(plain(line))


def print_explained(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents, each with the stored queries that moved it most."""
    out = standard_output()
    for row in rows:
        explanation = row["explanation"]
        out.print(
            plain(f"{row['rank']}. {row['id']} ", "bold"),
            f"{explanation['score']:.4f} = {explanation['plain']:.4f} plain"
            f" {explanation['score'] - explanation['words'] - explanation['plain']:+.4f}"
            + (f" {explanation['words']:+.4f} words" if explanation["words"] else ""),
        )
        table = plain_table("moved", "weight", "similarity", "set", "stored query")
        for part in explanation["queries"][:5]:
            table.add_row(
                f"{part['moved']:+.4f}",
                f"{part['weight']:.2f}",
                f"{part['similarity']:.3f}",
                plain(part["set"]),
                plain(shorten(part["text"], 90)),
            )
        out.print(table)


def print_report(report: Report) -> None:
    """Print methods side by side, in percent, with their change against the baseline."""
    table = plain_table("", *report.measures)
    table.columns[0].header = plain(report.dataset)
    for column in table.columns[1:]:
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
        table.add_row(plain(name), *cells)
    caption = f"{counted(report.queries, 'query')}, percent"
    if len(report.results) > 1:
        caption += f"; change against {report.baseline}, * p < 0.05 (paired t-test, Holm)"
    table.caption = plain(caption, "table.caption")
    standard_output().print(table)
    if report.gated is not None:
        counts = ", ".join(f"{count:,} {name}" for name, count in report.left_out.items())
        standard_output().print(
            plain(
                f"\nWithout the generated queries whose cosine to a test query is at least"
                f" {report.leak_gate:g} (left out: {counts or 'none'})"
            )
        )
        print_report(report.gated)


def print_grid(grid: Grid) -> None:
    """Print query methods by scoring methods, in percent, with the change against no expansion."""
    measures = grid.first.measures
    table = plain_table("", "", *measures)
    table.columns[0].header = plain(grid.first.dataset)
    for column in table.columns[2:]:
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
            table.add_row(plain(step), plain(method), *cells)
        table.add_section()
    caption = f"{counted(grid.first.queries, 'query')}, percent; ^ best with its query method"
    if grid.p_values:
        caption += (
            "; change against the same scoring method without expansion, * p < 0.05 (paired t-test,"
            " Holm)"
        )
    table.caption = plain(caption, "table.caption")
    standard_output().print(table)


def print_choice(choice: Choice) -> None:
    """Print the settings chosen for an index and the expected gain with its interval."""
    out = standard_output()
    best = method_spec(choice.method)
    if choice.taken:
        out.print(plain(f"sharp is now {best}", "bold"))
    else:
        tried = f"; the best tried was {best}" if choice.queries else ""
        out.print(plain(f"sharp keeps its defaults{tried}", "bold"))
    if choice.gain is not None:
        out.print(
            f"{choice.gain:+.2f} nDCG@10 against the defaults, 95% interval {choice.low:+.2f} to"
            f" {choice.high:+.2f} ({counted(choice.queries, 'query')})"
        )
    out.print(plain(choice.why))


def print_info(about: dict[str, Any]) -> None:
    """Print what an index holds."""
    embedder = about["embedder"]
    table = plain_table("", "")
    table.show_header = False
    table.add_row("index", plain(f"{about['path']} (format {about['format']})"))
    table.add_row("embedder", plain(f"{embedder['name']}, {embedder['dim']} dimensions"))
    table.add_row("documents", f"{about['documents']:,}{_aside(empty=about['empty'])}")
    for name, of in about["sets"].items():
        table.add_row(
            plain(f"set {name}"),
            f"{counted(of['queries'], 'text')} for {counted(of['documents'], 'document')}"
            + f", {of['vectors']}",
        )
        if of["older_than_text"]:
            table.add_row("", plain(_renewal(name, of, about["path"])))
    if about["references"]:
        of = about["references"]
        table.add_row(
            "references",
            f"of {counted(of['documents'], 'document')}, {of['neighbors']} neighbours, "
            f"k {of['smallest']}:{of['largest']}{_aside(changes_since=of['out_of_date'])}",
        )
    if about["tuned"]:
        unused = "" if about["tuned"]["in_use"] else " (not in use: the query sets have changed)"
        table.add_row("tuned", plain(method_spec(sharp_with(about["tuned"]["method"])) + unused))
    waiting = waiting_for_vectors(about)
    if waiting:
        finish = f"strop finish {shlex.quote(about['path'])}"
        table.add_row("waiting", plain(f"{waiting:,} to embed: {finish}"))
    if about["refused"]:
        table.add_row("refused", plain(set_aside(about["path"], about["refused"])))
    for label, text in _size_rows(about["sizes"], about["path"]):
        table.add_row(plain(label), plain(text))
    standard_output().print(table)


def _renewal(name: str, of: dict[str, Any], path: str) -> str:
    """Say how the queries of an older text come to count again."""
    command = f"strop queries {shlex.quote(path)} --style {name}"
    how = f"{command} --lm MODEL" if of["source"] == "lm" else f"{command} --file FILE"
    keep = f"strop add {shlex.quote(path)} CORPUS --keep-queries"
    old = of["older_than_text"]
    lists = "1 list older than its text" if old == 1 else f"{old:,} lists older than their texts"
    return f"{lists}, not used until renewed: {how}; or keep: {keep}"


def _size_rows(sizes: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the size of an index, of its parts, and of its waste."""
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
            "  all vectors",
            f"{sizes['times_plain']:.2f} times a plain float32 index "
            f"({human_bytes(sizes['plain'])})",
        )
    if sizes["waste"]:
        remedy = f": strop compact {shlex.quote(path)}" if worth_compacting(sizes) else ""
        yield "  waste, included", human_bytes(sizes["waste"]) + remedy


def _aside(**counts: int) -> str:
    """Return counts that are not zero, in parentheses."""
    parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return f" ({', '.join(parts)})" if parts else ""
