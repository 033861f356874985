"""The verb that searches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from strop.cli.common import (
    AS_JSON,
    open_index,
    scoring_options,
    split_sets,
)
from strop.cli.expand import chosen_steps, expansion_options, limits, report_expansion
from strop.cli.messages import print_json
from strop.cli.progress import progress_bars
from strop.errors import BadInput


@click.command()
@click.argument("path", metavar="INDEX", type=Path)
@click.argument("text")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Number of hits.")
@click.option("--method", help="A method of `strop eval`.  [sharp]")
@scoring_options
@click.option("--explain", is_flag=True, help="Show which stored queries moved each document.")
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
    """Rank the documents of INDEX for the query TEXT."""
    if not text.strip():
        raise BadInput("the query is empty: write what to look for")
    steps = chosen_steps(expansion)
    if len(steps) > 1:
        raise click.UsageError("--expand takes one query method here")
    ((name, step),) = steps.items()
    with open_index(path) as index:
        chosen = index.method(
            method, alpha=alpha, temperature=temperature, sets=split_sets(sets), n=n
        )
        if chosen.expanded is not None:
            with progress_bars() as progress:
                index.augment(chosen.expanded, progress)
        query_vectors: Any = None
        about_expansion: dict[str, Any] = {}
        if step is not None:
            with progress_bars() as progress:
                refined = index.refine(text, step, progress=progress, **limits(expansion))
            query_vectors = refined.vectors
            about_expansion = {"expand": name, "expansion": refined.to_json()}
            report_expansion(name, refined)
        hits = index.search(text, k, chosen, vectors=query_vectors, exact=exact)
        rows: list[dict[str, Any]] = []
        for rank, (id_, score) in enumerate(zip(hits.ids[0], hits.scores[0], strict=True), 1):
            document = index.get(id_)
            row = {"rank": rank, "id": id_, "score": round(float(score), 6)}
            row |= {"title": document.title, "text": document.text}
            if explain:
                explanation = index.explain(text, id_, chosen, vectors=query_vectors)
                row["explanation"] = asdict(explanation)
            rows.append(row)
    if as_json:
        print_json({"query": text, "method": chosen.name, **about_expansion, "hits": rows})
        return
    from strop.cli.tables import print_explained, print_hits

    (print_explained if explain else print_hits)(rows)
