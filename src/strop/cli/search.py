"""The verb that searches."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from strop.cli.common import open_index
from strop.cli.expand import chosen_steps, expansion_options, limits, report_expansion
from strop.cli.options import COUNT, INDEX, SCORING, Answer, verb
from strop.cli.progress import progress_bars
from strop.errors import BadInput


@verb(
    INDEX,
    click.argument("text"),
    click.option("-k", default=10, type=COUNT, help="Number of hits."),
    click.option("--method", help="A method of `strop eval`.  [sharp]"),
    SCORING,
    click.option("--explain", is_flag=True, help="Show which stored queries moved each document."),
    click.option("--exact", is_flag=True, help="Score every document, also in a large index."),
    expansion_options(several=False),
)
def search(
    path: Path,
    text: str,
    k: int,
    method: str | None,
    alpha: float | None,
    temperature: float | None,
    sets: list[str],
    n: int | None,
    explain: bool,
    exact: bool,
    **expansion: Any,
) -> Answer:
    """Rank the documents of INDEX for the query TEXT."""
    if not text.strip():
        raise BadInput("the query is empty: write what to look for")
    steps = chosen_steps(expansion)
    if len(steps) > 1:
        raise click.UsageError("--expand takes one query method here")
    ((name, step),) = steps.items()
    query_vectors: Any = None
    about: dict[str, Any] = {}
    with open_index(path) as index:
        chosen = index.method(method, alpha=alpha, temperature=temperature, sets=sets, n=n)
        with progress_bars() as progress:
            if chosen.expanded is not None:
                index.augment(chosen.expanded, progress)
            if step is not None:
                refined = index.refine(text, step, progress=progress, **limits(expansion))
                query_vectors = refined.vectors
                about = {"expand": name, "expansion": refined.to_json()}
        if step is not None:
            report_expansion(name, refined)
        hits = index.search(text, k, chosen, vectors=query_vectors, exact=exact)
        rows: list[dict[str, Any]] = []
        for rank, (id_, score) in enumerate(zip(hits.ids[0], hits.scores[0], strict=True), 1):
            document = index.get(id_)
            row = {"rank": rank, "id": id_, "score": round(float(score), 6)}
            row |= {"title": document.title, "text": document.text}
            if explain:
                row["explanation"] = asdict(index.explain(text, id_, chosen, vectors=query_vectors))
            rows.append(row)
    from strop.cli.tables import print_explained, print_hits

    return Answer(
        {"query": text, "method": chosen.name, **about, "hits": rows},
        partial(print_explained if explain else print_hits, rows),
    )
