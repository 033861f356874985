"""Renders benchmarks/results/quality.json into the table of README.md.

python benchmarks/render_quality.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "quality.json"
BEGIN = "<!-- quality: made by benchmarks/render_quality.py -->\n"
END = "<!-- end of quality -->\n"

_COLLECTIONS = {
    "scifact": "SciFact", "nfcorpus": "NFCorpus", "cranfield": "Cranfield", "nq-utd": "nq-utd",
    "medline": "Medline", "time": "Time", "lisa": "LISA", "xquad-hi": "XQuAD Hindi",
    "xquad-th": "XQuAD Thai",
}  # fmt: skip
_EMBEDDERS = {"wordllama": "WordLlama", "minilm": "MiniLM"}
_METHODS = {
    "trad": "plain",
    "bm25": "BM25",
    "hybrid": "fused by rank",
    "trad+words": "plain + words",
    "paper": "paper's formula",
    "sharp": "**strop**",
}
_WITH_QUERIES = ("bm25", "hybrid", "trad+words")
"""Shown with the words of generated queries where ``sharp`` has them, to be on equal terms."""
_NOTE = """\
nDCG@10 with the defaults, nothing tuned; bold: the best of a row. Where a language model wrote
queries (Cranfield, nq-utd), BM25, its fusion and "plain + words" count the words of these queries
too. The paper's formula has temperature 1 and no words. An asterisk: better than the strongest
column before the paper's (paired t-test, Holm, p < 0.05). The English collections had a part in
choosing the weight of words; `benchmarks/quality.py` lists which had a part in which choice."""


def render(results: dict[str, Any]) -> str:
    """Return the table as Markdown, a line for each embedder and collection."""
    lines = [(e, c) for e in _EMBEDDERS for c in _COLLECTIONS if c in results.get(e, {})]
    shown = [
        name for name in _METHODS if any(name in results[e][c]["results"] for e, c in lines)
    ]  # fmt: skip
    table = [f"| | {' | '.join(_METHODS[name] for name in shown)} |"]
    table.append("|---" * (len(shown) + 1) + "|")
    for embedder, collection in lines:
        figures = results[embedder][collection]
        cells = [_cell(figures, name, shown) for name in shown]
        table.append(f"| {_label(embedder, collection)} | {' | '.join(cells)} |")
    return "\n".join([*table, "", _NOTE]) + "\n"


def _label(embedder: str, collection: str) -> str:
    return f"{_EMBEDDERS[embedder]}, {_COLLECTIONS[collection]}"


def _cell(figures: dict[str, Any], name: str, shown: list[str]) -> str:
    results = dict(figures["results"])
    for key in _WITH_QUERIES:
        results[key] = results.get(f"{key}+sets", results.get(key))
    values = {key: of["nDCG@10"] for key, of in results.items() if key in shown and of}
    if name not in values:
        return ""
    cell = f"{values[name]:.2f}"
    if values[name] == max(values.values()):
        cell = f"**{cell}**"
    if "best_peer" not in figures:
        return cell
    peer = figures["results"][figures["best_peer"]]["nDCG@10"]
    p_value = figures["p_against_peer"].get(name, {}).get("nDCG@10", 1)
    return cell + ("*" if p_value < 0.05 and values[name] > peer else "")


def fill(page: str, table: str) -> str:
    """Return a page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table}{END}{after}"


def main() -> None:
    readme = ROOT / "README.md"
    table = render(json.loads(RESULTS.read_text("utf-8")))
    readme.write_text(fill(readme.read_text("utf-8"), table), "utf-8")


if __name__ == "__main__":
    main()
