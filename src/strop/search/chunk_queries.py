"""Queries that were written for a split document: each is given to its nearest chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from strop.methods import METHODS
from strop.search.views import Views
from strop.storage.catalog import Catalog
from strop.types import Vectors

Lists = Mapping[str, Sequence[str]] | Iterable[tuple[str, str, Sequence[str]]]
"""Queries by document id, or (place in the source, id, queries)."""


def lists_by_chunk(
    catalog: Catalog, views: Views, lists: Lists, style: str, embed: Callable[[list[str]], Vectors]
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield the lists of split documents by the ids of their chunks, other lists unchanged.

    Chunks that have a list in the set ``style`` and get no query now get an empty list.
    """
    if isinstance(lists, Mapping):
        lists = [("the given lists", id_, texts) for id_, texts in lists.items()]
    with catalog.reading():
        view, set_ = views.of(METHODS["trad"]), catalog.sets.all().get(style)

    def by_chunk(
        place: str, id_: str, texts: Sequence[str]
    ) -> Iterator[tuple[str, str, Sequence[str]]]:
        numbers = catalog.documents.chunks.numbers_of(id_) or []
        rows = np.searchsorted(view.snapshot.numbers, sorted(numbers))
        rows = rows[rows < view.layout.size]
        rows = rows[np.isin(view.snapshot.numbers[rows], numbers)]  # those that have a vector
        if not len(rows) or not _are_texts(texts):  # the import reports what is wrong
            yield place, id_, texts
            return
        nearest = np.argmax(embed(list(texts)) @ view.layout.documents(rows).T, axis=1)
        chunks = view.snapshot.numbers[rows].tolist()
        ids = catalog.documents.ids_of(chunks)
        replaced = catalog.sets.queries_of(set_, chunks, outdated=True) if set_ else {}
        for at, number in enumerate(chunks):
            pairs = zip(texts, nearest.tolist(), strict=True)
            queries = [text for text, chunk in pairs if chunk == at]
            if queries or number in replaced:
                yield place, ids[number], queries

    return (chunk_list for entry in lists for chunk_list in by_chunk(*entry))


def _are_texts(texts: Sequence[str]) -> bool:
    return not isinstance(texts, str) and all(isinstance(one, str) for one in texts) and bool(texts)
