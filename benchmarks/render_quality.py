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
_METHODS = {"trad": "plain", "bm25": "BM25", "hybrid": "rank fusion", "sharp": "**strop**"}
_WITH_QUERIES = ("bm25", "hybrid")
"""Shown with the terms of generated queries where ``sharp`` has them: both use the same texts."""
_HELD_OUT = "strop, held out"
_INTRO = """\
All values are nDCG@10 with the default settings. Baselines: *plain*, *BM25*, *rank fusion* and
*plain with words* (not shown: cosine plus the BM25 score with strop's weight). *Held out*: alpha,
temperature and the weights of BM25 and feedback were chosen on the other collections only
(`benchmarks/quality.py --protocol`). For Cranfield and nq-utd, strop uses generated queries and
sentences, and BM25 and rank fusion index these queries too. The other rows use sentences alone."""
_NOTE = """\
Bold marks the best of the first four columns. An asterisk marks a significant gain over the best
baseline (paired t-test with Holm's correction, p < 0.05); on Cranfield and nq-utd this baseline
indexes the generated queries too. Every collection, XQuAD included, had a part in the choice of
some default."""


def render(results: dict[str, Any]) -> str:
    """Return the table with its notes as Markdown, a line for each embedder and collection."""
    lines = [(e, c) for e in _EMBEDDERS for c in _COLLECTIONS if c in results.get(e, {})]
    table = [_INTRO, "", f"| | {' | '.join([*_METHODS.values(), _HELD_OUT])} |"]
    table.append("|---" * (len(_METHODS) + 2) + "|")
    for embedder, collection in lines:
        cells = [_cell(results[embedder][collection], name) for name in _METHODS]
        held_out = results.get("protocol", {}).get(embedder, {}).get("collections", {})
        cells.append(f"{held_out[collection]['strop']:.2f}" if collection in held_out else "")
        label = f"{_EMBEDDERS[embedder]}, {_COLLECTIONS[collection]}"
        table.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*table, "", _NOTE]) + "\n"


def _cell(figures: dict[str, Any], name: str) -> str:
    results = dict(figures["results"])
    for key in _WITH_QUERIES:
        results[key] = results.get(f"{key}+sets", results[key])
    values = {key: results[key]["nDCG@10"] for key in _METHODS}
    cell = f"{values[name]:.2f}"
    if values[name] == max(values.values()):
        cell = f"**{cell}**"
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
