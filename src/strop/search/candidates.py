"""Two-stage search: codes of each document tell who can be among the best, these are scored.

The field is narrowed step by step. First by the sign bits of ``d + mean of q_i``, the sharpened
document at an infinite temperature, which are few and read in order. Then by that vector in bytes.
Then with the sign bits of what sets each query apart from the mean, which give a score right to a
few hundredths. The likely best are scored with all their queries.

The candidates are a cache. With them stands, for each document, which vectors they were made from
(by ``Spans.made``, which compaction leaves as it is). A document that has others by now, or came
later, is not trusted to them, and is scanned instead.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints, ranges
from strop.common.threads import in_parts, on_each_thread, one_blas_thread, pool
from strop.errors import IndexDamaged
from strop.methods import METHODS, Method
from strop.references.cells import nearest_centres, rough_centres
from strop.search import kernels
from strop.search.codes import (
    Bytes,
    Signs,
    alike,
    as_bytes,
    as_signs,
    differing,
    in_planes,
    leading,
    likely_best,
    nearest_of_all,
    parts_of_documents,
    products_of_bytes,
    rough_scores,
    words_for,
)
from strop.search.layout import Layout
from strop.storage.sidecar import read_arrays, write_arrays
from strop.types import Vectors

CODES, CANDIDATES_FORMAT = ".codes", 4
"""The ending of the second file, and the number of the format of both."""
TWO_STAGE_FROM = 20_000
"""Documents from which a search looks at candidates only; fewer are scanned in milliseconds."""
_FOLLOW = 0.1
"""The candidates follow when this share of the documents is not among them as they are."""
_MANY = 200_000
"""Documents above which their signs are sorted into cells."""
_PIECE = 100_000
"""Rows that a thread reads at a time; fewer than two of these are read before others wake up."""
_NONE = np.empty(0, np.int64), np.empty(0, np.float32)
_SAMPLED = 4096
"""Rows by which it is found out in how few bits the nearest of near cells differ."""
_CENTRE_FROM = 30_000
"""Documents whose mean is taken for that of all."""
_EACH, _ROUNDS = 20, 6
"""Documents by which a cell is found, and rounds."""
_LARGE = ("codes", "signs", "apart", "about_apart")
"""The arrays that have a file of their own, and are read as they are needed."""
MEASURED_WITH = 512
"""Stored queries by which it is found out how much must be looked at."""
_TOO_FEW = 100
"""Stored queries that tell nothing of the few in a thousand that are hard to find."""
_MEASURED_FOR = METHODS["sharp"]
_MEASURED_K = 10
_LOST = ((0.0005, 0.002, 0.002, 0.001), (0.003, 0.003, 0.004, 0.003), (0.001, 0.001))
"""Shares of the best that may be lost to each margin, each number, and each share of ``Effort``."""
_LEAST_SHARE = 0.5
"""No share is below this: users may ask for what no stored query is like."""
_MOST = 4
"""How many times the usual numbers are looked at to find out how many must be."""


@dataclass(frozen=True)
class Effort:
    """How many are looked at to find the best k.

    Read are cells within the first margin of the best one, at most the first share of all, and of
    their rows those that differ least, ``most[0]``, at most the second share. The other numbers
    and ``margins`` (below the k-th) are by signs, by bytes and by the estimate; both hold.
    """

    k: int
    margins: tuple[float, float, float, float]
    most: tuple[int, int, int, int]
    shares: tuple[float, float]

    @classmethod
    def of(cls, k: int, measured: Floats, known: bool = True) -> Effort:
        """Return the effort for the best k.

        ``measured`` are four margins, what to multiply the usual numbers by, and two shares. They
        were found out for the best ten of one method. For more, only the numbers hold, if they are
        not below the usual ones; where it is not known that they do, twice as much is looked at.
        """
        margins, times, shares = measured[:4], measured[4:8], measured[8:]
        if not known or k > _MEASURED_K:
            times = np.maximum(times, 1) * (1 if known else 2)
            margins, shares = _USUAL[:4], _USUAL[8:]
        k = max(k, _MEASURED_K)  # margins below the first are no margins below the tenth
        usual = 14_000 + 200 * k, 1400 + 20 * k, 600 + 20 * k, 34 + 3 * k
        first, second, third, fourth = margins.tolist()
        a, b, c, d = np.rint(times * usual).astype(np.int64).tolist()
        cells, rows = shares.tolist()
        return cls(k, (first, second, third, fourth), (a, b, c, d), (cells, rows))


_USUAL = np.array([np.inf] * 4 + [1] * 6, np.float32)
_MUCH = np.array([np.inf] * 4 + [_MOST] * 4 + [1] * 2, np.float32)


def taken_apart(layout: Layout, block: int) -> tuple[Vectors, Floats, Vectors]:
    """Return for a block's documents what ``codes.parts_of_documents`` writes."""
    first, last = layout.blocks[block]
    whole = np.empty((last - first, layout.dim), np.float32)
    means = np.empty((last - first, 2), np.float32)
    rows = layout.offsets[last] - layout.offsets[first] + last - first
    apart = np.empty((rows, layout.dim), np.float32)
    parts_of_documents(*layout.block(block), whole, means, apart)
    return whole, means, apart


