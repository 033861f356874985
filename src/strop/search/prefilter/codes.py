"""Short codes of vectors, and the estimates they give: kernels only, no I/O, no state.

A *sign code* has one bit for each value of a vector. The user's query is rounded to four levels
(two bits, each a *plane* of bits), so a product of the two is a count of common bits. A *byte code*
has one byte for each value. A document's *record* has its codes one after the other, because they
are read together. ``formula.py`` lists which line each kernel estimates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from strop.common.arrays import Floats, Ints
from strop.common.compiled import bits_set, compiled, prefetch_rows
from strop.search.formula import HARD_MAX, NEARLY_ZERO
from strop.search.kernels import exp_of
from strop.search.scoring import Fetched
from strop.storage.vectors import stored_rows
from strop.types import Vectors

Bytes = NDArray[np.int8]
Signs = NDArray[np.uint64]
"""A bit for each value, 64 per word."""
Records = NDArray[np.uint64]
"""For each document: the byte code of its centroid, padded with zeros to full words; two words
with the factor of this code, the two means of ``parts_of_documents`` and an unused float; then for
each difference a sign code and one word with its two factors."""

_STEP = 0.996
"""Distance of the four levels, as a share of the values' standard deviation: the rounding error is
least if the values are normally distributed."""
_TOGETHER = 1024
"""This many rows of a column of sign codes are counted before those of the next column."""


def byte_codes(vectors: Vectors) -> tuple[Bytes, Floats]:
    """Return vectors (n, dim) as int8, and the factors that restore their lengths."""
    codes = stored_rows(vectors, "int8")
    lengths = np.linalg.norm(codes.astype(np.float32), axis=1)
    factors = np.zeros_like(lengths)
    np.divide(np.linalg.norm(vectors, axis=1), lengths, out=factors, where=lengths > 0)
    return codes, factors


def sign_words(dim: int) -> int:
    """Return the number of words of a sign code."""
    return -(-dim // 64)


def sign_codes(vectors: Vectors) -> tuple[Signs, Floats]:
    """Return the sign codes of vectors (n, dim) of any length.

    Also returns what products need (n, 2): a factor, and the number of bits that are set.
    """
    (size, dim), positive = vectors.shape, vectors > 0
    signs = np.zeros((size, 8 * sign_words(dim)), np.uint8)
    signs[:, : -(-dim // 8)] = np.packbits(positive, axis=1, bitorder="little")
    squares, totals = np.einsum("ij,ij->i", vectors, vectors), np.abs(vectors).sum(axis=1)
    # With s the signs of v, q.v is about q.s * v.v / s.v: exact for the component of q along v.
    along = np.divide(squares, totals, out=np.zeros_like(squares), where=totals > 0)
    factors = np.stack([along, positive.sum(axis=1)], axis=1).astype(np.float32)
    return signs.view(np.uint64), factors


@compiled()
def query_planes(query_vector: Vectors) -> tuple[Signs, Floats]:
    """Return a query vector (dim,) as two planes of bits (2, words), and three factors."""
    dim = len(query_vector)
    planes, factors = np.zeros((2, (dim + 63) // 64), np.uint64), np.zeros(3, np.float32)
    square = along = np.float32(0.0)
    for value in query_vector:
        square += value * value
    step = max(np.float32(_STEP) * np.sqrt(square / np.float32(dim)), np.float32(1e-30))
    total = 0
    for c in range(dim):
        level = min(max(int(query_vector[c] / step + np.float32(2.0)), 0), 3)
        along += query_vector[c] * (np.float32(level) - np.float32(1.5))
        total += level
        for p in range(2):
            planes[p, c // 64] |= np.uint64((level >> p) & 1) << np.uint64(c % 64)
    # Scaled so that the rounded query is as long as the query, measured along the query.
    scale = square / along if along > 0 else np.float32(0.0)
    # A sum of +q and -q by sign is twice the sum over the bits that are set, minus the full sum.
    factors[0], factors[1] = np.float32(2.0) * scale, np.float32(-3.0) * scale
    factors[2] = (np.float32(1.5 * dim) - np.float32(total)) * scale
    return planes, factors


@compiled(reorder=True)
def sign_products(
    signs: Signs, row_factors: Floats, planes: Signs, factors: Floats, first: int, last: int,
    products: Floats,
) -> None:  # fmt: skip
    """Write the approximate products of rows ``first:last`` with the query.

    ``signs`` (words, n) and ``row_factors`` (2, n) are by column, so that the processor counts the
    bits of several rows at once.
    """
    levels = np.empty(_TOGETHER, np.uint64)
    for begin in range(first, last, _TOGETHER):
        end = min(begin + _TOGETHER, last)
        levels[:] = 0
        for w in range(len(signs)):
            low, high = planes[0, w], planes[1, w]
            words = signs[w, begin:end]
            for row in range(len(words)):
                doubled = bits_set(words[row] & high) << np.uint64(1)
                levels[row] += bits_set(words[row] & low) + doubled
        scale, bits = row_factors[0, begin:end], row_factors[1, begin:end]
        out = products[begin:end]
        for row in range(len(out)):
            total = factors[0] * np.float32(np.int64(levels[row])) + factors[1] * bits[row]
            out[row] = scale[row] * (total + factors[2])


@compiled()
def differences_below(coarse: Floats, fine: Floats, edge: float) -> tuple[float, float]:
    """Return mean and standard deviation of fine - coarse, for rows with coarse <= ``edge``."""
    count, total, squares = 0, 0.0, 0.0
    for row in range(len(coarse)):
        if coarse[row] <= edge:
            difference = float(fine[row]) - float(coarse[row])
            count += 1
            total += difference
            squares += difference * difference
    mean = total / max(1, count)
    return mean, np.sqrt(max(0.0, squares / max(1, count) - mean * mean))


def parts_of_documents(fetched: Fetched) -> tuple[Vectors, Vectors, Floats]:
    """Split documents into a centroid c = d + mean of q_i and the differences from the mean.

    Returns c (n, dim), all q_i - mean (rows, dim), and the means (n, 2) of d.q_i and of q_i.q_j for
    i != j, 0 if a document has none.
    """
    documents, queries, counts = fetched.documents, fetched.queries, fetched.counts
    rows, n = np.arange(len(queries)), np.maximum(1, counts).astype(np.float32)
    ends = np.concatenate([[0], np.cumsum(counts)])
    sum_matrix = csr_array((np.ones(len(rows), np.float32), rows, ends), (len(n), len(rows)))
    sums = sum_matrix @ queries
    means = sums / n[:, None]
    doc_means = np.einsum("ij,ij->i", documents, means)
    squares = np.einsum("ij,ij->i", queries, queries)
    pair_sums = np.einsum("ij,ij->i", sums, sums) - sum_matrix @ squares
    pair_means = pair_sums / np.maximum(1, n * (n - 1))
    differences = queries - np.repeat(means, counts, axis=0)
    return documents + means, differences, np.stack([doc_means, pair_means], axis=1)


def record_words(dim: int) -> tuple[int, int]:
    """Return the number of words of a document's head in its record, and of each difference."""
    return -(-dim // 8) + 2, sign_words(dim) + 1


def records_of(fetched: Fetched) -> tuple[Records, Vectors]:
    """Return the records of documents, one after the other, and their centroids (n, dim)."""
    centroids, differences, means = parts_of_documents(fetched)
    (size, dim), (head, each) = centroids.shape, record_words(centroids.shape[1])
    codes, factors = byte_codes(centroids)
    heads = np.zeros((size, head), np.uint64)
    heads.view(np.int8)[:, :dim] = codes
    heads.view(np.float32)[:, -4:-1] = np.column_stack([factors, means])
    signs, sign_factors = sign_codes(differences)
    words = head + each * fetched.counts
    begin = np.cumsum(words) - words
    records, is_head = np.empty(words.sum(), np.uint64), np.zeros(words.sum(), np.bool_)
    is_head[begin[:, None] + np.arange(head)] = True
    records[is_head] = heads.ravel()
    records[~is_head] = np.column_stack([signs, sign_factors.view(np.uint64)]).ravel()
    return records, centroids


@compiled(reorder=True)
def estimated_scores(
    query_vector: Vectors, planes: Signs, factors: Floats, rows: Ints, records: Records,
    as_bytes: Bytes, as_floats: Floats, begin: Ints, alpha: float, temperature: float,
    scores: Floats,
) -> None:  # fmt: skip
    """Write the approximate cosine of the query and d* for the documents of ``rows``.

    With c = d + mean of q_i and alpha 1, q.d* = q.c + sum of w_i q.(q_i - mean). With another alpha
    d and the mean differ in weight; q.d and q.mean are then taken as equal. Softmax is
    shift-invariant, so products with the differences are enough for w. Byte codes give q.c, sign
    codes the rest; |d*| follows to a percent from the means of d.q_i and q_i.q_j. ``as_bytes`` and
    ``as_floats`` are views of the records; ``begin`` has the word where each begins.
    """
    keep = np.float32(1.0 / max(1.0, abs(alpha)))
    add = np.float32(alpha / max(1.0, abs(alpha)))
    hard = temperature < HARD_MAX
    cooling = np.float32(0.0) if hard else np.float32(1.0 / temperature)
    dim, words, head = len(query_vector), planes.shape[1], (len(query_vector) + 7) // 8
    longest = 1
    for row in rows:
        longest = max(longest, begin[row + 1] - begin[row])
    sims = np.empty(longest, np.float32)  # longer than needed: a difference has several words
    for x in range(len(rows)):
        later = rows[min(x + 3, len(rows) - 1)]  # near enough that it is still in the cache
        prefetch_rows(records, begin[later], begin[later + 1])
        first, last = begin[rows[x]], begin[rows[x] + 1]
        code, near = as_bytes[8 * first : 8 * first + dim], np.float32(0.0)
        for c in range(dim):
            near += np.float32(code[c]) * query_vector[c]
        at = 2 * (first + head)
        near *= as_floats[at]
        doc_mean, pair_mean = as_floats[at + 1], as_floats[at + 2]
        n, peak = 0, np.float32(-np.inf)
        for difference in range(first + head + 2, last, words + 1):
            # Unsigned indexes: numba checks signed ones for values below zero. Levels are added as
            # floats: sums of integers would be vectorised, and bit counts have no vector form.
            levels = np.float32(0.0)
            for w in range(words):
                word = records[np.uint64(difference + w)]
                doubled = bits_set(word & planes[1, w]) << np.uint64(1)
                levels += np.float32(np.int32(bits_set(word & planes[0, w]) + doubled))
            at = 2 * (difference + words)
            total = factors[0] * levels + factors[1] * as_floats[at + 1] + factors[2]
            sims[n] = as_floats[at] * total
            peak = max(peak, sims[n])
            n += 1
        if not n:
            scores[x] = near
            continue
        total = pull = squares = np.float32(0.0)
        for i in range(n):
            weight = exp_of((sims[i] - peak) * cooling)
            if hard:
                weight = np.float32(1.0) if sims[i] == peak else np.float32(0.0)
            total += weight
            pull += weight * sims[i]
            squares += weight * weight
        squares /= total * total
        numerator = np.float32(0.5) * (keep + add) * near + add * pull / total
        squared_norm = keep * keep + np.float32(2.0) * keep * add * doc_mean
        squared_norm += add * add * (squares + (np.float32(1.0) - squares) * pair_mean)
        scores[x] = numerator / np.sqrt(max(squared_norm, np.float32(NEARLY_ZERO)))
