"""Tables of what a command reports: hits, documents, scores, tuning, contents of an index."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strop.common.text import counted, escape_controls, human_bytes, shorten
from strop.methods import Method, method_spec, sharp_with
from strop.types import Chunk, Document

if TYPE_CHECKING:
    from strop.evaluation.grid import Grid
    from strop.evaluation.scoring import Report
    from strop.evaluation.tune import Choice
    from strop.storage.references import SelectedReferences

_WIDE = 10_000
_WASTE_SHARE, _WASTE_BYTES = 0.2, 1_000_000
"""Waste is reported when it is above this share of an index and above this many bytes."""


def standard_output() -> Console:
    """Return a console as wide as COLUMNS or the terminal; without either, lines stay whole."""
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console = Console(highlight=False, width=_WIDE, soft_wrap=True)
    return console


def plain(text: str, style: str = "") -> Text:
    """Return a text that is shown unchanged: no markup, no emoji codes, no control characters."""
    return Text(escape_controls(text.replace("\r\n", "\n")), style)


def plain_table(*columns: str) -> Table:
    """Return an empty table in the house style."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False)


def print_pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    for name, value in rows:
        table.add_row(plain(name), plain(value))
    standard_output().print(table)


SNIPPET = 200
"""Characters of a document that a list of hits shows."""
_OWN = ("title", "text")


