"""Draws the pictures of the documentation: python docs/pictures/make.py

``sharpening.svg`` is measured: two functions of Python's library and a question, embedded by
WordLlama, sharpened by the functions' own sentences with the default settings. Horizontal is the
cosine with the question itself, vertical the direction in which the two documents differ beside it.
``flow.svg`` is a drawing. Both bring their own background, light or dark as the reader's system.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from strop.embed import load
from strop.io.sentences import title_and_sentences
from strop.io.stdlib_docs import read_stdlib
from strop.methods import METHODS

HERE = Path(__file__).parent
QUESTION = "keep an inner task running even if the outer coroutine is cancelled"
RIGHT, WRONG = "asyncio.tasks.shield", "asyncio.Task.cancel"
WIDTH, HEIGHT = 500, 400

STYLE = """
text{font:13px system-ui,sans-serif;fill:#1d2b36}.small{font-size:12px}.faint{fill:#566472}
.bold{font-weight:650}.back{fill:#fff;stroke:#d3dae0}.line{stroke:#aab5bf;fill:none}
.a{stroke:#0b5cad;fill:#0b5cad}.b{stroke:#c04a00;fill:#c04a00}.hollow{fill:#fff}
text.a,text.b{stroke:none}.line.head{fill:#aab5bf}.box{fill:#eef2f5;stroke:#aab5bf}.key{fill:#dcebf9;stroke:#0b5cad}
@media(prefers-color-scheme:dark){text{fill:#e6ebef}.faint{fill:#a9b6c1}
.back{fill:#161b20;stroke:#3a444d}.line{stroke:#5d6a75}.a{stroke:#74b6ff;fill:#74b6ff}
.b{stroke:#ff9a57;fill:#ff9a57}.hollow{fill:#161b20}.line.head{fill:#5d6a75}.box{fill:#222a31;stroke:#5d6a75}
.key{fill:#16324d;stroke:#74b6ff}}
"""
_HEADS = "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    f'orient="auto"><path class="{name} head" d="M0 0L8 4L0 8z"/></marker>'
    for name in ("a", "b", "line")
)


class Moved(NamedTuple):
    """A document before and after: places (cosine with the question, across), and its sentences."""

    before: tuple[float, float]
    after: tuple[float, float]
    sentences: list[tuple[float, float, float, str]]
    """Weight, place, text."""


def measure() -> dict[str, Moved]:
    """Embed the question and the two documents; return how each moves."""
    embedder, sharp = load("wordllama"), METHODS["sharp"]
    documents = {document.id: document for document in read_stdlib()}
    question = embedder.embed([QUESTION], "query")[0]
    vectors = embedder.embed([documents[id_].content for id_ in (RIGHT, WRONG)], "document")
    across = vectors[0] - vectors[1]
    across -= (across @ question) * question
    plane = np.stack([question, across / np.linalg.norm(across)])
    moved = {}
    for id_, vector in zip((RIGHT, WRONG), vectors, strict=True):
        document = documents[id_]
        texts = title_and_sentences(document.title, document.text)
        rows = embedder.embed(texts, "document")
        weights = np.exp(rows @ question / sharp.temperature)
        weights /= weights.sum()
        star = vector + sharp.alpha * weights @ rows
        star /= np.linalg.norm(star)
        before, after = ((float(x), float(y)) for x, y in (plane @ vector, plane @ star))
        sentences = [
            (float(weight), *map(float, plane @ row), text)
            for weight, row, text in zip(weights, rows, texts, strict=True)
        ]
        moved[id_] = Moved(before, after, sentences)
    return moved


def sharpening(moved: dict[str, Moved]) -> str:
    """Return the picture of one question and two documents."""
    parts = [
        _text(20, 28, f"“{QUESTION[:45]}", "bold"),
        _text(20, 46, f"{QUESTION[45:]}”", "bold"),
        _text(20, 66, "further right = nearer to this question = ranked higher", "small faint"),
    ]
    for tick in (0.4, 0.5, 0.6, 0.7, 0.8):
        x, _ = _place(tick, 0)
        parts.append(f'<path class="line" stroke-dasharray="2 4" d="M{x:.0f} 80V352"/>')
        parts.append(_text(x, 368, f"{tick:.1f}", "small faint", "middle"))
    parts.append(_text(250, 388, "cosine with the question", "small faint", "middle"))
    for (id_, one), name in zip(moved.items(), "ab", strict=True):
        (x0, y0), (x1, y1) = _place(*one.before), _place(*one.after)
        for weight, *at, _ in one.sentences:
            if weight > 0.05:
                x, y = _place(*at)
                dots = f'class="{name}" stroke-dasharray="1 4" opacity=".7"'
                parts.append(f'<path {dots} fill="none" d="M{x:.0f} {y:.0f}L{x0:.0f} {y0:.0f}"/>')
                radius = 2 + 7 * weight
                parts.append(f'<circle class="{name}" opacity=".45" cx="{x:.0f}" cy="{y:.0f}" '
                             f'r="{radius:.1f}" stroke="none"/>')  # fmt: skip
        parts.append(f'<path class="{name}" stroke-width="2.5" marker-end="url(#{name})" '
                     f'd="M{x0:.0f} {y0:.0f}L{x1:.0f} {y1:.0f}"/>')  # fmt: skip
        parts.append(f'<circle class="{name} hollow" style="fill-opacity:1" stroke-width="2.5" '
                     f'cx="{x0:.0f}" cy="{y0:.0f}" r="5"/>')  # fmt: skip
        label = id_.replace("tasks.", "")
        x, y = (x0 + 90, y0 - 2) if name == "a" else (x0 - 165, y0 + 56)
        parts.append(_text(x, y, label, f"bold {name}"))
        scores = f"{one.before[0]:.2f} plain → {one.after[0]:.2f} sharpened"
        parts.append(_text(x, y + 16, scores, f"small {name}"))
    weight, x, y, text = max(moved[RIGHT].sentences)
    text = text.removeprefix("*except* that ").rstrip(".")
    at, below = _place(x, y)
    lines = [f"its sentence, weight {weight:.2f}:", *_wrapped(f"“{text}”", 28)]
    for row, line in enumerate(lines):
        style = "small faint" if row == 0 else "small a"
        parts.append(_text(486, below + 24 + 15 * row, line, style, "end"))
    title = f"{RIGHT} passes {WRONG} for the question: {QUESTION}"
    return _svg(WIDTH, HEIGHT, title, parts)


def flow() -> str:
    """Return the picture of what happens to a document and to a query."""
    parts: list[str] = []

    def box(x: int, y: int, width: int, title: str, below: str, style: str = "box") -> None:
        parts.append(f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="50" rx="7"/>')
        parts.append(_text(x + width / 2, y + 21, title, "bold", "middle"))
        parts.append(_text(x + width / 2, y + 38, below, "small faint", "middle"))

    def arrow(path: str) -> None:
        parts.append(f'<path class="line" stroke-width="1.5" marker-end="url(#line)" d="{path}"/>')

    parts.append(_text(20, 30, "Once, when the corpus is indexed", "bold"))
    box(20, 44, 140, "documents", "or chunks of them")
    box(180, 44, 140, "references", "similar documents")
    box(340, 44, 140, "LM (optional)", "generates queries")
    arrow("M160 69H178")
    arrow("M320 69H338")
    box(20, 124, 140, "d", "its own vector")
    box(180, 124, 300, "q₁ q₂ q₃ …", "vectors of sentences and generated queries")
    arrow("M90 94V122")
    arrow("M410 94V122")
    arrow("M130 94L200 122")
    box(20, 204, 460, "index folder", "texts, vectors, words, every paid reply", "key")
    arrow("M90 174V202")
    arrow("M330 174V202")
    parts.append(_text(60, 288, "At each search: no language model", "bold"))
    box(20, 302, 140, "propose", "by vectors and words")
    box(180, 302, 140, "fetch", "vectors, words, text")
    box(340, 302, 140, "score", "cosine(q, d*) + words", "key")
    arrow("M40 254V300")
    arrow("M160 327H178")
    arrow("M320 327H338")
    box(20, 382, 460, "the same steps in a published copy",
        "PostgreSQL, Qdrant, LanceDB, DuckDB; HTTP, MCP; adapters")  # fmt: skip
    arrow("M250 352V380")
    return _svg(500, 450, "From documents to a ranking", parts)


def _place(cosine: float, across: float) -> tuple[float, float]:
    """Return where a point of the plane stands in the picture."""
    return 30 + (cosine - 0.4) / 0.4 * 440, 200 - across * 270


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" class="{style}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><defs>{_HEADS}</defs>"
        f'<rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    (HERE / "sharpening.svg").write_text(sharpening(measure()), encoding="utf-8")
    (HERE / "flow.svg").write_text(flow(), encoding="utf-8")
