"""``strop report``: one page about an index on a dataset, complete in itself.

Everything is in the page: styles, figures as SVG, no script. Texts of documents and queries are
strangers' words: they are escaped, and the page forbids itself to load anything.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.errors import BadInput
from strop.evaluation.scoring import MEASURES, Report, evaluate
from strop.index import Index
from strop.io.files import atomic_write
from strop.methods import method_spec, sharp_with
from strop.research.analyse import compare_sets, sweep
from strop.research.figures import draw_sets, draw_sweep, inline_svg
from strop.search.explain import Moved
from strop.types import Dataset, Progress

PAGE = "index.html"
_DEPTH = 50
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


@dataclass(frozen=True)
class Move:
    """A document whose place changed; a place of None is beyond the first 50."""

    id: str
    text: str
    relevant: bool
    before: int | None
    after: int | None
    why: tuple[Moved, ...]
    words: float
    """What its words added."""


@dataclass(frozen=True)
class Change:
    """A query whose value changed, and the documents that explain it."""

    query: str
    text: str
    before: float
    after: float
    moves: tuple[Move, ...]


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
    have = [name for name, of in about["sets"].items() if of["source"] != "expanded"]
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
    gained, lost = changes(index, dataset, report, method, most)
    figures = list(_figures(index, dataset, report.measures[0], sets, ignore_same_id, progress))
    parts = [
        _head(dataset, about),
        _methods(report),
        _pictures(figures),
        _changed("Queries that gained most", gained, report.measures[0], method),
        _changed("Queries that lost most", lost, report.measures[0], method),
        _made_of(about),
        _commands(about, command),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    with atomic_write(path) as file:
        file.write(_page(f"{dataset.name}: plain and sharpened search", "\n".join(parts)))
    return path


def _fitting(sets: Sequence[str], mixed: str) -> list[str]:
    """Return the methods that an index with these sets can run without embedding anything."""
    found = [f"sharp{mixed}", f"maxsim{mixed}"]
    if "simple" in sets:
        found.append("simsharp")
    if "contrastive" in sets:
        found += ["consharp", "indexsharp"]
    return found


# -- what changed -----------------------------------------------------------------------------


def changes(
    index: Index, dataset: Dataset, report: Report, method: str, most: int
) -> tuple[list[Change], list[Change]]:
    """Return the queries that gained and that lost most against plain search, explained."""
    measure = report.measures[0]
    before, after = report.per_query["trad"][measure], report.per_query[method][measure]
    order = sorted(before, key=lambda query: after[query] - before[query])
    lost = [query for query in order[:most] if after[query] < before[query]]
    gained = [query for query in order[::-1][:most] if after[query] > before[query]]
    settled = report.settings[method]

    def explained(query: str) -> Change:
        plain, sharp = (_places(report.runs[name][query]) for name in ("trad", method))
        grades = dataset.qrels.get(query, {})
        relevant = [id_ for id_, grade in grades.items() if grade > 0 and id_ in {**plain, **sharp}]
        far = _DEPTH + 1

        def rise(id_: str) -> float:
            return 1 / sharp.get(id_, far) - 1 / plain.get(id_, far)

        if after[query] > before[query]:
            shown = sorted(relevant, key=rise, reverse=True)[:2]
        else:  # the one that fell, and who took its place
            shown = sorted(relevant, key=rise)[:1]
            rivals = [id_ for id_ in list(sharp)[:10] if grades.get(id_, 0) <= 0]
            shown += sorted(rivals, key=rise, reverse=True)[:1]
        text = dataset.queries[query]
        moves = []
        for id_ in shown:
            document = index.get(id_)
            why: tuple[Moved, ...] = ()
            words = 0.0
            if settled.weighting != "none" or settled.words:
                told = index.explain(text, id_, settled)
                why, words = tuple(told.queries[:3]), told.words
            moves.append(
                Move(
                    id_, document.content, grades.get(id_, 0) > 0, plain.get(id_), sharp.get(id_),
                    why, words,
                )
            )  # fmt: skip
        return Change(query, text, 100 * before[query], 100 * after[query], tuple(moves))

    return [explained(query) for query in gained], [explained(query) for query in lost]


def _places(run: Sequence[tuple[str, float]]) -> dict[str, int]:
    return {id_: place for place, (id_, _) in enumerate(run[:_DEPTH], 1)}


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


def _foreign(text: str, most: int = 300) -> str:
    """Return a stranger's text, shortened, whose direction of writing stays within itself."""
    folded = " ".join(text.split())
    folded = folded if len(folded) <= most else folded[: most - 1].rstrip() + "…"
    return f"<bdi>{_safe(folded)}</bdi>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML already; ``numbers`` are columns to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        made = [
            f"<{tag}{' class=n' if at in numbers else ''}>{cell}</{tag}>"
            for at, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(made)}</tr>"

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
    for what in ("alpha", "temperature", "n"):
        found = sweep(index, dataset, what, **common)
        yield what, draw_sweep(found)
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