@dataclass(frozen=True)
class Candidates:
    """Documents in few bits, a row each.

    ``d + mean of q_i`` as bytes with their scales and, less the ``centre`` of all, as signs;
    ``apart[begin[row]:begin[row + 1]]``, the signs of what sets the document and its queries apart
    from the mean; ``means`` of their products, as ``codes.rough_scores`` takes them; what is
    ``about_`` signs is as ``codes.as_signs`` says. The signs are sorted by cell: ``order`` has
    their rows, ``edges`` (parts, cells + 1) tells where in a part a cell begins and ends.
    ``measured`` is what effort is enough, as ``Effort.of`` takes it.
    ``made_from`` (n, columns) says which document and which vectors of it a row is from.
    """

    codes: Bytes
    scales: Floats
    signs: Signs
    about_signs: Floats
    order: Ints
    edges: Ints
    cells: Vectors
    centre: Vectors
    apart: Signs
    about_apart: Floats
    begin: Ints
    means: Floats
    measured: Floats
    made_from: Ints
    sets: list[str]

    @classmethod
    def make(
        cls, layout: Layout, made_from: Ints, sets: list[str], like: Candidates | None = None
    ) -> Candidates:
        """Make the candidates of all documents of a layout, to stand behind others like them."""
        size, words = layout.size, words_for(layout.dim)
        begin = layout.offsets + np.arange(size + 1)
        codes, scales = np.empty((size, layout.dim), np.int8), np.empty(size, np.float32)
        signs, apart = (np.empty((rows, words), np.uint64) for rows in (size, begin[-1]))
        about = [np.empty((rows, 2), np.float32) for rows in (size, begin[-1])]
        means, cell_of = np.empty((size, 2), np.float32), np.empty(size, np.int64)
        if like is not None:
            centre, cells = like.centre, like.cells
        else:
            centre, cells = _centre_and_cells(layout)

        def fill(block: int) -> None:
            first, last = layout.blocks[block]
            whole, means[first:last], differences = taken_apart(layout, block)
            codes[first:last], scales[first:last] = as_bytes(whole)
            signs[first:last], about[0][first:last] = as_signs(whole - centre)
            cell_of[first:last] = nearest_centres(whole, cells)
            part = slice(begin[first], begin[last])
            apart[part], about[1][part] = as_signs(differences)

        with one_blas_thread():
            list(pool().map(fill, range(len(layout.blocks))))
        order = np.argsort(cell_of, kind="stable")
        edges = np.searchsorted(cell_of[order], np.arange(len(cells) + 1))[None]
        measured = _USUAL if like is None else like.measured
        made = cls(
            codes, scales, signs[order], about[0][order], order, edges, cells, centre, apart,
            about[1], begin, means, measured, made_from, sets,
        )  # fmt: skip
        return made if like is not None else replace(made, measured=made._measure(layout))

    def _measure(self, layout: Layout) -> Floats:
        """Return what effort finds the best of stored queries, as ``Effort.of`` takes it.

        The document that a query is from does not count; it would be too easy to find.
        """
        asked, own = layout.sample_queries(MEASURED_WITH)
        if len(asked) < _TOO_FEW:
            return _USUAL
        k, shape = _MEASURED_K, (len(asked), _MEASURED_K)
        two, effort = TwoStage(self, layout, self.made_from), Effort.of(k, _MUCH)
        # Of each of the best: how far below, how far down, how far down as a share.
        below, last, share = np.empty((4, *shape)), np.ones((4, *shape)), np.ones((2, *shape))
        found = np.empty(shape, np.int64)

        def narrow_down(first: int, end: int) -> None:
            for q in range(first, end):
                planes = in_planes(asked[q])
                rows, by_signs = two.nearest(asked[q], planes, effort, False)
                others = rows != own[q]
                rows, by_signs = rows[others], by_signs[others]
                near, rough = np.empty_like(by_signs), np.empty_like(by_signs)
                products_of_bytes(self.codes, self.scales, rows, asked[q], near)
                rough_scores(
                    *planes, rows, near, self.means, self.apart, self.about_apart, self.begin,
                    _MEASURED_FOR.alpha, _MEASURED_FOR.temperature, rough,
                )  # fmt: skip
                likely = np.argsort(-rough)[: effort.most[3]]
                scores = layout.rescore(asked[q], rows[likely], _MEASURED_FOR)
                best = likely[np.argsort(-scores)[:k]]
                found[q] = rows[best]
                for stage, values in enumerate((by_signs, near, rough), 1):
                    ordered = np.sort(values)
                    below[stage, q] = ordered[-k] - values[best]
                    last[stage, q] = len(ordered) - np.searchsorted(ordered, values[best])
                below[0, q], share[0, q] = two.how_near_cells_are(asked[q], found[q])

        def enough(of: NDArray[Any], lost: tuple[float, ...]) -> Floats:
            each = zip(of, lost, strict=True)
            return np.array([np.quantile(one, 1 - less, method="higher") for one, less in each])

        def count_bits(first: int, end: int) -> None:
            for q in range(first, end):
                last[0, q], read = two.how_few_bits_differ(asked[q], found[q], cells)
                share[1, q] = last[0, q] / read

        with one_blas_thread():
            in_parts(len(asked), narrow_down)
            margins = np.maximum(enough(below, _LOST[0]), 0)
            if two.many_cells:
                of_cells = float(enough(share[:1], _LOST[2][:1])[0])
                cells = float(margins[0]), max(of_cells, _LEAST_SHARE)
                in_parts(len(asked), count_bits)
        times = enough(last, _LOST[1]) / Effort.of(k, _USUAL).most
        # Where that is all that was looked at, nobody knows how far down they can be.
        margins[1:][times[1:] >= _MOST] = np.inf
        shares = np.maximum(enough(share, _LOST[2]), _LEAST_SHARE)
        return np.concatenate([margins, times, shares]).astype(np.float32)

    def and_more(self, other: Candidates) -> Candidates:
        """Return these and others, made to stand behind them."""

        def both(name: str, shift: int = 0) -> Any:
            theirs = getattr(other, name)
            return np.concatenate([getattr(self, name), theirs + shift if shift else theirs])

        size = len(self.order)
        begin = np.concatenate([self.begin[:-1], self.begin[-1] + other.begin])
        return replace(
            self, codes=both("codes"), scales=both("scales"), signs=both("signs"),
            about_signs=both("about_signs"), order=both("order", size), edges=both("edges", size),
            apart=both("apart"), about_apart=both("about_apart"), begin=begin,
            means=both("means"), made_from=both("made_from"),
        )  # fmt: skip

    @classmethod
    def open(cls, path: Path) -> Candidates:
        """Open what ``write`` wrote; the large arrays are read as they are needed."""
        found = read_arrays(path)
        try:
            if found is None:
                raise ValueError("it is missing or not what was written")
            arrays, about = found
            if about["format"] != CANDIDATES_FORMAT:
                raise ValueError(f"it has format {about['format']}, not {CANDIDATES_FORMAT}")
            large = read_arrays(codes_file(path), trusted=True)
            if large is None:
                raise ValueError("its codes are missing or not what was written")
            signs = np.array(large[0].pop("signs"))  # all of these are read, and from memory
            return cls(**arrays, signs=signs, **large[0], sets=about["sets"])
        except (ValueError, KeyError, TypeError) as error:
            raise IndexDamaged(f"the candidates {path} cannot be used: {error}") from error

    def write(self, path: Path) -> None:
        """Write the large arrays to one new file and the rest to another beside it."""
        small = [part.name for part in fields(self) if part.name not in (*_LARGE, "sets")]
        arrays = [{name: getattr(self, name) for name in names} for names in (_LARGE, small)]
        write_arrays(codes_file(path), arrays[0], {}, sync=True)
        write_arrays(path, arrays[1], {"format": CANDIDATES_FORMAT, "sets": self.sets})


