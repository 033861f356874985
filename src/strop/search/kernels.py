"""Compiled forms of the score: Gram matrices, scores, best k, words. No I/O, no state.

``formula.py`` has the equations and lists which line each kernel computes. u and G of line (4g) do
not depend on the user's query, so scoring a document needs only its products with the query.

Kernels release the GIL and run on one thread; callers split work between threads. (Numba's own
parallel loops abort the process when two Python threads enter them at once.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints
from strop.common.compiled import compiled, prefetch_rows
from strop.search.formula import HARD_MAX, NEARLY_ZERO
from strop.storage.words import MOST, Counts, Flags
from strop.types import Vectors


@compiled(reorder=True)
def unit_floats(stored: NDArray[Any], rows: Vectors) -> None:
    """Write ``rows`` (n, dim): stored rows (int8 or float32) with unit length, or zero."""
    for r in range(len(stored)):
        square = np.float32(0.0)
        for c in range(stored.shape[1]):
            x = np.float32(stored[r, c])
            rows[r, c] = x
            square += x * x
        scale = np.float32(1.0) / np.sqrt(square) if square > 0 else np.float32(0.0)
        for c in range(stored.shape[1]):
            rows[r, c] *= scale


@compiled(reorder=True)
def products_of_few(rows: Vectors, query_vectors: Vectors, products: Floats) -> None:
    """Write ``products`` (n, queries) = rows . query_vectors, for one query or a multiple of 4.

    With so few queries, reading the rows limits the speed, and BLAS reads them more slowly.
    """
    dim = rows.shape[1]
    for r in range(len(rows)):
        row = rows[r]
        if len(query_vectors) == 1:
            total = np.float32(0.0)
            for c in range(dim):
                total += row[c] * query_vectors[0, c]
            products[r, 0] = total
            continue
        for q in range(0, len(query_vectors), 4):
            dot0 = dot1 = dot2 = dot3 = np.float32(0.0)
            for c in range(dim):
                x = row[c]
                dot0 += x * query_vectors[q, c]
                dot1 += x * query_vectors[q + 1, c]
                dot2 += x * query_vectors[q + 2, c]
                dot3 += x * query_vectors[q + 3, c]
            products[r, q] = dot0
            products[r, q + 1] = dot1
            products[r, q + 2] = dot2
            products[r, q + 3] = dot3


@compiled(reorder=True)
def products_of_few_stored(stored: NDArray[Any], query_vectors: Vectors, products: Floats) -> None:
    """Do the same for int8 rows, which become unit rows in blocks that fit into the cache."""
    if len(query_vectors) == 1:
        for r in range(len(stored)):
            row = stored[r]
            total = np.float32(0.0)
            square = np.float32(0.0)
            for c in range(stored.shape[1]):
                value = np.float32(row[c])
                total += value * query_vectors[0, c]
                square += value * value
            products[r, 0] = total / np.sqrt(square) if square > 0 else np.float32(0.0)
        return
    at_once = 16
    rows = np.empty((at_once, stored.shape[1]), np.float32)
    for r in range(0, len(stored), at_once):
        some = stored[r : r + at_once]
        unit_floats(some, rows)
        products_of_few(rows[: len(some)], query_vectors, products[r : r + at_once])


@compiled()
def _most_queries(counts: Ints) -> int:
    """Return the largest number of queries of a document, at least 1; counts (sets, documents)."""
    most = 1
    for j in range(counts.shape[1]):
        n = 0  # not counts[:, j].sum(), which numba compiles for two seconds
        for m in range(len(counts)):
            n += counts[m, j]
        most = max(most, n)
    return most


@compiled(reorder=True)
def gram_of_documents(
    rows: Vectors, own: Ints, starts: Ints, counts: Ints, self_dots: Floats, doc_dots: Floats,
    grams: Floats,
) -> None:  # fmt: skip
    """Compute the terms of a block's documents that do not depend on the user's query.

    ``rows[own[j]]`` is document j's vector, ``rows[starts[m, j]:][:counts[m, j]]`` are its query
    vectors of set m. This writes ``self_dots[j] = d.d``, ``doc_dots`` = d.q_i, set after set, and
    in ``grams`` the lower triangle of its Gram matrix, row by row; document after document.
    """
    dim = rows.shape[1]
    at, place = 0, 0
    query_rows = np.empty(_most_queries(counts), np.int64)
    for j in range(len(own)):
        d = rows[own[j]]
        total = np.float32(0.0)
        for c in range(dim):
            total += d[c] * d[c]
        self_dots[j] = total
        n = 0
        for m in range(len(starts)):
            for i in range(counts[m, j]):
                query_rows[n] = starts[m, j] + i
                n += 1
        for i in range(n):
            row = rows[query_rows[i]]
            total = np.float32(0.0)
            for c in range(dim):
                total += d[c] * row[c]
            doc_dots[at] = total
            at += 1
            for other in range(i + 1):
                other_row = rows[query_rows[other]]
                total = np.float32(0.0)
                for c in range(dim):
                    total += row[c] * other_row[c]
                grams[place] = total
                place += 1


@compiled(reorder=True)
def exp_of(x: float) -> float:
    """Return exp(x) of a float32 x <= 0, to a relative error of 3e-7; it can be vectorised.

    e^x = 2^n e^r with r small: a polynomial (Cephes' coefficients) and n put into the exponent.
    """
    x = max(x, np.float32(-87.0))
    n = np.int32(x * np.float32(1.4426950408889634) - np.float32(0.5))
    r = x - np.float32(n) * np.float32(0.693359375)
    r = r + np.float32(n) * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    power = np.int32((n + np.int32(127)) << np.int32(23))
    value: float = p * power.view(np.float32)
    return value


@compiled()
def offer(best: Floats, places: Ints, q: int, score: float, place: int) -> None:
    """Insert a document into the best k of query q if it is one of them.

    ``best`` (queries, k) is sorted, largest first; of equal scores the earlier document wins.
    """
    at = best.shape[1]
    while at > 0 and (
        best[q, at - 1] < score or (best[q, at - 1] == score and places[q, at - 1] > place)
    ):
        at -= 1
        if at + 1 < best.shape[1]:
            best[q, at + 1] = best[q, at]
            places[q, at + 1] = places[q, at]
    if at < best.shape[1]:
        best[q, at] = score
        places[q, at] = place


@compiled(reorder=True)
def sharpened_block(
    products: Floats, own: Ints, starts: Ints, counts: Ints, self_dots: Floats, doc_dots: Floats,
    grams: Floats, alpha: float, temperature: float, shift: int, best: Floats, places: Ints,
) -> int:  # fmt: skip
    """Score a block's documents for each query and merge them into the best k.

    products (rows, queries or more) = rows . q; the rest as in ``gram_of_documents``. The place
    of document j is ``shift + j``. If d* nearly vanishes, the document is left out, its product
    becomes NaN, and it counts in the number returned: ``formula.reference`` computes its score.
    """
    n_queries, width = len(best), products.shape[1]
    last = best.shape[1] - 1
    widest = _most_queries(counts)
    sims = np.empty((widest, width), np.float32)
    weights = np.empty((widest, width), np.float32)
    peak = np.empty(width, np.float32)
    total = np.empty(width, np.float32)
    pull = np.empty(width, np.float32)
    along = np.empty(width, np.float32)
    square = np.empty(width, np.float32)
    inner = np.empty(width, np.float32)
    scores = np.empty(width, np.float32)
    # Scaled so that neither alpha nor its square can overflow.
    keep = np.float32(1.0 / max(1.0, abs(alpha)))
    add = np.float32(alpha / max(1.0, abs(alpha)))
    hard = temperature < HARD_MAX
    cooling = np.float32(0.0) if hard else np.float32(1.0 / temperature)
    at, place, doubtful = 0, 0, 0
    for j in range(len(own)):
        plain = products[own[j]]
        n = 0
        peak[:] = -np.inf
        for m in range(len(starts)):
            for i in range(counts[m, j]):
                row = products[starts[m, j] + i]
                for q in range(width):
                    sims[n, q] = row[q]
                    peak[q] = max(peak[q], row[q])
                n += 1
        total[:] = 0
        pull[:] = 0
        along[:] = 0
        square[:] = 0
        for i in range(n):
            u = doc_dots[at + i]
            if hard:
                for q in range(width):
                    weights[i, q] = 1.0 if sims[i, q] == peak[q] else 0.0
            else:
                for q in range(width):
                    weights[i, q] = exp_of((sims[i, q] - peak[q]) * cooling)
            inner[:] = 0
            for other in range(i):
                g = grams[place + other]
                for q in range(width):
                    inner[q] += g * weights[other, q]
            g = grams[place + i]
            for q in range(width):
                w = weights[i, q]
                total[q] += w
                pull[q] += w * sims[i, q]
                along[q] += w * u
                square[q] += w * (np.float32(2.0) * inner[q] + g * w)
            place += i + 1
        at += n
        if n == 0:
            length = np.sqrt(self_dots[j])
            for q in range(width):
                scores[q] = plain[q] / length if length > 0 else np.float32(-1.0)
        else:
            for q in range(width):
                z = np.float32(1.0) / total[q]
                squared_norm = keep * keep * self_dots[j]
                squared_norm += np.float32(2.0) * keep * add * z * along[q]
                squared_norm += add * add * z * z * square[q]
                numerator = keep * plain[q] + add * z * pull[q]
                clear = squared_norm > np.float32(NEARLY_ZERO)
                scores[q] = numerator / np.sqrt(squared_norm) if clear else np.float32(np.nan)
        for q in range(n_queries):
            if scores[q] > best[q, last]:
                offer(best, places, q, scores[q], shift + j)
            elif np.isnan(scores[q]):
                plain[q] = np.nan
                doubtful += 1
    return doubtful


@compiled()
def maxsim_block(
    products: Floats, own: Ints, starts: Ints, counts: Ints, shift: int, best: Floats, places: Ints
) -> None:
    """Merge q.d + max_i q.q_i into the best k; q.d for a document with no queries, or no sets."""
    last = best.shape[1] - 1
    for j in range(len(own)):
        for q in range(len(best)):
            largest = np.float32(-np.inf)
            for m in range(len(starts)):
                for i in range(starts[m, j], starts[m, j] + counts[m, j]):
                    largest = max(largest, products[i, q])
            score = products[own[j], q] + (largest if largest > -np.inf else np.float32(0.0))
            if score > best[q, last]:
                offer(best, places, q, score, shift + j)


@compiled(reorder=True)
def sharpened_at(
    query_vector: Vectors, places: Ints, documents: Vectors, own: Ints,
    rows: tuple[NDArray[Any], ...], starts: tuple[Ints, ...], counts: tuple[Ints, ...],
    as_stored: bool, alpha: float, temperature: float, scores: Floats,
) -> None:  # fmt: skip
    """Score the documents at ``places`` for one query vector (dim,) by building their d*.

    ``documents[own[p]]`` is a document's vector, ``rows[m][starts[m][p]:][:counts[m][p]]`` are its
    query vectors of set m: unit rows, or with ``as_stored`` int8 rows of any length. Scores are NaN
    if d* nearly vanishes. Sets are the outer loop, because reading arrays from tuples takes time.
    """
    size, dim = len(places), len(query_vector)
    begin = np.zeros(size + 1, np.int64)
    for m in range(len(rows)):
        count = counts[m]
        for x in range(size):
            begin[x + 1] += count[places[x]]
    for x in range(size):
        begin[x + 1] += begin[x]
    weights = np.empty(begin[size], np.float32)
    scales = np.ones(begin[size], np.float32)
    at_row = begin[:size].copy()
    for m in range(len(rows)):
        stored, start, count = rows[m], starts[m], counts[m]
        for x in range(size):
            later = places[min(x + 2, size - 1)]
            prefetch_rows(stored, start[later], start[later] + count[later])
            prefetch_rows(documents, own[later], own[later] + 1)
            first = start[places[x]]
            for i in range(first, first + count[places[x]]):
                total = np.float32(0.0)
                if as_stored:
                    square = np.float32(0.0)
                    for c in range(dim):
                        value = np.float32(stored[i, c])
                        total += value * query_vector[c]
                        square += value * value
                    scale = np.float32(1.0) / np.sqrt(square) if square > 0 else np.float32(0.0)
                    scales[at_row[x]] = scale
                    total *= scale
                else:
                    for c in range(dim):
                        total += np.float32(stored[i, c]) * query_vector[c]
                weights[at_row[x]] = total
                at_row[x] += 1
    keep = np.float32(1.0 / max(1.0, abs(alpha)))
    add = np.float32(alpha / max(1.0, abs(alpha)))
    hard = temperature < HARD_MAX
    cooling = np.float32(0.0) if hard else np.float32(1.0 / temperature)
    built = np.empty((size, dim), np.float32)
    for x in range(size):
        n = begin[x + 1] - begin[x]
        share = keep if n else np.float32(1.0)
        row = own[places[x]]
        for c in range(dim):
            built[x, c] = share * documents[row, c]
        sims = weights[begin[x] : begin[x + 1]]
        peak = np.float32(-np.inf)
        for i in range(n):
            peak = max(peak, sims[i])
        weight_sum = np.float32(0.0)
        for i in range(n):
            if hard:
                sims[i] = np.float32(1.0) if sims[i] == peak else np.float32(0.0)
            else:
                sims[i] = exp_of((sims[i] - peak) * cooling)
            weight_sum += sims[i]
        for i in range(n):
            sims[i] *= add / weight_sum
    at_row = begin[:size].copy()
    for m in range(len(rows)):
        stored, start, count = rows[m], starts[m], counts[m]
        for x in range(size):
            first = start[places[x]]
            for i in range(first, first + count[places[x]]):
                share = weights[at_row[x]] * scales[at_row[x]]
                at_row[x] += 1
                for c in range(dim):
                    built[x, c] += share * np.float32(stored[i, c])
    for x in range(size):
        square = np.float32(0.0)
        along = np.float32(0.0)
        for c in range(dim):
            square += built[x, c] * built[x, c]
            along += built[x, c] * query_vector[c]
        clear = square > np.float32(1e-3)
        scores[x] = along / np.sqrt(square) if clear else np.float32(np.nan)


@compiled()
def count_term(totals: Counts, places: Ints, counts: Counts, living: Flags | None) -> int:
    """Add term counts to the documents' totals; return how many documents had no count before."""
    new = 0
    for at in range(len(places)):
        place = places[at]
        if living is None or living[place]:
            previous = totals[place]
            new += previous == 0
            totals[place] = min(np.uint16(previous) + np.uint16(counts[at]), MOST)
    return new


@compiled()
def add_term(scores: Floats, norms: Floats, totals: Counts, places: Ints, weight: float) -> None:
    """Add a term's BM25 score to the documents that contain it, and set their totals to 0."""
    for at in range(len(places)):
        place = places[at]
        frequency = np.float32(totals[place])
        if frequency:
            scores[place] += np.float32(weight) * frequency / (frequency + norms[place])
            totals[place] = 0