def _changed(title: str, found: Sequence[Change], measure: str, method: str) -> str:
    blocks = [f"<h2>{_safe(title)}</h2>"]
    if not found:
        blocks.append("<p>None.</p>")
    for one in found:
        change = _signed(one.after - one.before, 1)
        blocks.append(f"<h3>{_foreign(one.text)}</h3>")
        blocks.append(
            f"<p>Query {_foreign(one.query)}: {_safe(measure)} {one.before:.1f} with trad, "
            f"{one.after:.1f} with {_safe(method)} ({change})</p>"
        )
        blocks += [_moved(move) for move in one.moves]
    return "\n".join(blocks)


def _moved(move: Move) -> str:
    before, after = (str(place or f"beyond {_DEPTH}") for place in (move.before, move.after))
    kind = "relevant" if move.relevant else "not relevant"
    said = (
        f"<p><strong>{_foreign(move.id)}</strong> ({kind}): place {before} → {after}<br>"
        f'<span class="faint">{_foreign(move.text)}</span></p>'
    )
    if not move.why and not move.words:
        return said
    rows = [
        [_signed(part.moved, 4), f"{part.weight:.2f}", f"{part.similarity:.3f}",
         _safe(part.set), _foreign(part.text)]
        for part in move.why
    ]  # fmt: skip
    if move.words:
        rows.insert(0, [_signed(move.words, 4), "", "", "words", "words it shares with the query"])
    head = ["moved", "weight", "similarity", "set", "stored query"]
    return said + _table(head, rows, range(3))


def _made_of(about: Mapping[str, Any]) -> str:
    made = about["embedder"]
    rows = [
        ["embedder", f"{_safe(made['name'])}, {made['dim']} dimensions"],
        ["its options", _safe(made["options"] or "none")],
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
    rows.append(["size", f"{about['total_bytes'] / 1e6:.1f} MB, format {about['format']}"])
    return f"<h2>What the index is made of</h2>\n{_table(['part', 'what'], rows)}"


def _commands(about: Mapping[str, Any], command: str) -> str:
    """Show the commands that make such an index, as far as its settings tell, and this page."""
    path, made = shlex.quote(about["path"]), about["embedder"]
    options = "".join(
        f" --option {shlex.quote(f'{key}={value}')}" for key, value in made["options"].items()
    )
    sets = about["sets"]
    first = "sentences" if "sentences" in sets else "none"
    lines = [
        f"strop build CORPUS -o {path} --embedder {shlex.quote(made['name'])}{options}"
        f" --queries {first}"
    ]
    by_source: dict[str, Callable[[str], str]] = {
        "file": lambda name: f"strop queries {path} --file FILE --style {name}",
        "lm": lambda name: f"# set {name}: written by a language model",
    }
    for name, of in sets.items():
        if of["source"] in by_source:
            lines.append(by_source[of["source"]](name))
    if about["tuned"] and about["tuned"]["in_use"]:
        lines.append(f"strop tune {path}")
    if command:
        lines.append(command)
    shown = "\n".join(_safe(line) for line in lines)
    return (
        "<h2>The commands</h2>\n<p>Such an index is made, and this page was written, by:</p>\n"
        f"<pre>{shown}</pre>"
    )
