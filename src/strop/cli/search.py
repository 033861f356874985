"""The verb that searches."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from click import BadParameter, Context, Parameter, UsageError, argument, get_current_context

from strop.cli import options as opt
from strop.cli.messages import progress_bars
from strop.cli.verbs import Answer, flag, option, repeatable, verb
from strop.errors import BadInput
from strop.filters import read_condition, read_filter
from strop.methods import METHODS
from strop.types import HIT_FIELDS


def _fields(_: Context, __: Parameter, values: tuple[str, ...]) -> list[str]:
    names = [name.strip() for value in values for name in value.split(",")]
    if unknown := [name for name in names if name not in HIT_FIELDS]:
        raise BadParameter(f"{unknown[0]!r} is not one of {', '.join(HIT_FIELDS)}")
    return names


@verb(
    opt.INDEX_OR_URL,
    argument("text"),
    option("-k", "Number of hits.", default=10, type=opt.COUNT),
    option(
        "--method", f"One of {', '.join(METHODS)}; with settings: sharp:alpha=2.", shown="sharp"
    ),
    opt.SCORING,
    flag("--explain", "Show which stored queries changed the score of each document."),
    flag("--exact", "Score every document, even in a large index."),
    flag("--chunks", "Rank chunks, not documents."),
    repeatable(
        "--where",
        "Only documents whose metadata match: 'year>=2020' (in quotes), lang=en, or JSON such as "
        '{"tags": {"$in": ["a", "b"]}}. All conditions must match',
        "conditions",
        metavar="CONDITION",
    ),
    repeatable(
        "--fields",
        f"Only these fields of hits, with --json: {', '.join(HIT_FIELDS)}",
        callback=_fields,
        metavar="FIELDS",
    ),
    opt.expansion_options(several=False),
)
def search(
    path: Path | str,
    text: str,
    k: int,
    method: str | None,
    explain: bool,
    exact: bool,
    chunks: bool,
    conditions: tuple[str, ...],
    fields: list[str],
    **options: Any,
) -> Answer:
    """Rank the documents of INDEX_OR_URL for the query TEXT.

    INDEX_OR_URL is an index folder, or the URL of a published copy.
    """
    if not text.strip():
        raise BadInput("the query is empty: write what to look for")
    if fields and not get_current_context().params["as_json"]:
        raise UsageError("--fields chooses what --json prints: give --json too")
    from strop.index import Index

    where = {"$and": [read_condition(text) for text in conditions]} if conditions else None
    if where is not None:
        read_filter(where)  # before anything is paid for
    steps = opt.chosen_steps(options)
    if len(steps) > 1:
        raise UsageError("--expand takes one query method here")
    ((name, step),) = steps.items()
    query_vectors: Any = None
    about: dict[str, Any] = {}
    with opt.open_readable(path) as index:
        chosen = index.method(method, **{name: options[name] for name in opt.SETTINGS})
        with progress_bars() as progress:
            if chosen.augmented is not None and isinstance(index, Index):
                index.augment(chosen.augmented, progress)
            if step is not None:
                if not isinstance(index, Index):
                    raise BadInput("--expand needs the folder of an index, not a published copy")
                price = opt.given_price(options)
                refined = index.refine(
                    text, step, where=where, budget=options["budget"], price=price,
                    progress=progress,
                )  # fmt: skip
                query_vectors = refined.vectors
                about = {"expand": name, "expansion": refined.to_json()}
        if step is not None:
            opt.report_expansion(name, refined)
        hits = index.search(
            text, k, chosen, vectors=query_vectors, exact=exact, where=where, chunks=chunks
        )[0]
        rows: list[dict[str, Any]] = []
        for rank, hit in enumerate(hits, 1):
            row = {"rank": rank, **hit.to_dict()}
            if explain:
                ranked = hit.chunk.id if hit.chunk else hit.id
                explained = index.explain(text, ranked, chosen, vectors=query_vectors)
                # Feedback depends on the whole ranking, not on one hit.
                feedback = hit.score - explained.score
                row["explanation"] = {**asdict(explained), "feedback": feedback}
            rows.append(row)
    from strop.cli.tables import print_explained, print_hits

    kept = {"rank", "explanation", *(fields or HIT_FIELDS)}
    shown = [{name: value for name, value in row.items() if name in kept} for row in rows]
    return Answer(
        {"query": text, "method": chosen.name, **about, "hits": shown},
        partial(print_explained if explain else print_hits, rows),
    )
