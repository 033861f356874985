"""Figures of analyses, by matplotlib: lines, bars and points that can be read without colour."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strop.errors import MissingExtra
from strop.research.analyse import Compared, Correlation, Sweep

_SIZE = (6.4, 3.9)  # inches
_INK, _PLAIN, _FAINT = "#1a1a1a", "#666666", "#d9d9d9"
_COLOURS = ("#0b5394", "#c05a00", "#38761d", "#741b47")
_MARKS, _DASHES = ("o", "s", "^", "D"), ("-", "--", "-.", ":")
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
def _drawing(title: str, size: tuple[float, float] = _SIZE) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes in the house style; no window, no state left behind."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("Drawing figures", "figures") from None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        yield figure, axes


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; return the files."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(_STYLE):
        figure.savefig(files[0])
        figure.savefig(files[1], metadata={"Date": None})
    return files


def inline_svg(figure: Any, prefix: str) -> str:
    """Return a figure as SVG to stand in a page; ``prefix`` keeps its ids apart from others'."""
    import matplotlib

    sink = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(sink, format="svg", metadata={"Date": None})
    svg = sink.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)


def draw_sweep(sweep: Sweep) -> Any:
    """Draw a sweep: a curve for each fixed setting, and plain search as a level."""
    titles = {"alpha": "Strength", "temperature": "Temperature", "n": "Number of queries"}
    title = f"{titles[sweep.what]}: {sweep.dataset}, {sweep.queries:,} queries"
    with _drawing(title) as (figure, axes):
        if sweep.what == "temperature":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ends = [(sweep.plain, f"plain search ({sweep.plain:.2f})", _PLAIN)]
        every = [point.x for line in sweep.lines for point in line.points]
        right = max(every)
        axes.plot(
            [min(every), right], [sweep.plain] * 2, color=_PLAIN, linewidth=1.2,
            linestyle=(0, (1, 2)),
        )  # fmt: skip
        for at, line in enumerate(sweep.lines):
            xs, ys = [p.x for p in line.points], [p.value for p in line.points]
            colour = _COLOURS[at % len(_COLOURS)]
            axes.plot(
                xs, ys, color=colour, marker=_MARKS[at % 4], linestyle=_DASHES[at % 4],
                markersize=4.5, linewidth=1.6,
            )  # fmt: skip
            best = max(line.points, key=lambda point: point.value)
            axes.plot([best.x], [best.value], marker=_MARKS[at % 4], markersize=9, color=colour,
                      fillstyle="none", linestyle="none")  # fmt: skip
            ends.append((ys[-1], f"{line.label} (best {best.value:.2f} at {best.x:g})", colour))
        axes.set_xlabel(_AXES[sweep.what])
        axes.set_ylabel(f"{sweep.measure}, percent")
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        axes.margins(y=0.12)
        _label_ends(axes, right, ends)
    return figure


def _label_ends(axes: Any, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write each line's name behind its end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.075
    places: list[float] = []
    for y, _, _ in sorted(ends):
        places.append(max(y, places[-1] + gap) if places else y)
    excess = places[-1] - high
    if excess > 0:
        places = [place - excess for place in places]
    for place, (_, label, colour) in zip(places, sorted(ends), strict=True):
        axes.annotate(
            label, (x, place), xytext=(8, 0), textcoords="offset points", color=colour,
            va="center", annotation_clip=False,
        )  # fmt: skip


def draw_sets(plain: float, compared: Sequence[Compared], measure: str, title: str) -> Any:
    """Draw query sets side by side: the gain of each over plain search, with 95% limits."""
    rows = list(compared)
    with _drawing(title, (6.4, 1.3 + 0.38 * len(rows))) as (figure, axes):
        for at, one in enumerate(rows):
            point = one.point
            mark = at % 2 if len({r.temperature for r in rows}) > 1 else 0
            axes.errorbar(
                [point.change], [at], xerr=(point.high - point.low) / 2,
                marker=_MARKS[mark], color=_COLOURS[mark], capsize=3, markersize=6,
                linewidth=1.4, fillstyle="full" if mark else "none",
            )  # fmt: skip
            axes.annotate(
                f"{point.value:.2f}", (point.high, at), xytext=(6, 0), va="center",
                textcoords="offset points",
            )  # fmt: skip
        axes.axvline(0, color=_PLAIN, linewidth=1, linestyle=(0, (1, 2)))
        axes.set_yticks(range(len(rows)))
        axes.set_yticklabels(
            [f"{r.set}, T = {r.temperature:g}\n{r.queries / max(1, r.documents):.1f} a document"
             for r in rows]
        )  # fmt: skip
        axes.tick_params(axis="y", labelsize=8)
        axes.invert_yaxis()
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.margins(x=0.12)
        axes.set_xlabel(
            f"change of {measure} against plain search ({plain:.2f}), percent points\n"
            "bars: 95% limits of the change; beside them: the value itself"
        )
        axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    return figure


def draw_correlation(correlation: Correlation, dataset: str) -> Any:
    """Draw each pair of perplexity and boost, and the mean boost of equal parts of them."""
    import numpy as np
    from matplotlib.ticker import LogLocator, NullLocator

    title = f"Boost against perplexity: {dataset}"
    with _drawing(title) as (figure, axes):
        x, y = np.array(correlation.perplexity), np.array(correlation.boost)
        axes.set_xscale("log")
        axes.scatter(x, y, s=5, color=_PLAIN, alpha=0.25, linewidths=0, rasterized=True)
        order = np.array_split(np.argsort(x, kind="stable"), min(10, len(x)))
        means = [(float(np.median(x[part])), float(y[part].mean())) for part in order]
        axes.plot(
            [a for a, _ in means], [b for _, b in means], color=_COLOURS[0], marker="o",
            markersize=5, linewidth=1.8,
        )  # fmt: skip
        axes.axhline(0, color=_PLAIN, linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate(
            "mean of each tenth", means[-1], xytext=(-6, 14), textcoords="offset points",
            color=_COLOURS[0], ha="right", va="bottom",
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        limits = f"95% limits {correlation.low:+.3f} to {correlation.high:+.3f}"
        count = f"{correlation.documents:,} of {correlation.of_documents:,} documents"
        axes.set_xlabel(
            f"perplexity of the document by {Path(correlation.lm).name}, "
            f"{correlation.max_tokens} tokens (logarithmic)\n"
            f"Pearson {correlation.pearson:+.3f} ({limits}); {correlation.pairs:,} pairs, {count}"
        )
        axes.set_ylabel("boost: cosine(q, d*) − cosine(q, d)")
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
    return figure
