"""The cache of vectors, compared with a dictionary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

from strop.common.arrays import unit_rows
from strop.engines.base import PackedVectors, Rows, pack
from strop.engines.vector_cache import VectorCache, checksum

DIM, SETS = 8, (3, 7)
RNG = np.random.default_rng(4)


@cache
def parts_of(number: int) -> dict[int, Rows]:
    """Return a document's vector as floats and its queries as int8; some have no queries."""
    rng = np.random.default_rng(number)
    parts: dict[int, Rows] = {0: unit_rows(rng.normal(size=(1, DIM))).astype(np.float32)}
    for set_id in (*SETS, 9):  # the last one is never requested
        count = int(rng.integers(0, 5))
        parts[set_id] = rng.integers(-127, 128, (count, DIM)).astype(np.int8)
    return parts


def packed(number: int) -> PackedVectors:
    return PackedVectors(f"d{number}", pack(parts_of(number)))


def expected_queries(numbers: list[int], sets: tuple[int, ...], n: int | None) -> list[np.ndarray]:
    return [
        np.concatenate([unit_rows(parts_of(number)[set_id][:n].astype(np.float32))
                        for set_id in sets]) for number in numbers
    ]  # fmt: skip


@pytest.mark.parametrize("sets", [(3,), (7,), (7, 3)])
@pytest.mark.parametrize("n", [None, 2, 0])
def test_the_cache_returns_the_added_vectors(sets: tuple[int, ...], n: int | None) -> None:
    vectors = VectorCache(DIM, SETS)
    for first in range(0, 60, 7):
        vectors.add({number: packed(number) for number in range(first, first + 7)})
    numbers = RNG.permutation(60)[:20].tolist()
    slots = np.array([vectors.slots[number] for number in numbers])
    document_vectors = np.concatenate([parts_of(number)[0] for number in numbers])
    np.testing.assert_array_equal(vectors.document_vectors(slots), document_vectors)
    queries, counts = vectors.queries(slots, sets, n)
    expected = expected_queries(numbers, sets, n)
    assert counts.tolist() == [len(rows) for rows in expected]
    np.testing.assert_allclose(queries, np.concatenate(expected), rtol=1e-6, atol=1e-7)
    ids = [(f"d{number}", checksum(packed(number))) for number in numbers]
    assert [vectors.records[slot] for slot in slots.tolist()] == ids


def test_empty_cache_and_empty_requests() -> None:
    vectors, none = VectorCache(DIM, SETS), np.empty(0, np.int64)
    assert vectors.add({}) == {}
    assert vectors.document_vectors(none).shape == (0, DIM)
    vectors.add({1: packed(1)})
    assert vectors.queries(none, SETS, None)[0].shape == (0, DIM)
    assert vectors.queries(np.array([0]), (), None)[1].tolist() == [0]


def test_a_document_added_again_gets_a_new_slot() -> None:
    vectors = VectorCache(DIM, SETS)
    (before,) = vectors.add({1: packed(1)}).values()
    (after,) = vectors.add({1: packed(2)}).values()
    assert vectors.slots[1] == after != before
    np.testing.assert_array_equal(vectors.document_vectors(np.array([before, after])),
                                  np.concatenate([parts_of(1)[0], parts_of(2)[0]]))  # fmt: skip


def test_threads_read_while_other_threads_add() -> None:
    vectors = VectorCache(DIM, SETS)

    def work(thread: int) -> None:
        for first in range(0, 200, 5):
            added = vectors.add({at: packed(at) for at in range(first, first + 5)})
            slots = np.array([*added.values()])
            document_vectors = np.concatenate([parts_of(at)[0] for at in added])
            np.testing.assert_array_equal(vectors.document_vectors(slots), document_vectors)
            expected = expected_queries([*added], SETS, None)
            np.testing.assert_allclose(
                vectors.queries(slots, SETS, None)[0],
                np.concatenate(expected),
                rtol=1e-6,
                atol=1e-7,
            )

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, thread) for thread in range(4)]:
            done.result()
    assert len(vectors.records) == 800
