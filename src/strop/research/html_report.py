"""``strop report``: one HTML page about an index on a dataset.

The page contains everything: styles, figures as SVG, no script. Texts of documents and queries are
untrusted: Jinja escapes them, and the page's policy forbids it to load anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.common.text import counted, escape_controls, human_bytes, shorten
from strop.errors import BadInput, MissingExtra
from strop.evaluation.changes import DEPTH, largest_changes
from strop.evaluation.scoring import MEASURES, Report, evaluate
from strop.index import Index
from strop.io.files import atomic_write
from strop.methods import method_spec, sharp_with
from strop.research.analyse import SWEPT, Sweep, sweep
from strop.research.figures import draw_sweep, svg_address
from strop.types import Dataset, Progress

PAGE = "index.html"
_TEXT_CHARS = 300
_BASELINES = ("bm25", "hybrid")
_CAPTIONS = {
    "alpha": "How far a document's vector may move. At 0 it stays where it is; words and "
    "feedback still count, where they are on.",
    "temperature": "How evenly a document's stored texts count: to the left the most similar "
    "alone, to the right all of them equally.",
    "n": "How many stored texts of each document and set are used.",
    "sets": "Each query set used alone. A bar that crosses 0 may be chance.",
}


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
    limit: int = 5,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Write the page and return its path; ``method`` is the one whose changes are explained."""
    template = _template()
    set_names = index.query_sets()
    if not set_names:
        raise BadInput(
            f"{index.path} has no query sets, so there is nothing to report: "
            f"strop queries {index.path} --style sentences"
        )
    sets_setting = f":sets={'+'.join(sets)}" if sets else ""
    method = method or f"sharp{sets_setting}"
    words = index.method("sharp").words
    # Methods that the index can run without embedding anything.
    default_methods = [*_BASELINES, *([f"trad:words={words:g}"] if words else [])]
    default_methods += [
        f"sharp{sets_setting}",
        f"maxsim{sets_setting}",
        *(["simsharp"] if "simple" in set_names else []),
    ]
    default_methods += ["consharp", "indexsharp"] if "contrastive" in set_names else []
    chosen = list(dict.fromkeys(["trad", *(methods or default_methods), method]))
    options: Any = {"ignore_same_id": ignore_same_id, "progress": progress}
    report = evaluate(index, dataset, chosen, measures=measures, baseline="trad", **options)
    gained, lost = largest_changes(index, dataset, report, method, limit)
    measure, figures = report.measures[0], {}
    for what in SWEPT:
        swept = sweep(index, dataset, what, sets=sets, measure=measure, **options)
        figures[what] = (svg_address(draw_sweep(swept)), _caption(swept))
    about = index.info()
    page = template.render(
        dataset=dataset, about=about, report=report, method=method, figures=figures, gained=gained,
        conclusions=list(_conclusions(report, method)), lost=lost, depth=DEPTH,
        contents=_contents(about), command=command,
        content=lambda id_: index.get(id_).content,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    with atomic_write(path) as file:
        file.write(page)
    return path


def _conclusions(report: Report, method: str) -> Iterator[str]:
    """Yield how a method compares with plain search, then with the strongest other baseline."""
    yield report.conclusion(method)
    measure = report.measures[0]
    others = [name for name in report.results if name in _BASELINES or name.startswith("trad:")]
    if others := [name for name in others if name != method]:
        best = max(others, key=lambda name: report.results[name][measure])
        yield replace(report, baseline=best).conclusion(method)


def _caption(swept: Sweep) -> str:
    """Return the caption of a figure: the setting, and this index's value of it."""
    text = _CAPTIONS[swept.what]
    if swept.what == "sets":
        return text
    curve = [point for point in swept.points if point.fixed == swept.points[0].fixed]
    best = max(curve, key=lambda point: point.value)
    in_use = [point for point in curve if point.x == swept.in_use]
    if in_use:
        text += f" This index uses {in_use[0].x:g} ({in_use[0].value:.2f});"
    elif swept.what == "n":
        text += f" This index uses all ({curve[-1].value:.2f});"
    return f"{text} best on these queries: {best.x:g} ({best.value:.2f}), at {best.fixed}."


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("Writing a report", "figures") from None

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("strop.research", ""),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )
    environment.filters["shorten"] = lambda text: shorten(text, _TEXT_CHARS)
    return environment.get_template("report.html")


def _contents(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the content of the index, as names and values."""
    embedder = about["embedder"]
    yield "embedder", f"{embedder['name']}, {embedder['dim']} dimensions"
    yield "its options", str(embedder["options"] or "none")
    yield "documents", f"{about['documents']:,}"
    for name, set_ in about["sets"].items():
        lists = f"{counted(set_['queries'], 'text')} for {counted(set_['documents'], 'document')}"
        yield f"set {name}", f"{lists}, from {set_['source']}"
    if chosen := about["references"]:
        neighbours = f"{chosen['neighbors']} neighbours"
        yield "references", f"of {counted(chosen['documents'], 'document')}, {neighbours}"
    if about["tuned"] and about["tuned"]["in_use"]:
        yield "sharp as tuned", method_spec(sharp_with(about["tuned"]["method"]))
    yield "size", f"{human_bytes(about['sizes']['total'])}, format {about['format']}"
