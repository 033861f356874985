"""(query, positive, negative) triplets for contrastive training.

The columns and their order are those that the losses of sentence-transformers expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from strop.errors import BadInput
from strop.generate.plan import GenerationSettings, Plan, QueryList
from strop.lm.runner import BaseLM
from strop.methods import check_count
from strop.storage.catalog import Catalog
from strop.storage.query_sets import QuerySet
from strop.types import Document


class Triplet(NamedTuple):
    """Texts: a query, a document that answers it, a similar one that does not."""

    query: str
    positive: str
    negative: str


def triplets(catalog: Catalog, set_: QuerySet, negatives: int = 1) -> Iterator[Triplet]:
    """Yield the triplets of a set: for each query up to ``negatives`` triplets, nearest first.

    Negatives are the references that the query was written against if they are known, else all
    references of the document. In a set of negative queries the reference is the positive.
    """
    check_count("negatives", negatives)
    if not catalog.references.counts():
        index = catalog.path.parent
        raise BadInput(f"{index} has no references yet: strop references {index}")
    return _triplets(catalog, set_, negatives)


def _triplets(catalog: Catalog, set_: QuerySet, negatives: int) -> Iterator[Triplet]:
    lists = _generated_lists(catalog, set_)
    generated = next(lists, None)
    for number, document, _ in catalog.documents.all():
        queries = catalog.sets.queries(set_, number)
        if not queries:
            continue
        nearest = _references(catalog, number)
        order = {reference.id: at for at, reference in enumerate(nearest)}
        while generated is not None and generated.number < number:
            generated = next(lists, None)
        against: dict[str, tuple[Document, ...]] = {}
        if generated is not None and generated.number == number:
            against = dict(zip(generated.queries, generated.against, strict=True))
        for query in queries:
            others = sorted(
                against.get(query) or nearest, key=lambda other: order.get(other.id, len(order))
            )
            for other in others[:negatives]:
                if other.content and document.content:
                    pair = (other, document) if set_.negative else (document, other)
                    yield Triplet(query, *(member.content for member in pair))


def _references(catalog: Catalog, number: int) -> list[Document]:
    """Return a document's references, the nearest first."""
    selected = catalog.references.of(number)
    nearest = sorted(selected.references, key=lambda ref: -ref.similarity) if selected else []
    return [catalog.documents.get(catalog.documents.number_of(ref.id)) for ref in nearest]


def _generated_lists(catalog: Catalog, set_: QuerySet) -> Iterator[QueryList]:
    """Yield, in order, the query lists with the references each query was written against."""
    source = set_.settings
    if source["source"] != "lm" or source["settings"]["prompt"]["style"] == "simple":
        return
    lm = _RecordedLM(source["lm"], source["options"])
    yield from Plan(catalog, lm, GenerationSettings.from_json(source["settings"])).lists()


class _RecordedLM(BaseLM):
    """The model that wrote a set, to look up its replies; it is never called."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options = name, options
