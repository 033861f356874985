"""The verb that searches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from strop.cli.common import AS_JSON, open_index, scoring_options, split_list
from strop.cli.expand import chosen_steps, expansion_options, limits, report_expansion
from strop.cli.messages import print_json
from strop.cli.progress import progress_bars
from strop.errors import BadInput


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("text")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--method", help="One of the methods of `strop eval`.  [sharp]")
@scoring_options
@click.option("--explain", is_flag=True, help="Say which stored queries moved each document.")
@click.option("--exact", is_flag=True, help="Score every document, also in a large index.")
@expansion_options(several=False)
@AS_JSON
def search(
    path: Path,
    text: str,
    k: int,
    method: str | None,
    alpha: float | None,
    temperature: float | None,
    sets: str | None,
    n: int | None,
    explain: bool,
    exact: bool,
    as_json: bool,
    **expansion: Any,
) -> None:
    """Rank the documents of INDEX for TEXT."""
    if not text.strip():
        raise BadInput("the query is empty: write what to look for")
    steps = chosen_steps(expansion)
    if len(steps) > 1:
        raise click.UsageError("--expand takes one query method here")
    ((name, step),) = steps.items()
    with open_index(path) as index:
        chosen = index.method(
            method,
            alpha=alpha,
            temperature=temperature,
            sets=split_list((sets or "").replace("+", ",")),
            n=n,
        )
        if chosen.expanded is not None:
            with progress_bars() as progress:
                index.expand(chosen.expanded, progress)
        asked: Any = None
        told: dict[str, Any] = {}
        if step is not None:
            with progress_bars() as progress:
                refined = index.refine(text, step, progress=progress, **limits(expansion))
            asked = refined.vectors
            told = {"expand": name, "expansion": refined.to_json()}
        hits = index.search(text, k, chosen, vectors=asked, exact=exact)
        rows: list[dict[str, Any]] = []
        for rank, (id_, score) in enumerate(zip(hits.ids[0], hits.scores[0], strict=True), 1):
            document = index.get(id_)
            row = {"rank": rank, "id": id_, "score": round(float(score), 6)}
            row |= {"title": document.title, "text": document.text}
            if explain:
                row["explanation"] = asdict(index.explain(text, id_, chosen, vectors=asked))
            rows.append(row)
        if step is not None:
            report_expansion(name, refined)
        if as_json:
            print_json({"query": text, "method": chosen.name, **told, "hits": rows})
            return
        from strop.cli import tables

        (tables.print_explained if explain else tables.print_hits)(rows)
