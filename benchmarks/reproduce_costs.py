"""What the paper's Table 1 would take in full: arithmetic, nothing is run or paid.

    python benchmarks/reproduce_costs.py           # writes the tables of docs/reproduce.md
    python benchmarks/reproduce_costs.py --json    # prints the totals alone

Prompts are strop's own, on documents of the mean length that BEIR's paper gives, tokens counted as
``strop queries --dry-run`` does before the first reply. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from strop.generate import GenerationSettings, PromptSettings
from strop.generate.plan import EXPECTED_REFERENCES, expected_output
from strop.generate.prompts import build_prompt
from strop.lm import count_tokens
from strop.lm.prices import price
from strop.types import Document

PAGE = Path(__file__).parent.parent / "docs/reproduce.md"
COLLECTIONS = {  # documents, mean words of one (BEIR's paper, Table 1)
    "fiqa": (57_638, 132), "nfcorpus": (3_633, 232), "scifact": (5_183, 214),
    "trec-covid": (171_332, 161), "scidocs": (25_657, 176), "arguana": (8_674, 167),
}  # fmt: skip
EMBEDDERS = {"contriever": 0.11e9, "qwen3-embedding-0.6b": 0.6e9, "e5-mistral": 7.1e9}  # parameters
MODELS = ("claude-sonnet-5", "gpt-5-mini")
WORD = "sample "  # a word of SciFact and NFCorpus has 6.9 characters, with its space
QUERIES_PER_CALL, QUERY_TOKENS = 8, 15
FLOPS = 100e12  # a third of an A100's peak in bfloat16
AT_ONCE = 16
BATCH = 0.5


def generation(words: int, style: Any) -> tuple[int, int, int]:
    """Return calls, tokens in and tokens out for one document."""
    examples = ("a query of ten words that users of this collection might send",) * 5
    prompt = PromptSettings(style=style, examples=examples, max_queries=None, document_chars=None)
    settings = GenerationSettings(prompt)
    document = Document("d", WORD * words)
    references = (document,) * EXPECTED_REFERENCES if style == "contrastive" else ()
    prompts = build_prompt(prompt, document, references)
    read = sum(count_tokens(one.system + one.user) for one in prompts)
    return len(prompts), read, len(prompts) * expected_output(settings, len(references))


def estimate() -> dict[str, Any]:
    """Return for each collection the calls, tokens, USD, hours of the model and GPU minutes."""
    result = {}
    for name, (documents, words) in COLLECTIONS.items():
        row: dict[str, Any] = {"documents": documents, "tokens": count_tokens(WORD * words)}
        for style in ("simple", "contrastive"):
            calls, read, written = generation(words, style)
            usd = {}
            for model in MODELS:
                listed = price(model)
                assert listed is not None
                usd[model] = documents * (read * listed.input + written * listed.output) / 1e6
            seconds = calls * (1 + written / calls / 60)  # as strop queries --dry-run expects it
            row[style] = {
                "calls": documents * calls, "in": documents * read, "out": documents * written,
                "usd": usd, "hours": documents * seconds / AT_ONCE / 3600,
            }  # fmt: skip
        own = row["tokens"]
        simple = QUERIES_PER_CALL * QUERY_TOKENS
        read_by = {
            "trad": own, "doc2query": own + simple, "simsharp": own + simple,
            "consharp": own + EXPECTED_REFERENCES * simple,
        }  # fmt: skip
        row["gpu_minutes"] = {
            embedder: {
                method: documents * tokens * 2 * size / FLOPS / 60
                for method, tokens in read_by.items()
            }
            for embedder, size in EMBEDDERS.items()
        }
        result[name] = row
    return result


def render(rows: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    lines = [
        "| | documents | tokens each | simple: calls, hours | " + " | ".join(MODELS)
        + " | contrastive, per embedder: calls, hours | " + " | ".join(MODELS) + " |",
        "|---|" + "---|" * (4 + 2 * len(MODELS)),
    ]  # fmt: skip
    for name, row in rows.items():
        cells = [name, f"{row['documents']:,}", f"{row['tokens']:,}"]
        for style in ("simple", "contrastive"):
            of = row[style]
            cells.append(f"{of['calls']:,}, {of['hours']:,.1f} h")
            cells += [f"{of['usd'][model]:,.0f} USD" for model in MODELS]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| GPU minutes | " + " | ".join(rows) + " |", "|---|" + "---|" * len(rows)]
    for embedder in EMBEDDERS:
        for method in ("trad", "doc2query", "simsharp", "consharp"):
            minutes = [rows[name]["gpu_minutes"][embedder][method] for name in rows]
            cells = ["< 1" if one < 1 else f"{one:,.0f}" for one in minutes]
            lines.append(f"| {embedder} {method} | " + " | ".join(cells) + " |")
    every = totals(rows)
    usd = " or ".join(f"{every['usd'][model]:,} USD with {model}" for model in MODELS)
    lines += [
        "",
        f"All 72 figures together cost {usd} (half of that in batches), and take"
        f" {every['gpu_hours']} GPU hours.",
    ]
    return "\n".join(lines)


def totals(rows: dict[str, Any]) -> dict[str, Any]:
    """Return what all 72 cells take: simple queries once, contrastive ones for each embedder."""
    usd = {
        model: sum(
            row["simple"]["usd"][model] + len(EMBEDDERS) * row["contrastive"]["usd"][model]
            for row in rows.values()
        )
        for model in MODELS
    }
    minutes = sum(
        value
        for row in rows.values()
        for of in row["gpu_minutes"].values()
        for value in of.values()
    )
    return {
        "usd": {model: round(value) for model, value in usd.items()},
        "usd_batched": {model: round(BATCH * value) for model, value in usd.items()},
        "gpu_hours": round(minutes / 60, 1),
    }  # fmt: skip


def fill(page: str, tables: str) -> str:
    """Return the page with these tables between its marks."""
    begin, end = "<!-- costs: made by benchmarks/reproduce_costs.py -->", "<!-- end of costs -->"
    return re.sub(f"(?s){begin}.*{end}", lambda _: f"{begin}\n{tables}\n{end}", page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    rows = estimate()
    if not parser.parse_args().json:
        PAGE.write_text(fill(PAGE.read_text("utf-8"), render(rows)), "utf-8")
    print(json.dumps(totals(rows)))
