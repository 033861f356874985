"""Figures of analyses, by matplotlib: lines, bars and points that can be read without colour."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strop.common.text import counted
from strop.errors import MissingExtra
from strop.research.analyse import Correlation, Point, Sweep

_INK, _PLAIN, _FAINT = "#1a1a1a", "#666666", "#d9d9d9"
_STYLES: Any = (
    {"color": "#0b5394", "marker": "o", "linestyle": "-"},
    {"color": "#c05a00", "marker": "s", "linestyle": "--"},
)
_LEVEL: Any = {"color": _PLAIN, "linewidth": 1.2, "linestyle": (0, (1, 2))}
_TITLES = {
    "alpha": "Strength", "temperature": "Temperature", "n": "Number of queries",
    "sets": "Query sets alone",
}  # fmt: skip
_AXES = {
    "alpha": "α, strength of sharpening",
    "temperature": "temperature T of the softmax (logarithmic)",
    "n": "queries used per document and set, at most",
}
_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": _INK, "text.color": _INK,
    "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.axisbelow": True,
    "svg.fonttype": "path", "svg.hashsalt": "strop", "savefig.dpi": 160,
}  # fmt: skip


@contextmanager
def _drawing(title: str, height: float = 3.6) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes in a common style, without a window or global state."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Drawing figures", "figures") from None
    with matplotlib.rc_context(_STYLE):
        # Inches: still readable on a page of 500 pixels.
        figure = Figure(figsize=(5.4, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        yield figure, axes


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    for file in files:
        file.write_bytes(_image(figure, file.suffix[1:]))
    return files


def svg_address(figure: Any) -> str:
    """Return a figure as a data URL, which a page can show without loading anything."""
    return "data:image/svg+xml;base64," + base64.b64encode(_image(figure, "svg")).decode()


def _image(figure: Any, form: str) -> bytes:
    import matplotlib

    sink = io.BytesIO()
    dated = {"metadata": {"Date": None}} if form == "svg" else {}
    with matplotlib.rc_context(_STYLE):
        figure.savefig(sink, format=form, **dated)
    return sink.getvalue()


def draw_sweep(sweep: Sweep) -> Any:
    """Draw a sweep: a curve for each fixed setting and a line for plain search, or sets."""
    title = f"{_TITLES[sweep.what]}: {sweep.dataset}, {counted(sweep.queries, 'query')}"
    curves = {
        label: [point for point in sweep.points if point.fixed == label]
        for label in dict.fromkeys(point.fixed for point in sweep.points)
    }
    if sweep.what == "sets":
        return _draw_sets(sweep, curves, title)
    with _drawing(title) as (figure, axes):
        if sweep.what == "temperature":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axhline(sweep.plain, label=f"plain search ({sweep.plain:.2f})", **_LEVEL)
        for (label, points), style in zip(curves.items(), _STYLES, strict=False):
            best = max(points, key=lambda point: point.value)
            axes.plot(
                [point.x for point in points], [point.value for point in points], linewidth=1.6,
                label=f"{label} (best {best.value:.2f} at {best.x:g})", markersize=4.5, **style,
            )  # fmt: skip
            axes.plot([best.x], [best.value], markersize=9, fillstyle="none", **style)
        if sweep.in_use is not None:
            axes.axvline(sweep.in_use, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)),
                         label=f"in use: {sweep.in_use:g}")  # fmt: skip
        axes.set_xlabel(_AXES[sweep.what])
        axes.set_ylabel(f"{sweep.measure}, percent")
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        axes.margins(y=0.12)
        axes.legend(frameon=False)
    return figure


def _draw_sets(sweep: Sweep, curves: Mapping[str, Sequence[Point]], title: str) -> Any:
    """Draw query sets side by side: the gain of each over plain search, with 95% limits."""
    names = list(dict.fromkeys(str(point.x) for point in sweep.points))
    with _drawing(title, 1.7 + 0.6 * len(names)) as (figure, axes):
        for shift, (label, points) in enumerate(curves.items()):
            places = [at + 0.25 * shift for at in range(len(points))]
            axes.errorbar(
                [point.change for point in points], places, label=label, capsize=3, markersize=6,
                xerr=[point.high - point.change for point in points],
                **{**_STYLES[shift], "linestyle": "none"},
            )  # fmt: skip
            for point, at in zip(points, places, strict=True):
                axes.annotate(
                    f"{point.value:.2f}", (point.high, at), xytext=(6, 0), va="center",
                    textcoords="offset points",
                )  # fmt: skip
        axes.axvline(0, **_LEVEL)
        axes.set_yticks([at + 0.125 for at in range(len(names))], names)
        axes.invert_yaxis()
        axes.margins(x=0.12, y=0.2)
        axes.set_xlabel(
            f"change of {sweep.measure} against plain search ({sweep.plain:.2f}), points\n"
            "bars: 95% limits of the change; beside them: the value itself"
        )
        axes.grid(axis="x", color=_FAINT, linewidth=0.6)
        axes.legend(frameon=False)
    return figure


def draw_correlation(correlation: Correlation, dataset: str) -> Any:
    """Draw each pair of perplexity and boost, and the mean boost of each tenth of the pairs."""
    import numpy as np
    from matplotlib.ticker import LogLocator, NullLocator

    with _drawing(f"Boost against perplexity: {dataset}") as (figure, axes):
        x, y = np.array(correlation.perplexity), np.array(correlation.boost)
        axes.set_xscale("log")
        axes.scatter(x, y, s=5, color=_PLAIN, alpha=0.25, linewidths=0, rasterized=True)
        order = np.array_split(np.argsort(x, kind="stable"), min(10, len(x)))
        means = [(float(np.median(x[part])), float(y[part].mean())) for part in order]
        axes.plot(*zip(*means, strict=True), label="mean of each tenth", **_STYLES[0])
        axes.axhline(0, **_LEVEL)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(
            f"perplexity of the document by {Path(correlation.lm).name}, "
            f"{correlation.max_tokens} tokens (logarithmic)\n{correlation.summary()}"
        )
        axes.set_ylabel("boost: cosine(q, d*) − cosine(q, d)")
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        axes.legend(frameon=False)
    return figure