class _Rows(NamedTuple):
    """Signs and what is about them, whose they are, and cells with where theirs begin and end."""

    signs: Signs
    about: Floats
    order: Ints
    cells: Vectors
    firsts: Ints
    lasts: Ints


class TwoStage:
    """Candidates beside the layout they serve: who of it is there as they are, who is not."""

    def __init__(self, candidates: Candidates, layout: Layout, made_from: Ints) -> None:
        """Find the documents of a layout, ``made_from`` (n, columns), among candidates."""
        known = candidates.made_from
        place_of = np.full(len(known), -1, np.int64)  # by row; -1 where it is gone or changed
        if len(known) and len(made_from) and known.shape[1] == made_from.shape[1]:
            # The first column is a document's number, ascending in a layout.
            at = np.minimum(np.searchsorted(made_from[:, 0], known[:, 0]), len(made_from) - 1)
            same = (made_from[at] == known).all(axis=1)
            place_of[same] = at[same]
        there = np.zeros(layout.size, bool)
        there[place_of[place_of >= 0]] = True
        self.candidates, self.layout, self.place_of = candidates, layout, place_of
        self.tail = np.flatnonzero(~there)
        self._tail_layout = layout.only(self.tail)
        self._efforts: dict[tuple[int, bool], Effort] = {}

    @cached_property
    def _here(self) -> _Rows:
        """The signs of documents that are here as they are: who is gone stands in for nobody."""
        of, edges = self.candidates, self.candidates.edges
        signs, about, order = of.signs, of.about_signs, of.order
        here = self.place_of[order] >= 0
        if not here.all():
            signs, about, order = signs[here], about[here], order[here]
            edges = np.concatenate([[0], np.cumsum(here)])[edges]
        # Cells of copies, or of those who are gone, may have nobody.
        full = (edges[:, 1:] > edges[:, :-1]).any(axis=0)
        cells = np.ascontiguousarray(of.cells[full])
        return _Rows(signs, about, order, cells, edges[:, :-1][:, full], edges[:, 1:][:, full])

    @property
    def behind(self) -> bool:
        """Whether so much has changed that the candidates should follow."""
        return len(self.tail) > _FOLLOW * self.layout.size

    @property
    def worn(self) -> bool:
        """Whether so much of the candidates is of no use that they should be made anew."""
        return int((self.place_of < 0).sum()) > 0.3 * len(self.place_of)

    @property
    def outgrown(self) -> bool:
        """Whether there are twice the documents that it was measured with."""
        return self.layout.size > 2 * int(self.candidates.edges[0, -1])

    @property
    def many_cells(self) -> bool:
        """Whether the signs are sorted into cells."""
        return len(self.candidates.cells) > 1

    def search(self, asked: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each asked vector: scores and places, (n, k)."""
        best = np.empty((len(asked), k), np.float32)
        places = np.empty((len(asked), k), np.int64)
        late = self._tail_layout.scan(asked, method, k) if len(self.tail) else None
        wanted = min(k, self.layout.size - len(self.tail))
        unanswered: list[int] = []

        def work(first: int, last: int) -> None:
            for q in range(first, last):
                scores, mine = self._score(asked[q], method, k, len(asked) == 1)
                if len(scores) < wanted:
                    unanswered.append(q)
                    continue
                if late is not None:
                    scores = np.concatenate([scores, late[0][q]])
                    mine = np.concatenate([mine, self.tail[late[1][q]]])
                # Of equal scores the earlier document comes first.
                order = np.lexsort((mine, -scores))[:k]
                best[q], places[q] = scores[order], mine[order]

        if len(asked) == 1:  # the threads share it
            work(0, 1)
        else:
            in_parts(len(asked), work)
        for q in unanswered:
            exact = self.layout.scan(asked[q : q + 1], method, k)
            best[q], places[q] = exact[0][0], exact[1][0]
        return best, places

    def _score(self, asked: Vectors, method: Method, k: int, alone: bool) -> tuple[Floats, Ints]:
        """Return the scores of the likely best for one asked vector (dim,), and their places."""
        of = self.candidates
        # The colder, and the more there is to add, the further from d + mean are the best; where
        # there is little to add, d is.
        known = method.temperature >= _MEASURED_FOR.temperature
        known &= _MEASURED_FOR.alpha / 2 <= method.alpha <= _MEASURED_FOR.alpha
        effort = self._efforts.get((k, known))
        if effort is None:
            effort = self._efforts[k, known] = Effort.of(k, of.measured, known)
        planes = in_planes(asked)
        rows, _ = self.nearest(asked, planes, effort, alone)
        chosen = likely_best(
            asked, *planes, rows, of.codes, of.scales, of.means, of.apart, of.about_apart,
            of.begin, method.alpha, method.temperature, effort.k, effort.most, effort.margins,
        )  # fmt: skip
        places = self.place_of[chosen]
        return self.layout.rescore(asked, places, method), places

    def nearest(
        self, asked: Vectors, planes: tuple[Signs, Floats], effort: Effort, alone: bool
    ) -> tuple[Ints, Floats]:
        """Return the rows whose signs are nearest to an asked vector (dim,), and how near."""
        here, k, most, margin = self._here, effort.k, effort.most[1], effort.margins[1]
        if not self.many_cells:
            at, near = nearest_of_all(here.signs, here.about, *planes, k, most, margin)
            return here.order[at], near
        if not len(here.cells):
            return _NONE
        at, near = self._alike(asked, planes, effort, alone)
        chosen = leading(near, k, most, margin)
        return here.order[at[chosen]], near[chosen]

    def how_near_cells_are(self, asked: Vectors, rows: Ints) -> tuple[Floats, Floats]:
        """Return for the cells of rows how far below the best one they are, and how far down."""
        by_cell = self._by_cell(asked)
        theirs = by_cell[self._cell_of[rows]]
        return by_cell.max() - theirs, np.mean(by_cell >= theirs[:, None], axis=1)

    def how_few_bits_differ(
        self, asked: Vectors, rows: Ints, cells: tuple[float, float]
    ) -> tuple[Ints, int]:
        """Return how many of the rows that are read differ in no more bits than some rows do.

        Also returns how many are read; ``cells`` are a margin and a share.
        """
        firsts, lasts = self._ranges(asked, *cells)
        mine, read = as_signs(asked[None])[0][0], ranges(firsts, lasts - firsts)
        bits, theirs = np.empty(len(read), np.float32), np.empty(len(rows), np.float32)
        differing(self._here.signs, mine, read, bits)
        differing(self._here.signs, mine, self._at[rows], theirs)
        up_to = np.cumsum(np.bincount(bits.astype(np.int64), minlength=64 * len(mine) + 1))
        return up_to[theirs.astype(np.int64)], len(read)

    @cached_property
    def _at(self) -> Ints:
        """Where among the signs a row stands."""
        at = np.full(len(self.place_of), -1, np.int64)
        at[self._here.order] = np.arange(len(self._here.order))
        return at

    @cached_property
    def _cell_of(self) -> Ints:
        cell_of = np.full(len(self.place_of), -1, np.int64)
        sizes = self._here.lasts - self._here.firsts
        cells = np.tile(np.arange(len(self._here.cells)), len(sizes))
        cell_of[self._here.order] = np.repeat(cells, sizes.ravel())
        return cell_of

    def _by_cell(self, asked: Vectors) -> Floats:
        cells = self._here.cells
        by_cell = np.empty((len(cells), 1), np.float32)
        kernels.products_of_few(cells, asked[None], by_cell)  # BLAS would wake its threads
        return by_cell[:, 0]

    def _ranges(self, asked: Vectors, margin: float, share: float) -> tuple[Ints, Ints]:
        """Return where the signs of near cells begin and end."""
        by_cell = self._by_cell(asked)
        least = by_cell.max() - margin
        if share < 1:
            first = min(round(len(by_cell) * (1 - share)), len(by_cell) - 1)
            least = max(least, np.partition(by_cell, first)[first])
        cells = np.flatnonzero(by_cell >= least)
        return self._here.firsts[:, cells].ravel(), self._here.lasts[:, cells].ravel()

    def _alike(
        self, asked: Vectors, planes: tuple[Signs, Floats], effort: Effort, alone: bool
    ) -> tuple[Ints, Floats]:
        """Return where in near cells signs differ least from the asked vector's, and how near."""
        signs, about = self._here.signs, self._here.about
        firsts, lasts = self._ranges(asked, effort.margins[0], effort.shares[0])
        ends = np.cumsum(lasts - firsts)
        total = int(ends[-1])
        most = max(effort.most[1], min(effort.most[0], int(total * effort.shares[1])))
        mine = as_signs(asked[None])[0][0]
        few = signs.shape[1] * 64
        if total > most:
            picked = np.arange(0, total, max(1, total // _SAMPLED))
            cell = np.searchsorted(ends, picked, "right")
            bits = np.empty(len(picked), np.float32)
            differing(signs, mine, lasts[cell] - ends[cell] + picked, bits)
            few = int(np.sort(bits)[len(bits) * most // total])
        pieces = max(1, total // _PIECE) if alone else 1
        bounds = np.searchsorted(ends, [total * piece // pieces for piece in range(pieces)])
        bounds = np.append(bounds, len(ends))
        found: list[tuple[Ints, Floats]] = [_NONE] * pieces
        left = count()  # threads take the next piece from it

        def work() -> None:
            while (piece := next(left)) < pieces:
                part = slice(bounds[piece], bounds[piece + 1])
                read = signs, about, mine, few, *planes, firsts[part], lasts[part]
                rows, near = np.empty(4 * most, np.int64), np.empty(4 * most, np.float32)
                kept = alike(*read, rows, near)
                if kept > len(rows):  # copies, all of which differ in as few bits
                    rows, near = np.empty(kept, np.int64), np.empty(kept, np.float32)
                    alike(*read, rows, near)
                found[piece] = rows[:kept], near[:kept]

        on_each_thread(work, pieces)
        rows, nears = zip(*found, strict=True)
        return np.concatenate(rows), np.concatenate(nears)


def _centre_and_cells(layout: Layout) -> tuple[Vectors, Vectors]:
    """Return the mean of documents' vectors, and centres of cells: one if there are not many."""
    cells = 3 * int(np.sqrt(layout.size)) if layout.size > _MANY else 1
    wanted = max(_CENTRE_FROM, _EACH * cells)
    some = range(0, len(layout.blocks), max(1, layout.size // wanted))
    wholes = np.concatenate([taken_apart(layout, block)[0] for block in some])
    centre = np.mean(wholes, axis=0)
    return centre, rough_centres(wholes, cells, _EACH, _ROUNDS) if cells > 1 else centre[None]


def two_stage_suits(method: Method, documents: int, k: int) -> bool:
    """Tell whether the candidates are the ones a method would find."""
    return (
        documents >= max(TWO_STAGE_FROM, 4 * Effort.of(k, _USUAL).most[1])
        and method.weighting == "softmax"
        and method.alpha > 0
        and method.n is None
        and method.expanded is None
        and method.bm25 == "no"
        and not method.words
        and not method.whiten
        and not method.feedback
    )


def codes_file(path: Path) -> Path:
    """Return where the large arrays stand beside a file of candidates."""
    return path.with_name(path.name + CODES)


def problem_with_candidates(path: Path) -> str | None:
    """Say what is wrong with the files of candidates at a path, None if nothing."""
    found = read_arrays(path)
    if found is None or read_arrays(codes_file(path)) is None:
        return "not what was written"
    if found[1].get("format") != CANDIDATES_FORMAT:
        return (
            f"of another version of strop (format {found[1].get('format')}, not "
            f"{CANDIDATES_FORMAT}): searches do without them"
        )
    return None