def print_hits(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents."""
    if not rows:
        standard_output().print("No document matches.")
        return
    table = plain_table("", "score", "id", "document")
    for row in rows:
        table.add_row(str(row["rank"]), f"{row['score']:.4f}", plain(row["id"]), _snippet(row))
    standard_output().print(table)


def _snippet(row: dict[str, Any]) -> Text:
    """Return a hit's title, and its passage in bold with the text around it."""
    text, passage = row["text"], row["passage"] or {"text": "", "start": None}
    if passage["start"] is not None and row.get("chunk", {}).get("id") == row["id"]:
        begin = row["chunk"]["start"]  # the text is the chunk's, places are the document's
        passage = {**passage, "start": passage["start"] - begin, "end": passage["end"] - begin}
    title = row["title"]
    snippet = plain(shorten(title, SNIPPET) + "\n" * bool(title))
    begin = _heading_end(title, text)
    text = text[begin:]
    if passage["start"] is None or passage["end"] <= begin:
        snippet.append(plain(shorten(text, SNIPPET)))
        if passage["start"] is None and passage["text"] and passage["source"] not in _OWN:
            snippet.append(plain(f"\n{passage['source']}: ", "dim"))
            snippet.append(plain(shorten(passage["text"], SNIPPET), "bold"))
        return snippet
    start, end = max(0, passage["start"] - begin), passage["end"] - begin
    end = min(end, start + SNIPPET)
    room = (SNIPPET - (end - start)) // 2
    before, after = text[max(0, start - room) : start], text[end : end + room]
    if start > room:  # whole words only
        before = "… " + before.partition(" ")[2]
    if end + room < len(text):
        after = after.rpartition(" ")[0] + " …"
    for part, style in ((before, ""), (text[start:end], "bold"), (after, "")):
        snippet.append(plain(re.sub(r"\s+", " ", part), style))
    return snippet


def _heading_end(title: str, text: str) -> int:
    """Return where a text goes on after a heading that its title, or the end of it, repeats."""
    last = title.split(" > ")[-1].split()
    heading = re.match(r"[#\s]*" + r"\s+".join(map(re.escape, last)) + r"[#=\s]*\n\s*", text)
    return heading.end() if last and heading else 0


def print_document(
    document: Document,
    queries: Mapping[str, Sequence[str]],
    references: SelectedReferences | None,
    chunks: Sequence[Chunk] = (),
) -> None:
    """Print one document, its chunks, its stored queries and its references."""
    out = standard_output()
    out.print(plain(document.id, "bold"), plain(document.title), sep="  ")
    out.print(plain(document.text))
    for key, value in document.metadata.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        out.print(plain(f"{key}:", "dim"), plain(shown))
    if chunks:
        out.print()
        out.print(plain("chunks", "bold"), f"({len(chunks)})")
    for chunk in chunks:
        headings = " > ".join(chunk.headings)
        out.print(plain(f"  {chunk.id}  {chunk.start:,} to {chunk.end:,}  {headings}".rstrip()))
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
            line = f"  {reference.similarity:.3f}  {reference.id}  (represents {cluster})"
            out.print(plain(line))


_SHOWN = 5e-5
"""Smaller values are displayed as zero."""
_LEGEND = (
    "moved: what this text adds to the score. weight: its share among the document's texts, which"
    " sum to 1. similarity: cosine of this text and the query. The five texts that"
    " moved a document most are shown."
)


def print_explained(rows: Sequence[dict[str, Any]]) -> None:
    """Print ranked documents, each with the stored queries that moved it most."""
    out = standard_output()
    for row in rows:
        explanation = row["explanation"]
        feedback = explanation["feedback"]
        title = plain(shorten(row["title"], SNIPPET))
        out.print(plain(f"{row['rank']}. {row['id']}", "bold"), title, sep="  ")
        out.print(
            f"{row['score']:.4f} = {explanation['plain']:.4f} plain"
            f" {explanation['score'] - explanation['words'] - explanation['plain']:+.4f} sharpening"
            + (f" {explanation['words']:+.4f} words" if explanation["words"] else "")
            + (f" {feedback:+.4f} feedback" if abs(feedback) > _SHOWN else ""),
        )
        if not explanation["queries"]:
            continue
        table = plain_table("moved", "weight", "similarity", "set", "stored text")
        for part in explanation["queries"][:5]:
            table.add_row(
                f"{part['moved']:+.4f}",
                f"{part['weight']:.2f}",
                f"{part['similarity']:.3f}",
                plain(part["set"]),
                plain(shorten(part["text"], 90)),
            )
        out.print(table)
    if any(row["explanation"]["queries"] for row in rows):
        out.print(plain(_LEGEND, "dim"))


def print_report(report: Report) -> None:
    """Print methods side by side, in percent, with their change against the baseline."""
    table = _scores(report)
    base = report.results[report.baseline]
    for method, values in report.results.items():
        cells = [_score(value) for value in values.values()]
        if method != report.baseline:
            p = report.p_values[method]
            cells = [_score(value, base[name], p[name]) for name, value in values.items()]
        table.add_row(plain(method), *cells)
    caption = f"{counted(report.queries, 'query')}, percent"
    if len(report.results) > 1:
        caption += f"; change against {report.baseline}, {_TESTED}"
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
    table = _scores(grid.first, "")
    for step, report in grid.reports.items():
        for method, values in report.results.items():
            cells = [_score(value) for value in values.values()]
            if step in grid.p_values:
                base, p = grid.reports["none"].results[method], grid.p_values[step][method]
                cells = [_score(value, base[name], p[name]) for name, value in values.items()]
            table.add_row(plain(step), plain(method), *cells)
        table.add_section()
    caption = f"{counted(grid.first.queries, 'query')}, percent"
    if grid.p_values:
        caption += f"; change against the same scoring method without expansion, {_TESTED}"
    table.caption = plain(caption, "table.caption")
    standard_output().print(table)


_TESTED = "* p < 0.05 (paired t-test, Holm)"


def _scores(report: Report, *further: str) -> Table:
    """Return an empty table with a column for each measure, numbers to the right."""
    table = plain_table("", *further, *report.measures)
    table.columns[0].header = plain(report.dataset)
    for column in table.columns[1 + len(further) :]:
        column.justify = "right"
    return table


def _score(value: float, base: float | None = None, p_value: float = 1.0) -> Text:
    """Return a value in percent, and its change if there is something to compare it with."""
    if base is None:
        return Text(f"{100 * value:.2f}" + " " * 7)
    change = 100 * (value - base)
    style = "green" if change > 0 else ""
    star = "*" if p_value < 0.05 else " "
    return Text(f"{100 * value:.2f} ").append(f"{change:+.2f}", style).append(star)


def print_choice(choice: Choice) -> None:
    """Print the settings chosen for an index and the expected gain with its interval."""
    out = standard_output()
    if choice.taken:
        out.print(plain(f"sharp is now {method_spec(choice.method)}", "bold"))
    else:
        out.print(plain("sharp keeps its defaults", "bold"))
    if choice.gain is not None:
        if not choice.taken and choice.gain:
            out.print(plain(f"best settings tried: {method_spec(choice.method)}"))
        queries = counted(choice.queries, "query")
        held_out = f"{queries} that had no part in the choice"
        out.print(
            f"{choice.gain:+.2f} nDCG@10 against the defaults (95% confidence interval"
            f" {choice.low:+.2f} to {choice.high:+.2f}), on "
            + (held_out if choice.held_out else f"the {queries} that decided: optimistic")
        )
    out.print(plain(choice.why))


def print_sets(sets: Sequence[dict[str, Any]]) -> None:
    """Print the query sets of an index."""
    table = plain_table("set", "source", "documents", "queries", "size")
    for set_ in sets:
        table.add_row(
            plain(set_["name"]), set_["source"], f"{set_['lists']:,}", f"{set_['queries']:,}",
            human_bytes(set_["bytes"]),
        )  # fmt: skip
    standard_output().print(table)


def print_info(about: dict[str, Any]) -> None:
    """Print what an index or a published copy contains."""
    print_pairs(_published(about) if "engine" in about else _contents(about))


def _published(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    embedder, method = about["embedder"], about["method"]
    sets = method["sets"] and tuple(method["sets"])
    yield "copy", f"{about['path']} (format {about['format']})"
    yield "of index", f"{about['index_id']}, version {about['version']:,}, {about['published']}"
    yield "embedder", f"{embedder['name']}, {embedder['dim']} dimensions"
    yield "documents", f"{about['documents']:,}"
    for name, set_ in about["sets"].items():
        yield f"set {name}", counted(set_["queries"], "text")
    yield "method", method_spec(Method(**{**method, "sets": sets}))
    yield "size", human_bytes(about["bytes"])


def _contents(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    embedder = about["embedder"]
    yield "index", f"{about['path']} (format {about['format']})"
    yield "embedder", f"{embedder['name']}, {embedder['dim']} dimensions"
    empty = f" ({about['empty']:,} empty)" if about["empty"] else ""
    yield "documents", f"{about['documents']:,}{empty}"
    if about["chunks"] is not None:
        yield "chunks", f"{about['chunks']:,} of at most {about['chunking']} tokens"
    for name, set_ in about["sets"].items():
        lists = f"{counted(set_['queries'], 'text')} for {counted(set_['documents'], 'document')}"
        yield f"set {name}", f"{lists}, {set_['vectors']}"
        if set_["older_than_text"]:
            yield "", _renewal(name, set_, about["path"])
    if chosen := about["references"]:
        old = chosen["out_of_date"]
        since = f" ({old:,} changes since)" if old else ""
        sizes = f"{chosen['neighbors']} neighbours, k {chosen['smallest']}:{chosen['largest']}"
        yield "references", f"of {counted(chosen['documents'], 'document')}, {sizes}{since}"
    if tuned := about["tuned"]:
        yield "tuned", method_spec(sharp_with(tuned["method"]))
        if not tuned["in_use"]:
            yield "", f"not in use, {tuned['unused']}: strop tune {shlex.quote(about['path'])}"
    if waiting := waiting_for_vectors(about):
        yield "waiting", f"{waiting:,} to embed: strop finish {shlex.quote(about['path'])}"
    if about["refused"]:
        yield "refused", set_aside(about["path"], about["refused"])
    yield from _size_rows(about["sizes"], about["path"])


def waiting_for_vectors(about: dict[str, Any]) -> int:
    """Return how many documents and query lists ``strop finish`` would embed."""
    # Text of doc2query and docexp is embedded when a method needs it, not by finish.
    sets = [set_ for set_ in about["sets"].values() if set_["source"] != "augmented"]
    return int(about["waiting"] + sum(set_["waiting"] for set_ in sets))


def set_aside(path: Path | str, refused: list[dict[str, str]]) -> str:
    """Return the message for documents that the embedder refuses."""
    first = refused[0]
    return (
        f"the embedder refuses {counted(len(refused), 'text')}, which searches do not use."
        f" First: {first['id']}{' in ' + first['set'] if first['set'] else ''}: {first['reason']}."
        f" To try again: strop finish {shlex.quote(str(path))}, or change the document's text"
    )


def worth_compacting(sizes: dict[str, Any]) -> bool:
    """Return whether enough space is wasted to be worth a message."""
    return bool(sizes["waste"] > max(_WASTE_BYTES, _WASTE_SHARE * sizes["total"]))


def _renewal(name: str, set_: dict[str, Any], path: str) -> str:
    """Return the command that renews queries that were written for an older text."""
    how = f"strop queries {shlex.quote(path)} --set {name}"
    if set_["source"] == "lm":
        how += f" --style {set_['settings']['prompt']['style']} --lm {set_['lm']}"
    else:
        how += " --file FILE"
    keep = f"strop add {shlex.quote(path)} CORPUS --keep-queries"
    old = set_["older_than_text"]
    lists = "1 list older than its text" if old == 1 else f"{old:,} lists older than their texts"
    return f"{lists}, not used until renewed: {how}; or to keep them in use: {keep}"


def _size_rows(sizes: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the size of an index, of its parts, and of its waste."""
    per = sizes["per_document"]
    each = f", {human_bytes(per)} per document" if per else ""
    yield "size", human_bytes(sizes["total"]) + each
    yield "  catalog", human_bytes(sizes["catalog"])
    yield "  vectors of documents", human_bytes(sizes["documents"])
    for name, size in sizes["sets"].items():
        yield f"  vectors of {name}", human_bytes(size)
    yield "  cache", human_bytes(sizes["cache"])
    if sizes["times_plain"]:
        plain_size = human_bytes(sizes["plain"])
        times = f"{sizes['times_plain']:.2f} times a plain float32 index ({plain_size})"
        yield "  all vectors", times
    if sizes["waste"]:
        remedy = f": strop compact {shlex.quote(path)}" if worth_compacting(sizes) else ""
        yield "  waste, included", human_bytes(sizes["waste"]) + remedy


def print_plan(plan: dict[str, Any]) -> None:
    """Print the stages of a cluster run, and their sum."""
    table = plain_table("stage", "tasks", "core hours", "hours", "storage", "USD")
    for column in table.columns[1:]:
        column.justify = "right"
    stages = plan["stages"]
    costs = [stage["cost"] for stage in stages if stage["cost"] is not None]
    total = {name: sum(stage[name] for stage in stages) for name in _SUMMED}
    total |= {"name": "total", "tasks": None, "cost": sum(costs) if costs else None}
    for stage in (*stages, total):
        table.add_row(
            stage["name"],
            "" if stage["tasks"] is None else f"{stage['tasks']:,}",
            f"{stage['core_seconds'] / 3600:,.2f}",
            f"{stage['seconds'] / 3600:,.2f}",
            human_bytes(round(stage["bytes"])),
            "" if stage["cost"] is None else f"{stage['cost']:,.2f}",
        )
    standard_output().print(table)
    estimated = " (estimated from bytes)" if plan["estimated"] else ""
    standard_output().print(plain(f"{counted(plan['documents'], 'document')}{estimated}"))


_SUMMED = ("core_seconds", "seconds", "bytes")
