"""Compiled arithmetic: Gram matrices, sharpened scores, top k. No I/O, no state.

The sharpened document ``d* = d + alpha * sum_i w_i q_i`` is never built. With ``t = q.d``,
``s_i = q.q_i``, ``u_i = d.q_i`` and ``G_ij = q_i.q_j``::

    cosine(q, d*) = (t + alpha * sum w_i s_i) / sqrt(d.d + 2 alpha * sum w_i u_i + alpha^2 w'Gw)

``u`` and ``G`` do not depend on the user's query, so each document needs its ``s`` only.

Kernels release the GIL and run on one thread; callers split work between threads. (Numba's
own parallel loops abort the process when two Python threads enter them at once.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.compiled import compiled
from strop.types import Vectors

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# Below this squared length d* nearly vanishes, and the Gram form has too few digits left.
_NEARLY_ZERO = 0.05
# No two float32 cosines differ by so little: below, softmax is the maximum.
_HARD_MAX = 1e-12


def unit_rows(vectors: NDArray[np.floating]) -> Vectors:
    """Return ``vectors`` (n, dim) as float32 with rows of length one; zero rows stay zero."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, None]
    unit: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return unit


@compiled(reorder=True)
def gram_of_documents(
    documents: Vectors, queries: Vectors, slots: Ints, offsets: Ints, self_dots: Floats,
    doc_dots: Floats, grams: Floats, gram_offsets: Ints, first: int, last: int,
) -> None:  # fmt: skip
    """Fill what is fixed for each of the documents ``first:last`` of a block.

    ``queries[slots[offsets[j]:offsets[j+1]]]`` are document j's query vectors. Written are
    ``self_dots[j] = d.d``, ``doc_dots`` = d.q_i for each slot, and the lower triangle of its
    Gram matrix, row by row, from ``grams[gram_offsets[j]]``.
    """
    dim = documents.shape[1]
    for j in range(first, last):
        total = np.float32(0.0)
        for c in range(dim):
            total += documents[j, c] * documents[j, c]
        self_dots[j] = total
        place = gram_offsets[j]
        for a in range(offsets[j], offsets[j + 1]):
            row = slots[a]
            total = np.float32(0.0)
            for c in range(dim):
                total += documents[j, c] * queries[row, c]
            doc_dots[a] = total
            for b in range(offsets[j], a + 1):
                other = slots[b]
                total = np.float32(0.0)
                for c in range(dim):
                    total += queries[row, c] * queries[other, c]
                grams[place] = total
                place += 1


@compiled(reorder=True)
def sharpened_scores(
    plain: Floats, sims: Floats, slots: Ints, offsets: Ints, self_dots: Floats, doc_dots: Floats,
    grams: Floats, gram_offsets: Ints, alpha: float, temperature: float, scores: Floats,
    first: int, last: int,
) -> None:  # fmt: skip
    """Write ``scores[:, first:last]``: cosine of each asked query with each sharpened document.

    plain (documents, asked) = d.q; sims (rows, asked) = q_i.q; the rest as in
    ``gram_of_documents``. scores is (asked, documents). Where d* nearly vanishes the score is
    NaN: ``cosine_with_sharpened`` has the digits for it.
    """
    n_asked = plain.shape[1]
    widest = 1
    for j in range(first, last):
        widest = max(widest, offsets[j + 1] - offsets[j])
    weights = np.empty((widest, n_asked), np.float32)
    peak = np.empty(n_asked, np.float32)
    total = np.empty(n_asked, np.float32)
    pull = np.empty(n_asked, np.float32)
    along = np.empty(n_asked, np.float32)
    square = np.empty(n_asked, np.float32)
    inner = np.empty(n_asked, np.float32)
    # Scaled so that neither alpha nor its square can overflow.
    keep = 1.0 / max(1.0, abs(alpha))
    add = alpha * keep
    hard = temperature < _HARD_MAX
    cooling = np.float32(0.0) if hard else np.float32(1.0 / temperature)
    for j in range(first, last):
        begin, n = offsets[j], offsets[j + 1] - offsets[j]
        if n == 0:
            for q in range(n_asked):
                length = np.sqrt(self_dots[j])
                scores[q, j] = plain[j, q] / length if length > 0 else np.float32(0.0)
            continue
        peak[:] = -np.inf
        for i in range(n):
            row = slots[begin + i]
            for q in range(n_asked):
                peak[q] = max(peak[q], sims[row, q])
        total[:] = 0
        pull[:] = 0
        along[:] = 0
        square[:] = 0
        place = gram_offsets[j]
        for i in range(n):
            row = slots[begin + i]
            u = doc_dots[begin + i]
            if hard:
                for q in range(n_asked):
                    weights[i, q] = 1.0 if sims[row, q] == peak[q] else 0.0
            else:
                for q in range(n_asked):
                    weights[i, q] = np.exp((sims[row, q] - peak[q]) * cooling)
            for q in range(n_asked):
                w = weights[i, q]
                total[q] += w
                pull[q] += w * sims[row, q]
                along[q] += w * u
            inner[:] = 0
            for other in range(i):
                g = grams[place + other]
                for q in range(n_asked):
                    inner[q] += g * weights[other, q]
            g = grams[place + i]
            for q in range(n_asked):
                w = weights[i, q]
                square[q] += w * (2 * inner[q] + g * w)
            place += i + 1
        for q in range(n_asked):
            z = 1.0 / total[q]
            top = keep * plain[j, q] + add * z * pull[q]
            under = keep * keep * self_dots[j] + 2 * keep * add * z * along[q]
            under += add * add * z * z * square[q]
            scores[q, j] = top / np.sqrt(under) if under > _NEARLY_ZERO else np.nan


