"""(query, positive, negative) triplets for contrastive training, out of an index.

The columns and their order are what sentence-transformers' losses take: MultipleNegativesRanking,
TripletLoss and the like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from strop.errors import BadInput
from strop.generate.asking import Spent
from strop.generate.generation import Generation, GenerationSettings, Made, Summary
from strop.lm import Replies, Request
from strop.lm.base import BaseLM
from strop.storage.catalog import Catalog
from strop.storage.query_sets import QuerySet
from strop.types import Document


class Triplet(NamedTuple):
    """Texts: what is asked, a document that answers it, a similar one that does not."""

    query: str
    positive: str
    negative: str


def triplets(catalog: Catalog, set_: QuerySet, negatives: int = 1) -> Iterator[Triplet]:
    """Yield the triplets of a set: for each query at most so many negatives, the nearest first.

    Negatives are the references the query was written against where that is known, else the
    document's own. A set of negative queries gives the reference as the positive.
    """
    if negatives < 1:
        raise BadInput(f"negatives must be 1 or more, not {negatives}")
    written = _written_against(catalog, set_)
    made = next(written, None)
    for number, document, _ in catalog.documents.all():
        queries = catalog.sets.queries(set_, number)
        if not queries:
            continue
        nearest = _references(catalog, number)
        order = {one.id: at for at, one in enumerate(nearest)}
        while made is not None and made.number < number:
            made = next(written, None)
        against: dict[str, tuple[Document, ...]] = {}
        if made is not None and made.number == number:
            against = dict(zip(made.queries, made.against, strict=True))
        for query in queries:
            others = sorted(
                against.get(query) or nearest, key=lambda one: order.get(one.id, len(order))
            )
            for other in others[:negatives]:
                if other.content and document.content:
                    pair = (other, document) if set_.negative else (document, other)
                    yield Triplet(query, *(one.content for one in pair))


def _references(catalog: Catalog, number: int) -> list[Document]:
    selected = catalog.references.of(number)
    found = sorted(selected.references, key=lambda one: -one.similarity) if selected else []
    return [catalog.documents.get(catalog.documents.number_of(one.id)) for one in found]


def _written_against(catalog: Catalog, set_: QuerySet) -> Iterator[Made]:
    """Yield, in order, the lists of which is known what each query was told apart from."""
    told = set_.settings
    if told["source"] != "lm" or told["settings"]["prompt"]["style"] == "simple":
        return
    lm = _Former(told["lm"], told["options"])
    plan = Generation(catalog, lm, GenerationSettings.from_json(told["settings"]))
    yield from plan.lists(Summary(Spent()))


class _Former(BaseLM):
    """The model that wrote a set, to find its replies by; it is asked nothing."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options = name, options

    def complete(self, requests: Iterable[Request]) -> Replies:
        raise AssertionError("a model that only finds replies was asked a question")
