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
    "medline": "Medline", "time": "Time",
}  # fmt: skip
_EMBEDDERS = {"wordllama": "WordLlama", "minilm": "MiniLM"}
_METHODS = {
    "trad": "plain",
    "bm25": "BM25",
    "bm25+sets": "BM25 with queries",
    "hybrid": "fused",
    "hybrid+sets": "fused with queries",
    "trad+words": "`trad:words=1`",
    "trad+words+sets": "`trad:words=1` with queries",
    "paper": "paper (T 1)",
    "sharp": "`sharp`",
    "tuned": "**`sharp` tuned**",
}
_NOTE = """\
nDCG@10, bold: the best of a row. Fused: BM25 and plain search by rank; with queries: the words
of the generated queries that `sharp` has count too. An asterisk: better than the strongest of the
methods without sharpening (those before the paper's formula; paired t-test, Holm, p < 0.05). A
dagger: temperature, alpha and `words=1` were chosen without this collection.
`benchmarks/quality.py` lists which collections had a part in which choice."""


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
        table.append(f"| {_label(figures, embedder, collection)} | {' | '.join(cells)} |")
    return "\n".join([*table, "", _NOTE]) + "\n"


def _label(figures: dict[str, Any], embedder: str, collection: str) -> str:
    held_out = figures.get("held_out_of", ())
    dagger = all(any(part in what for what in held_out) for part in ("temperature", "weight 1"))
    return f"{_EMBEDDERS[embedder]}, {_COLLECTIONS[collection]}{'†' if dagger else ''}"


def _cell(figures: dict[str, Any], name: str, shown: list[str]) -> str:
    values = {key: of["nDCG@10"] for key, of in figures["results"].items() if key in shown}
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
