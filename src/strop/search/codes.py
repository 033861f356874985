"""Vectors in few bits: who can be near, found by reading little.

Two codes. One has a byte for each value. The other has a bit, its sign, and knows how long the
vector is: a product with it is right to a few hundredths, which is enough to leave out most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints
from strop.common.compiled import bits_set, compiled, read_soon
from strop.search.kernels import HARD_MAX, NEARLY_ZERO, exp_of
from strop.search.rows import unit_floats
from strop.storage.vectors import stored_rows
from strop.types import Vectors

Bytes = NDArray[np.int8]
Signs = NDArray[np.uint64]
"""A bit for each value, 64 a word."""

_BINS = 512
_LOWEST = np.finfo(np.float32).min
_STEP = np.float32(0.586)
"""An asked vector's values are rounded to eight levels: three bits, each of which is a plane. This
step between them, a share of the values' spread, loses least where they are spread normally."""


def as_bytes(vectors: Vectors) -> tuple[Bytes, Floats]:
    """Return vectors (n, dim) as int8, and what a product with each is to be multiplied by."""
    codes = stored_rows(vectors, "int8")
    lengths = np.linalg.norm(codes.astype(np.float32), axis=1)
    scales = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return codes, scales


def words_for(dim: int) -> int:
    """Return how many words the signs of a vector take: four at least."""
    return max(4, -(-dim // 64))


def as_signs(vectors: Vectors) -> tuple[Signs, Floats]:
    """Return the signs of vectors (n, dim), of any length, and what products with them need.

    That is (n, 2) a factor and how many bits are set.
    """
    signs = np.zeros((len(vectors), words_for(vectors.shape[1])), np.uint64)
    about = np.empty((len(vectors), 2), np.float32)
    _write_signs(vectors, signs, about)
    return signs, about


@compiled()
def _write_signs(vectors: Vectors, signs: Signs, about: Floats) -> None:
    for r in range(len(vectors)):
        square = np.float32(0.0)
        total = np.float32(0.0)
        count = 0
        for c in range(vectors.shape[1]):
            value = vectors[r, c]
            square += value * value
            total += abs(value)
            if value > 0:
                signs[r, c // 64] |= np.uint64(1) << np.uint64(c % 64)
                count += 1
        # With s the signs of v, q.v = q.s v.v / s.v but for what of q and s is aslant to v.
        about[r, 0] = square / total if total > 0 else np.float32(0.0)
        about[r, 1] = count


def in_planes(asked: Vectors) -> tuple[Signs, Floats]:
    """Return an asked vector (dim,) as products with signs take it: planes of bits, and factors."""
    planes = np.zeros((words_for(len(asked)), 3), np.uint64)
    factors = np.zeros(3, np.float32)
    _write_planes(asked, planes, factors)
    return planes, factors


@compiled()
def _write_planes(asked: Vectors, planes: Signs, factors: Floats) -> None:
    dim = len(asked)
    square = np.float32(0.0)
    for value in asked:
        square += value * value
    step = max(_STEP * np.sqrt(square / np.float32(dim)), np.float32(1e-30))
    total = 0
    along = np.float32(0.0)
    for c in range(dim):
        level = min(max(int(asked[c] / step + np.float32(4.0)), 0), 7)
        along += asked[c] * (np.float32(level) - np.float32(3.5))
        total += level
        for p in range(3):
            planes[c // 64, p] |= np.uint64((level >> p) & 1) << np.uint64(c % 64)
    # What is left of the vector along itself, made up for.
    step = square / along if along > 0 else np.float32(0.0)
    # A sum of +q and -q by sign is twice that of the values whose bit is set, less all.
    factors[0] = np.float32(2.0) * step
    factors[1] = np.float32(-7.0) * step
    factors[2] = (np.float32(3.5 * dim) - np.float32(total)) * step


@compiled(inline=True)
def _levels(word: Any, low: Any, middle: Any, high: Any) -> Any:
    """Return the sum of an asked vector's levels where a word has its bits set, by planes.

    A float: sums of integers would be turned into vectors of them, for which counting bits is no
    single instruction.
    """
    one = np.uint64(1)
    count = bits_set(word & middle) + (bits_set(word & high) << one)
    return np.float32(np.int32(bits_set(word & low) + (count << one)))


@compiled(inline=True)
def _product(levels: Any, about: Floats, row: Any, factors: Floats) -> Any:
    """Return about the product of a row and an asked vector, by the sum of its levels."""
    total = factors[0] * levels + factors[1] * about[row, 1] + factors[2]
    return about[row, 0] * total


@compiled(inline=True)
def products_of_signs(
    signs: Signs, about: Floats, planes: Signs, factors: Floats, first: int, last: int,
    products: Floats, at: int,
) -> None:  # fmt: skip
    """Write about the products of the rows ``first:last`` with the asked vector, from ``at`` on."""
    # Indexes without a sign: one that may be below zero is looked at twice.
    begin, end, one = np.uint64(first), np.uint64(last), np.uint64(1)
    for row in range(begin, end, np.uint64(2)):
        other = min(row + one, end - one)  # two at a time: the planes are read once for both
        levels = also = np.float32(0.0)
        for w in range(len(planes)):
            low, middle, high = planes[w, 0], planes[w, 1], planes[w, 2]
            levels += _levels(signs[row, w], low, middle, high)
            also += _levels(signs[other, w], low, middle, high)
        to = np.uint64(at) + row - begin
        products[to] = _product(levels, about, row, factors)
        products[to + other - row] = _product(also, about, other, factors)


@compiled(inline=True)
def _differing(signs: Signs, row: Any, asked: Signs, first: Any) -> Any:
    """Return in how many bits a row (uint64) differs; ``first`` are four of the asked words."""
    bits = bits_set(signs[row, 0] ^ first[0]) + bits_set(signs[row, 1] ^ first[1])
    bits += bits_set(signs[row, 2] ^ first[2]) + bits_set(signs[row, 3] ^ first[3])
    for w in range(4, len(asked)):
        bits += bits_set(signs[row, w] ^ asked[w])
    return bits


@compiled()
def differing(signs: Signs, asked: Signs, rows: Ints, bits: Floats) -> None:
    """Write in how many bits some rows differ from the asked signs (words,)."""
    first = asked[0], asked[1], asked[2], asked[3]  # there are four at least
    for x in range(len(rows)):
        later = rows[min(x + 24, len(rows) - 1)]
        read_soon(signs, later, later + 1)
        bits[x] = _differing(signs, np.uint64(rows[x]), asked, first)


@compiled()
def alike(
    signs: Signs, about: Floats, asked: Signs, few: int, planes: Signs, factors: Floats,
    firsts: Ints, lasts: Ints, rows: Ints, products: Floats,
) -> int:  # fmt: skip
    """Write which rows of some ranges differ from the asked signs in few bits, and their products.

    Returns how many there are. If that is more than ``rows`` has room for, nothing is to be used.
    """
    # Read once, and before anything is written that might be the same memory.
    first = asked[0], asked[1], asked[2], asked[3]
    limit = np.uint64(few)
    found = 0
    for r in range(len(firsts)):
        # An index without a sign: one that may be below zero is looked at twice.
        for row in range(np.uint64(firsts[r]), np.uint64(lasts[r])):
            if _differing(signs, row, asked, first) <= limit:
                if found < len(rows):
                    rows[found] = row
                found += 1
    if found > len(rows):
        return found
    for x in range(found):
        later = rows[min(x + 24, found - 1)]
        read_soon(signs, later, later + 1)
        read_soon(about, later, later + 1)
        row = np.uint64(rows[x])
        levels = np.float32(0.0)
        for w in range(len(planes)):
            levels += _levels(signs[row, w], planes[w, 0], planes[w, 1], planes[w, 2])
        products[x] = _product(levels, about, row, factors)
    return found


@compiled()
def nearest_of_all(
    signs: Signs, about: Floats, planes: Signs, factors: Floats, k: int, most: int, margin: float
) -> tuple[Ints, Floats]:  # fmt: skip
    """Return the rows that lead by about their products, and these."""
    products = np.empty(len(signs), np.float32)
    products_of_signs(signs, about, planes, factors, 0, len(signs), products, 0)
    chosen = leading(products, k, most, margin)
    return chosen, products[chosen]


@compiled()
def _offer(best: Floats, value: float) -> None:
    """Put a value in its place among the best, largest first; the least goes."""
    at = len(best) - 1
    while at > 0 and best[at - 1] < value:
        best[at] = best[at - 1]
        at -= 1
    best[at] = value


@compiled()
def leading(values: Floats, k: int, most: int, margin: float) -> Ints:
    """Return where the values within ``margin`` of the k-th are, or about the largest ``most``.

    In order, as what stands there is best read. Those of -inf never are.
    """
    # Nobody can tell which values lead, and a processor that guesses loses more than it gains:
    # every place is written, and kept or written over.
    best = np.full(k, -np.inf, np.float32)
    for value in values:
        if value > best[k - 1]:
            _offer(best, value)
    least = max(best[k - 1] - np.float32(margin), _LOWEST)
    places = np.empty(len(values), np.int64)
    found = np.uint64(0)  # an index without a sign: one that may be below zero is looked at twice
    for at in range(np.uint64(len(values))):
        places[found] = at
        found += np.uint64(values[at] >= least)
    if found <= np.uint64(most):
        return places[:found]
    # Count how many fall where, from the highest down, instead of comparing them.
    below = np.empty(found, np.float32)
    for i in range(found):
        below[i] = best[0] - values[np.uint64(places[i])]
    scale = np.float32(_BINS - 1) / max(below.max(), np.float32(1e-12))
    steps = np.empty(found, np.int32)
    for i in range(found):
        steps[i] = np.int32(below[i] * scale)
    there = np.zeros(_BINS, np.int64)
    for i in range(found):
        there[np.uint64(steps[i])] += 1
    last, room = 0, most
    while there[last] <= room:
        room -= there[last]
        last += 1
    kept = np.uint64(0)
    for i in range(found):
        places[kept] = places[i]
        fits = (steps[i] == last) & (room > 0)
        room -= fits
        kept += np.uint64((steps[i] < last) | fits)
    return places[:kept]


@compiled(reorder=True)
def parts_of_documents(
    rows: Vectors, own: Ints, starts: Ints, counts: Ints, whole: Vectors, means: Floats,
    apart: Vectors,
) -> None:  # fmt: skip
    """Take documents apart: d + mean of q_i, and how d and each q_i differ from their means.

    As in ``kernels.gram_of_documents``. Writes ``whole`` (n, dim) as unit rows, ``means`` (n, 2) of
    d.q_i and of q_i.q_j for i != j (zeros where there are none), and into ``apart`` for each
    document first (d - mean of q_i) / 2, then each q_i less that mean.
    """
    dim = rows.shape[1]
    mean = np.empty(dim, np.float32)
    at = 0
    for j in range(len(own)):
        n = counts[:, j].sum()
        mean[:] = 0
        squares = np.float32(0.0)
        for m in range(len(starts)):
            for i in range(starts[m, j], starts[m, j] + counts[m, j]):
                for c in range(dim):
                    mean[c] += rows[i, c]
                    squares += rows[i, c] * rows[i, c]
        share = np.float32(1.0) / np.float32(max(1, n))
        along = np.float32(0.0)
        square = np.float32(0.0)
        for c in range(dim):
            square += mean[c] * mean[c]
            mean[c] *= share
            along += rows[own[j], c] * mean[c]
            whole[j, c] = rows[own[j], c] + mean[c]
            apart[at, c] = np.float32(0.5) * (rows[own[j], c] - mean[c])
        at += 1
        for m in range(len(starts)):
            for i in range(starts[m, j], starts[m, j] + counts[m, j]):
                for c in range(dim):
                    apart[at, c] = rows[i, c] - mean[c]
                at += 1
        means[j, 0] = along
        means[j, 1] = (square - squares) / max(1, n * (n - 1))
    unit_floats(whole, whole)


@compiled(reorder=True)
def products_of_bytes(
    codes: Bytes, scales: Floats, rows: Ints, asked: Vectors, products: Floats
) -> None:
    """Write the cosines of some rows with one asked vector (dim,)."""
    for x in range(len(rows)):
        later = rows[min(x + 8, len(rows) - 1)]
        read_soon(codes, later, later + 1)
        row = codes[rows[x]]
        total = np.float32(0.0)
        for c in range(len(asked)):
            total += np.float32(row[c]) * asked[c]
        products[x] = total * scales[rows[x]]


@compiled(reorder=True)
def rough_scores(
    planes: Signs, factors: Floats, rows: Ints, near: Floats, means: Floats, apart: Signs,
    about: Floats, begin: Ints, alpha: float, temperature: float, rough: Floats,
) -> None:  # fmt: skip
    """Write about the cosine of the asked vector and d* for the documents of ``rows``.

    ``near`` are its cosines with c = d + mean of q_i. Where alpha is 1, q.d* = q.c + sum of
    w_i q.(q_i - mean), and the softmax does not mind that the mean is taken off: signs of the
    differences are enough. The length of d* follows to a percent from the means of d.q_i and
    q_i.q_j.
    """
    size = len(rows)
    keep = np.float32(1.0 / max(1.0, abs(alpha)))
    add = np.float32(alpha / max(1.0, abs(alpha)))
    skip = 1 if keep == add else 0  # what sets the document itself apart is not needed
    total = 0
    for x in range(size):
        total += begin[rows[x] + 1] - begin[rows[x]] - skip
    sims = np.empty(total, np.float32)
    at = 0
    for x in range(size):
        later = rows[min(x + 4, size - 1)]
        read_soon(apart, begin[later], begin[later + 1])
        read_soon(about, begin[later], begin[later + 1])
        first, last = begin[rows[x]] + skip, begin[rows[x] + 1]
        products_of_signs(apart, about, planes, factors, first, last, sims, at)
        at += last - first
    # One peak for all documents, not one for each: all weights are made together, several at a
    # time. Where it is very cold, those far below the peak are too small for float32.
    hard = temperature < HARD_MAX
    cooling = np.float32(0.0) if hard else np.float32(1.0 / temperature)
    peak = np.float32(-np.inf)
    for i in range(total):
        peak = max(peak, sims[i])
    weights = np.empty(total, np.float32)
    for i in range(total):
        weights[i] = exp_of((sims[i] - peak) * cooling)
    at = 0
    for x in range(size):
        n = begin[rows[x] + 1] - begin[rows[x]] - 1
        own = np.float32(0.0) if skip else sims[at]
        at += 1 - skip
        if n == 0:
            rough[x] = near[x]
            continue
        whole = pull = squares = np.float32(0.0)
        for i in range(at, at + n):
            w = weights[i]
            whole += w
            pull += w * sims[i]
            squares += w * w
        if hard:
            pull, whole, squares = sims[at : at + n].max(), np.float32(1.0), np.float32(1.0)
        elif whole < np.float32(1e-12):
            own_peak = sims[at : at + n].max()
            whole = pull = squares = np.float32(0.0)
            for i in range(at, at + n):
                w = np.float32(exp_of((sims[i] - own_peak) * cooling))
                whole += w
                pull += w * sims[i]
                squares += w * w
        at += n
        squares /= whole * whole
        along, beside = means[rows[x], 0], means[rows[x], 1]
        square = np.float32(1.0) + np.float32(2.0) * along
        square += (np.float32(1.0) + np.float32(n - 1) * beside) / np.float32(n)
        half = np.float32(0.5) * near[x] * np.sqrt(max(square, np.float32(0.0)))
        over = (keep + add) * half + (keep - add) * own + add * pull / whole
        under = keep * keep + np.float32(2.0) * keep * add * along
        under += add * add * (squares + (np.float32(1.0) - squares) * beside)
        rough[x] = over / np.sqrt(max(under, np.float32(NEARLY_ZERO)))


@compiled()
def likely_best(
    asked: Vectors, planes: Signs, factors: Floats, rows: Ints, codes: Bytes, scales: Floats,
    means: Floats, apart: Signs, about: Floats, begin: Ints, alpha: float, temperature: float,
    k: int, most: tuple[int, int, int, int], margins: tuple[float, float, float, float],
) -> Ints:  # fmt: skip
    """Return those of ``rows`` that are likely among the best k.

    First the nearest by their bytes are chosen, then of these the best by ``rough_scores``; how
    many is said by ``candidates.Effort``.
    """
    near = np.empty(len(rows), np.float32)
    products_of_bytes(codes, scales, rows, asked, near)
    chosen = leading(near, k, most[2], margins[2])
    rows, near = rows[chosen], near[chosen]
    rough = np.empty(len(rows), np.float32)
    rough_scores(planes, factors, rows, near, means, apart, about, begin, alpha, temperature, rough)
    return rows[leading(rough, k, most[3], margins[3])]