def cosine_with_sharpened(
    asked: Vectors, document: Vectors, queries: Vectors, alpha: float, temperature: float
) -> float:
    """Return cosine(asked, d*) by building d* in double precision: slow and literal.

    asked (dim,), document (dim,), queries (n, dim), of unit length or zero. Zero where d* is.
    """
    built, scale = document.astype(np.float64), 1.0
    if len(queries):
        rows, scale = queries.astype(np.float64), max(1.0, abs(alpha))
        built = built + alpha * (softmax(rows @ asked.astype(np.float64), temperature) @ rows)
    length = float(np.linalg.norm(built))
    return float(asked @ built) / length if length > 1e-10 * scale else 0.0


def softmax(sims: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Return softmax(sims / temperature); temperature 0 shares the weight among the largest."""
    values = np.asarray(sims, dtype=np.float64)
    weights: NDArray[np.float64]
    if temperature < _HARD_MAX:  # largest as float32 sees it, like the kernel
        single = values.astype(np.float32)
        weights = (single == single.max()).astype(np.float64)
    else:
        weights = np.exp((values - values.max()) / temperature)
    weights /= weights.sum()
    return weights


@compiled()
def maxsim_scores(
    plain: Floats, sims: Floats, slots: Ints, offsets: Ints, scores: Floats, first: int, last: int
) -> None:
    """Write ``scores[:, first:last]`` = q.d + max_i q.q_i (q.d for a document with no queries)."""
    for j in range(first, last):
        for q in range(plain.shape[1]):
            best = np.float32(0.0)
            if offsets[j + 1] > offsets[j]:
                best = sims[slots[offsets[j]], q]
                for a in range(offsets[j] + 1, offsets[j + 1]):
                    best = max(best, sims[slots[a], q])
            scores[q, j] = plain[j, q] + best


@compiled()
def keep_best(
    scores: Floats, shift: int, best: Floats, places: Ints, first: int, last: int
) -> None:
    """Merge a block's scores (asked, documents) into the best k so far of queries ``first:last``.

    ``best`` (asked, k) is sorted, largest first, and ``places`` says which document each is:
    its column plus ``shift``. Of equal scores the earlier document wins.
    """
    k = best.shape[1]
    for q in range(first, last):
        worst = best[q, k - 1]
        for j in range(scores.shape[1]):
            score = scores[q, j]
            if score > worst:
                at = k - 1
                while at > 0 and best[q, at - 1] < score:
                    best[q, at] = best[q, at - 1]
                    places[q, at] = places[q, at - 1]
                    at -= 1
                best[q, at] = score
                places[q, at] = j + shift
                worst = best[q, k - 1]
