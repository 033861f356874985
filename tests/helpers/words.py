"""The words of an index, compared with those of its texts counted anew."""

from __future__ import annotations

from collections import Counter

import numpy as np

from strop import Index
from strop.storage.word_reader import postings_of
from strop.storage.words import TEXT

Counted = dict[int, dict[int, Counter[str]]]
"""How often each document has each term, by source."""


def counted_anew(index: Index) -> Counted:
    """Count the words of the documents, and of the given lists that count."""
    catalog, terms = index.catalog, index.catalog.words.tokenizer().document
    words: Counted = {TEXT: {}}
    for number, document, _ in catalog.documents.all():
        words[TEXT][number] = Counter(terms(document.counted))
        for set_ in catalog.sets.all().values():
            texts = [] if set_.derived else catalog.sets.queries(set_, number)
            if texts:
                words.setdefault(set_.set_id, {})[number] = Counter(terms("\n".join(texts)))
    return words


def assert_words_are_those_of_the_texts(index: Index) -> None:
    """Compare the stored words with a count of all texts that count."""
    with index.catalog.reading() as connection:
        wanted = counted_anew(index)
        sources = {TEXT, *(set_.set_id for set_ in index.catalog.sets.all().values())}
        for source, known in index.catalog.words.load(sorted(sources)).items():
            of = wanted.get(source, {})
            assert np.flatnonzero(known.entries[0]).tolist() == sorted(of)
            assert [int(known.entries[1, one]) for one in of] == [
                sum(of[one].values()) for one in of
            ]
            assert (known.texts, known.words) == (len(of), sum(map(Counter.total, of.values())))
            for term in {term for counts in of.values() for term in counts}:
                found: dict[int, int] = {}
                for first, places, counts, living in postings_of(connection, {source: known}, term):
                    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
                        if living is None or living[place]:
                            found[first + place] = count
                assert found == {one: counts[term] for one, counts in of.items() if counts[term]}
