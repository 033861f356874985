"""Random metadata and filters."""

from __future__ import annotations

import operator
from typing import Any

from hypothesis import strategies as st

FIELDS = ("year", "lang", "tags", "a.b", "x" * 300)
PLAIN = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, 2.0, -1.5, 1e300, 2**70, -(2**70)]),
    st.sampled_from(["", "en", "de", "é", "2020-01-31", "y" * 300, "y" * 299 + "z", "\x00", "1"]),
    st.booleans(),
    st.none(),
)
METADATA = st.dictionaries(
    st.sampled_from(["year", "lang", "tags", "a.b", "x" * 300, "a"]),
    st.one_of(PLAIN, st.lists(PLAIN, max_size=3), st.dictionaries(st.just("b"), PLAIN)),
    max_size=4,
)
ORDERED = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
COMPARABLE = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, "d", "en", "y" * 250, 2**70]))


def conditions() -> st.SearchStrategy[Any]:
    return st.one_of(
        PLAIN,
        st.tuples(st.sampled_from(["$eq", "$ne"]), PLAIN).map(lambda pair: {pair[0]: pair[1]}),
        st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(PLAIN, max_size=3)).map(
            lambda pair: {pair[0]: pair[1]}
        ),
        st.tuples(st.sampled_from(sorted(ORDERED)), COMPARABLE).map(
            lambda pair: {pair[0]: pair[1]}
        ),
        st.booleans().map(lambda there: {"$exists": there}),
    )


LEAVES = st.dictionaries(st.sampled_from(FIELDS), conditions(), max_size=2) | st.lists(
    st.integers(0, 8), max_size=3
).map(lambda ids: {"$id": {"$in": [f"d{at}" for at in ids]}})
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)).map(
            lambda pair: {pair[0]: pair[1]}
        ),
        inner.map(lambda one: {"$not": one}),
    ),
    max_leaves=5,
)
