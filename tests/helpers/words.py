"""Compare the stored word counts of an index with a recount of its texts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from strop import Index
from strop.storage.word_reader import postings_of
from strop.storage.words import TEXT

Counted = dict[int, dict[int, Counter[str]]]
"""Counts of terms, by source and document."""


def recount(index: Index) -> Counted:
    """Count the words of the documents and of all lists that are not derived from them."""
    catalog, terms = index.catalog, index.catalog.words.tokenizer().document
    words: Counted = {TEXT: {}}
    for number, document, _ in catalog.documents.all():
        words[TEXT][number] = Counter(terms(document.counted))
        for set_ in catalog.sets.all().values():
            texts = [] if set_.derived else catalog.sets.queries(set_, number)
            if texts:
                words.setdefault(set_.set_id, {})[number] = Counter(terms("\n".join(texts)))
    return words


def assert_words_match_texts(index: Index) -> None:
    """Compare the stored words with a recount."""
    with index.catalog.reading() as connection:
        recounted = recount(index)
        sources = {TEXT, *(set_.set_id for set_ in index.catalog.sets.all().values())}
        for source, known in index.catalog.words.load(sorted(sources)).items():
            expected = recounted.get(source, {})
            assert np.flatnonzero(known.entries[0]).tolist() == sorted(expected)
            assert [int(known.entries[1, number]) for number in expected] == [
                sum(expected[number].values()) for number in expected
            ]
            n_words = sum(map(Counter.total, expected.values()))
            assert (known.texts, known.words) == (len(expected), n_words)
            for term in {term for counts in expected.values() for term in counts}:
                stored: dict[int, int] = {}
                for first, rows, counts, alive in postings_of(connection, {source: known}, term):
                    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                        if alive is None or alive[row]:
                            stored[first + row] = count
                assert stored == {n: counts[term] for n, counts in expected.items() if counts[term]}
