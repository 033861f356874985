"""Estimated cost of the whole Table 1 of the paper: arithmetic only, nothing is run or paid.

    python benchmarks/reproduce_costs.py           # writes the tables of docs/reproduce.md
    python benchmarks/reproduce_costs.py --json    # prints only the totals

Prompts are strop's own, for documents of the mean length given in BEIR's paper. Tokens are counted
as by ``strop queries --dry-run`` before the first reply. The last line is JSON.
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
COLLECTIONS = {  # documents, mean words of a document (BEIR's paper, Table 1)
    "fiqa": (57_638, 132), "nfcorpus": (3_633, 232), "scifact": (5_183, 214),
    "trec-covid": (171_332, 161), "scidocs": (25_657, 176), "arguana": (8_674, 167),
}  # fmt: skip
EMBEDDERS = {"contriever": 0.11e9, "qwen3-embedding-0.6b": 0.6e9, "e5-mistral": 7.1e9}  # parameters
MODELS = ("claude-sonnet-5", "gpt-5-mini")
WORD = "sample "  # mean length of words in SciFact and NFCorpus: 6.9, with the space
QUERIES_PER_CALL, QUERY_TOKENS = 8, 15
FLOPS = 100e12  # a third of an A100's peak in bfloat16
CONCURRENCY = 16
BATCH = 0.5


def generation(words: int, style: Any) -> tuple[int, int, int]:
    """Return calls, tokens sent and tokens received for one document."""
    examples = ("a query of ten words that users of this collection might send",) * 5
    form = PromptSettings(style=style, examples=examples, max_queries=None, document_chars=None)
    settings = GenerationSettings(form)
    document = Document("d", WORD * words)
    references = (document,) * EXPECTED_REFERENCES if style == "contrastive" else ()
    prompts = build_prompt(form, document, references)
    tokens = sum(count_tokens(prompt.system + prompt.user) for prompt in prompts)
    return len(prompts), tokens, len(prompts) * expected_output(settings, len(references))


def estimate() -> dict[str, Any]:
    """Return calls, tokens, USD, hours of generation and GPU minutes, for each collection."""
    result = {}
    for name, (documents, words) in COLLECTIONS.items():
        row: dict[str, Any] = {"documents": documents, "tokens": count_tokens(WORD * words)}
        for style in ("simple", "contrastive"):
            calls, sent, received = generation(words, style)
            usd = {}
            for model in MODELS:
                listed = price(model)
                assert listed is not None
                usd[model] = documents * (sent * listed.input + received * listed.output) / 1e6
            seconds = calls * (1 + received / calls / 60)  # as strop queries --dry-run estimates
            row[style] = {
                "calls": documents * calls, "in": documents * sent, "out": documents * received,
                "usd": usd, "hours": documents * seconds / CONCURRENCY / 3600,
            }  # fmt: skip
        text = row["tokens"]
        queries = QUERIES_PER_CALL * QUERY_TOKENS
        embedded = {
            "trad": text, "doc2query": text + queries, "simsharp": text + queries,
            "consharp": text + EXPECTED_REFERENCES * queries,
        }  # fmt: skip
        row["gpu_minutes"] = {
            embedder: {
                method: documents * tokens * 2 * size / FLOPS / 60
                for method, tokens in embedded.items()
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
            figures = row[style]
            cells.append(f"{figures['calls']:,}, {figures['hours']:,.1f} h")
            cells += [f"{figures['usd'][model]:,.0f} USD" for model in MODELS]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| GPU minutes | " + " | ".join(rows) + " |", "|---|" + "---|" * len(rows)]
    for embedder in EMBEDDERS:
        for method in ("trad", "doc2query", "simsharp", "consharp"):
            minutes = [rows[name]["gpu_minutes"][embedder][method] for name in rows]
            cells = ["< 1" if value < 1 else f"{value:,.0f}" for value in minutes]
            lines.append(f"| {embedder} {method} | " + " | ".join(cells) + " |")
    total = totals(rows)
    usd = " or ".join(f"{total['usd'][model]:,} USD with {model}" for model in MODELS)
    lines += [
        "",
        f"All 72 figures together cost {usd} (half of that in batches), and take"
        f" {total['gpu_hours']} GPU hours.",
    ]
    return "\n".join(lines)


def totals(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the cost of all 72 cells: simple queries once, contrastive ones for each embedder."""
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
        for by_method in row["gpu_minutes"].values()
        for value in by_method.values()
    )
    return {
        "usd": {model: round(value) for model, value in usd.items()},
        "usd_batched": {model: round(BATCH * value) for model, value in usd.items()},
        "gpu_hours": round(minutes / 60, 1),
    }  # fmt: skip


def fill(page: str, tables: str) -> str:
    """Return the page with the tables between its two comments."""
    begin, end = "<!-- costs: made by benchmarks/reproduce_costs.py -->", "<!-- end of costs -->"
    return re.sub(f"(?s){begin}.*{end}", lambda _: f"{begin}\n{tables}\n{end}", page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the totals")
    rows = estimate()
    if not parser.parse_args().json:
        PAGE.write_text(fill(PAGE.read_text("utf-8"), render(rows)), "utf-8")
    print(json.dumps(totals(rows)))
