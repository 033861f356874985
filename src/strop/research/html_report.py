"""``strop report``: one HTML page about an index on a dataset.

Everything is in the page: styles, figures as SVG, no script. Texts of documents and queries come
from strangers: they are escaped, and the page's policy lets it load nothing.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.errors import BadInput
from strop.evaluation.changes import DEPTH, Change, Move, largest_changes
from strop.evaluation.scoring import MEASURES, Report, evaluate
from strop.index import Index
from strop.io.files import atomic_write
from strop.methods import method_spec, sharp_with
from strop.research.analyse import What, compare_sets, sweep
from strop.research.figures import draw_sets, draw_sweep, inline_svg
from strop.types import Dataset, Progress

PAGE = "index.html"
_TEXT_CHARS = 300
SWEEPS: tuple[What, ...] = ("alpha", "temperature", "n")
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{margin-top:2.5rem;border-bottom:1px solid #8886}
h3{font-size:1.05rem;margin:1.6rem 0 .3rem}
table{border-collapse:collapse;margin:.6rem 0;font-size:.92rem}
th,td{padding:.25rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid #8883}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wide{overflow-x:auto}figure{margin:1rem 0;background:#fff;padding:.5rem}
figure svg{max-width:100%;height:auto}
.up{color:#1a7f37}.down{color:#b3261e}.faint{opacity:.7}
pre{overflow-x:auto;padding:.6rem;background:#8881}bdi{overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){.up{color:#5fd07f}.down{color:#ff8a80}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(
    index: Index,
    dataset: Dataset,
    folder: Path,
    *,
    methods: Sequence[str] = (),
    method: str | None = None,
    measures: Sequence[str] = MEASURES,
    ignore_same_id: bool = False,
    sets: Sequence[str] = (),
    most: int = 5,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Write the page and return its path; ``method`` is the one whose changes are explained."""
    about = index.info()
    have = index.query_sets()
    if not have:
        raise BadInput(
            f"{index.path} has no query sets, so there is nothing to report: "
            f"strop queries {index.path} --style sentences"
        )
    mixed = f":sets={'+'.join(sets)}" if sets else ""
    method = method or f"sharp{mixed}"
    chosen = list(dict.fromkeys(["trad", *(methods or _fitting(have, mixed)), method]))
    report = evaluate(
        index, dataset, chosen, measures=measures, ignore_same_id=ignore_same_id, baseline="trad",
        progress=progress,
    )  # fmt: skip
    gained, lost = largest_changes(index, dataset, report, method, most)
    figures = list(_figures(index, dataset, report.measures[0], sets, ignore_same_id, progress))
    parts = [
        _head(dataset, about),
        _methods(report),
        _pictures(figures),
        _changes("Queries that gained most", index, gained, report.measures[0], method),
        _changes("Queries that lost most", index, lost, report.measures[0], method),
        _contents(about),
        f"<pre>{_safe(command)}</pre>" if command else "",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    with atomic_write(path) as file:
        file.write(_page(f"{dataset.name}: plain and sharpened search", "\n".join(parts)))
    return path


def _fitting(sets: Sequence[str], mixed: str) -> list[str]:
    """Return the methods that an index with these sets can run without embedding anything."""
    methods = [f"sharp{mixed}", f"maxsim{mixed}"]
    if "simple" in sets:
        methods.append("simsharp")
    if "contrastive" in sets:
        methods += ["consharp", "indexsharp"]
    return methods


# -- the page ---------------------------------------------------------------------------------


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_safe(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _safe(text: object) -> str:
    """Return a text that HTML shows as it is; control characters are shown as �."""
    cleaned = "".join(
        letter if letter in "\t\n" or (ord(letter) >= 32 and not 127 <= ord(letter) < 160) else "�"
        for letter in str(text)
    )
    return html.escape(cleaned, quote=True)


def _foreign(text: str) -> str:
    """Return a text from outside, shortened; <bdi> keeps its writing direction to itself."""
    folded = " ".join(text.split())
    folded = folded if len(folded) <= _TEXT_CHARS else folded[: _TEXT_CHARS - 1].rstrip() + "…"
    return f"<bdi>{_safe(folded)}</bdi>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML already; ``numbers`` are columns to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        columns = [
            f"<{tag}{' class=n' if at in numbers else ''}>{cell}</{tag}>"
            for at, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(columns)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>{line(head, "th")}\n{body}</table></div>'


def _signed(value: float, digits: int = 2) -> str:
    kind = "up" if value > 0 else "down" if value < 0 else "faint"
    return f'<span class="{kind}">{value:+.{digits}f}</span>'


def _head(dataset: Dataset, about: Mapping[str, Any]) -> str:
    return (
        f"<h1>{_safe(dataset.name)}: plain and sharpened search</h1>\n"
        f"<p>{about['documents']:,} documents, {len(dataset.queries):,} test queries, embedder "
        f"{_safe(about['embedder']['name'])}.</p>"
    )


def _methods(report: Report) -> str:
    head = ["method"]
    for measure in report.measures:
        head += [_safe(measure), "change", "p"]
    rows = []
    for name, values in report.results.items():
        row = [_safe(name)]
        for measure, value in values.items():
            row.append(f"{100 * value:.2f}")
            if name == report.baseline:
                row += ["", ""]
                continue
            p = report.p_values[name][measure]
            change = 100 * (value - report.results[report.baseline][measure])
            star = "*" if p < 0.05 else ""
            row += [_signed(change) + star, "&lt; 0.001" if p < 0.001 else f"{p:.3f}"]
        rows.append(row)
    note = (
        f"Percent. Change against {_safe(report.baseline)}; * p &lt; 0.05, paired t-test over "
        f"{report.queries:,} queries, corrected by Holm's method for the methods compared."
    )
    table = _table(head, rows, range(1, len(head)))
    return f'<h2>Methods</h2>\n{table}\n<p class="faint">{note}</p>'


def _figures(
    index: Index,
    dataset: Dataset,
    measure: str,
    sets: Sequence[str],
    ignore_same_id: bool,
    progress: Progress | None,
) -> Iterator[tuple[str, Any]]:
    common: Any = {
        "sets": sets, "measure": measure, "ignore_same_id": ignore_same_id, "progress": progress,
    }  # fmt: skip
    for what in SWEEPS:
        yield what, draw_sweep(sweep(index, dataset, what, **common))
    plain, compared = compare_sets(index, dataset, **common)
    title = f"Query sets alone: {dataset.name}, α = 1"
    yield "sets", draw_sets(plain, compared, measure, title)


def _pictures(figures: Sequence[tuple[str, Any]]) -> str:
    drawn = [
        f"<figure>{inline_svg(figure, name)}<figcaption class=faint>{_safe(name)}</figcaption>"
        "</figure>"
        for name, figure in figures
    ]
    return "<h2>What settings do</h2>\n" + "\n".join(drawn)


def _changes(title: str, index: Index, changes: Sequence[Change], measure: str, method: str) -> str:
    blocks = [f"<h2>{_safe(title)}</h2>"]
    if not changes:
        blocks.append("<p>None.</p>")
    for change in changes:
        difference = _signed(change.after - change.before, 1)
        blocks.append(f"<h3>{_foreign(change.text)}</h3>")
        blocks.append(
            f"<p>Query {_foreign(change.query)}: {_safe(measure)} {change.before:.1f} with trad, "
            f"{change.after:.1f} with {_safe(method)} ({difference})</p>"
        )
        blocks += [_move(move, index.get(move.id).content) for move in change.moves]
    return "\n".join(blocks)


def _move(move: Move, text: str) -> str:
    before, after = (str(rank or f"beyond {DEPTH}") for rank in (move.before, move.after))
    kind = "relevant" if move.relevant else "not relevant"
    block = (
        f"<p><strong>{_foreign(move.id)}</strong> ({kind}): rank {before} → {after}<br>"
        f'<span class="faint">{_foreign(text)}</span></p>'
    )
    rows = [
        [_signed(part.moved, 4), f"{part.weight:.2f}", f"{part.similarity:.3f}",
         _safe(part.set), _foreign(part.text)]
        for part in move.why
    ]  # fmt: skip
    if move.words:
        rows.insert(0, [_signed(move.words, 4), "", "", "words", "words it shares with the query"])
    if not rows:
        return block
    return block + _table(["moved", "weight", "similarity", "set", "stored query"], rows, range(3))


def _contents(about: Mapping[str, Any]) -> str:
    embedder = about["embedder"]
    rows = [
        ["embedder", f"{_safe(embedder['name'])}, {embedder['dim']} dimensions"],
        ["its options", _safe(embedder["options"] or "none")],
        ["documents", f"{about['documents']:,}"],
    ]
    for name, of in about["sets"].items():
        rows.append(
            [f"set {_safe(name)}", f"{of['queries']:,} texts for {of['documents']:,} documents, "
             f"from {_safe(of['source'])}"]
        )  # fmt: skip
    if about["references"]:
        of = about["references"]
        rows.append(["references", f"of {of['documents']:,} documents, {of['neighbors']} near"])
    if about["tuned"] and about["tuned"]["in_use"]:
        tuned = sharp_with(about["tuned"]["method"])
        rows.append(["sharp as tuned", _safe(method_spec(tuned))])
    rows.append(["size", f"{about['sizes']['total'] / 1e6:.1f} MB, format {about['format']}"])
    return f"<h2>The index</h2>\n{_table(['part', 'what'], rows)}"
