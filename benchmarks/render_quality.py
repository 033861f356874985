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

_COLLECTIONS = {"scifact": "SciFact", "nfcorpus": "NFCorpus", "cranfield": "Cranfield"}
_EMBEDDERS = {"wordllama": "WordLlama", "minilm": "MiniLM"}
_ROWS = {
    "trad": "plain search (`trad`)",
    "bm25": "BM25",
    "hybrid": "BM25 + plain (`hybrid`)",
    "maxsim": "`maxsim`",
    "doc2query": "doc2query",
    "docexp": "docexp",
    "indexsharp": "`indexsharp`",
    "paper": "the paper's formula (alpha 1, T 1)",
    "sharp": "`sharp`, its defaults",
    "tuned, dense": "`sharp` as tuned, without words",
    "whiten+feedback": "that with `whiten=0.5:feedback=0.2`",
    "hybrid:of=whiten+feedback": "BM25 + that (`hybrid:of=`)",
    "trad+words": "`trad:words=1`",
    "tuned": "**`sharp` after `strop tune`** (words included)",
    "whiten+feedback+words": "that with `whiten=0.5:feedback=0.2`",
}


def render(found: dict[str, Any]) -> str:
    """Return the table as Markdown: nDCG@10, the best of each column in bold."""
    columns = [(e, c) for e in _EMBEDDERS for c in _COLLECTIONS if c in found.get(e, {})]
    heads = [f"{_EMBEDDERS[e]} {_COLLECTIONS[c]}" for e, c in columns]
    lines = [f"| nDCG@10 | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    best = {
        (e, c): max(found[e][c]["results"][name]["nDCG@10"] for name in _ROWS
                    if name in found[e][c]["results"])
        for e, c in columns
    }  # fmt: skip
    for name, label in _ROWS.items():
        cells = []
        for e, c in columns:
            values = found[e][c]["results"].get(name)
            if values is None:
                cells.append("")
                continue
            value = values["nDCG@10"]
            cell = f"**{value:.2f}**" if value == best[e, c] else f"{value:.2f}"
            surely = found[e][c]["p_against_paper"].get(name, {}).get("nDCG@10", 1) < 0.05
            cells.append(cell + ("*" if surely else ""))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


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
