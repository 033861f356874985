"""Candidates for two-stage search: one vector for each document, a byte a value.

The vector is ``d + mean of q_i``, the sharpened document at an infinite temperature. It only
decides who is looked at; what it finds is then scored with all its queries.

The candidates are a cache. With them stands, for each document, which vectors they were made from
(by ``Spans.made``, which compaction leaves as it is). A document that has others by now, or came
later, is not trusted to them, and is scanned instead.
"""

from __future__ import annotations

import os
import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strop import kernels
from strop.catalog import Catalog
from strop.codes import Bytes, as_bytes, largest, products_of_bytes
from strop.errors import IndexDamaged
from strop.kernels import Floats, Ints
from strop.maintenance import CANDIDATES_FORMAT, CODES
from strop.methods import Method
from strop.search import Layout, best_of
from strop.sidecar import file_sum, read_arrays, write_arrays
from strop.snapshot import CACHE, Snapshot
from strop.threads import in_parts, pool
from strop.types import Vectors

TWO_STAGE_FROM = 20_000
"""Documents from which a search looks at candidates only; fewer are scanned in milliseconds."""
_FOLLOW = 0.1
"""The candidates follow when this share of the documents is not among them as they are."""
_ALONE = 100_000
"""Rows that one thread reads sooner than others can be told to help."""


def candidates_for(k: int) -> int:
    """Return how many candidates are looked at for the best k."""
    return 300 + 20 * k


def scored_exactly_for(k: int) -> int:
    """Return how many of them are scored exactly."""
    return 3 * k + 18


def mean_vectors(layout: Layout, block: int) -> tuple[Vectors, Floats]:
    """Return the direction of ``d + mean of q_i`` for a block's documents (n, dim), and means.

    The means (n, 2) are those that ``Layout.score_candidates`` wants.
    """
    first, last = layout.blocks[block]
    vectors = np.empty((last - first, layout.dim), np.float32)
    means = np.empty((last - first, 2), np.float32)
    kernels.sharpened_by_mean(*layout.block(block), vectors, means)
    return vectors, means


@dataclass(frozen=True)
class Candidates:
    """Documents' vectors as codes with their scales, and the means of their products.

    ``made_from`` (n, columns) says which document and which vectors of it a row is from.
    """

    codes: Bytes
    scales: Floats
    means: Floats
    made_from: Ints
    sets: list[str]

    @classmethod
    def make(cls, layout: Layout, made_from: Ints, sets: list[str]) -> Candidates:
        """Make the candidates of all documents of a layout."""
        codes = np.empty((layout.size, layout.dim), np.int8)
        scales = np.empty(layout.size, np.float32)
        means = np.empty((layout.size, 2), np.float32)

        def fill(block: int) -> None:
            first, last = layout.blocks[block]
            vectors, means[first:last] = mean_vectors(layout, block)
            codes[first:last], scales[first:last] = as_bytes(vectors)

        list(pool().map(fill, range(len(layout.blocks))))
        return cls(codes, scales, means, made_from, sets)

    def and_more(self, other: Candidates) -> Candidates:
        """Return these and others behind them."""
        return Candidates(
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.scales, other.scales]),
            np.concatenate([self.means, other.means]),
            np.concatenate([self.made_from, other.made_from]),
            self.sets,
        )

    @classmethod
    def open(cls, path: Path) -> Candidates:
        """Open what ``write`` wrote; the codes are read from the disk as they are needed."""
        found = read_arrays(path)
        try:
            if found is None:
                raise ValueError("it is missing or not what was written")
            arrays, about = found
            if about["format"] != CANDIDATES_FORMAT:
                raise ValueError(f"it has format {about['format']}, not {CANDIDATES_FORMAT}")
            file, shape = _codes_file(path), (len(arrays["scales"]), about["dim"])
            if file.stat().st_size != np.prod(shape):
                raise ValueError(f"{file.name} has another size than it was written with")
            codes = np.asarray(np.memmap(file, np.int8, "r", shape=shape))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexDamaged(f"the candidates {path} cannot be used: {error}") from error
        return cls(codes, **arrays, sets=about["sets"])

    def write(self, path: Path) -> None:
        """Write the codes and, beside them, all the rest to new files."""
        file = _codes_file(path)
        path.parent.mkdir(exist_ok=True)
        with open(file, "xb") as codes:
            np.ascontiguousarray(self.codes).tofile(codes)
            codes.flush()
            os.fsync(codes.fileno())
        about: dict[str, Any] = {"format": CANDIDATES_FORMAT, "codes": file_sum(file)}
        about |= {"dim": self.codes.shape[1], "sets": self.sets}
        arrays = {name: getattr(self, name) for name in ("scales", "means", "made_from")}
        write_arrays(path, arrays, about)


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
        # What is gone is near to nothing.
        self._scales = np.where(place_of >= 0, candidates.scales, np.float32(0))

    @property
    def behind(self) -> bool:
        """Whether so much has changed that the candidates should follow."""
        return len(self.tail) > _FOLLOW * self.layout.size

    @property
    def worn(self) -> bool:
        """Whether so much of the candidates is of no use that they should be made anew."""
        return int((self.place_of < 0).sum()) > 0.3 * len(self.place_of)

    def search(self, asked: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each asked vector: scores and places, (n, k)."""
        best = np.empty((len(asked), k), np.float32)
        places = np.empty((len(asked), k), np.int64)
        late = self._tail_layout.scan(asked, method, k) if len(self.tail) else None
        unanswered: list[int] = []

        def work(first: int, last: int) -> None:
            for q in range(first, last):
                scores, mine = self._score(asked[q], method, k, len(asked) == 1)
                if late is not None:
                    scores = np.concatenate([scores, late[0][q]])
                    mine = np.concatenate([mine, self.tail[late[1][q]]])
                if len(scores) < k:  # too much of it is of no use
                    unanswered.append(q)
                else:
                    best[q], places[q] = best_of(scores, mine, k)

        if len(asked) == 1:  # the threads share it
            work(0, 1)
        else:
            in_parts(len(asked), work)
        for q in unanswered:
            exact = self.layout.scan(asked[q : q + 1], method, k)
            best[q], places[q] = exact[0][0], exact[1][0]
        return best, places

    def _score(self, asked: Vectors, method: Method, k: int, alone: bool) -> tuple[Floats, Ints]:
        """Score the candidates for one asked vector (dim,); return the likely best of them."""
        of = self.candidates
        products = np.empty(len(of.scales), np.float32)
        multiply = partial(products_of_bytes, of.codes, self._scales, asked, products)
        if alone and len(products) > _ALONE:
            in_parts(len(products), multiply)
        else:
            multiply(0, len(products))
        rows = np.empty(min(candidates_for(k), len(products)), np.int64)
        rows = rows[: largest(products, len(rows), rows)]
        places = self.place_of[rows]
        if (places < 0).any():
            rows, places = rows[places >= 0], places[places >= 0]
        return self.layout.score_candidates(
            asked, places, products[rows], of.means[rows], method, scored_exactly_for(k)
        )


class CandidateCache:
    """The candidates of an index: brought up to date by its writer, set beside what a search sees.

    The catalog says which count, and without any searches are exact.
    """

    def __init__(self, catalog: Catalog, index: Path) -> None:
        self._catalog = catalog
        self._index = index
        # Replaced together, as threads may look at different versions at the same time.
        self._held: tuple[str | None, Layout, TwoStage | None] | None = None

    def close(self) -> None:
        """Let go of the candidates."""
        self._held = None

    def follow(self, snapshot: Snapshot, layout: Layout, names: list[str]) -> None:
        """Make candidates, or add to them, where much of the index is not among them as it is."""
        older, made_from = self._catalog.meta("candidates"), _made_from(snapshot, names)
        made = None
        if older is not None:
            with suppress(IndexDamaged):  # then they are made anew
                two = TwoStage(Candidates.open(self._index / CACHE / older), layout, made_from)
                if two.candidates.sets == names and not two.worn:
                    if not two.behind:
                        return
                    more = Candidates.make(layout.only(two.tail), made_from[two.tail], names)
                    made = two.candidates.and_more(more)
        made = made or Candidates.make(layout, made_from, names)
        name = f"candidates-{uuid.uuid4().hex}"
        try:
            made.write(self._index / CACHE / name)
        except OSError:  # a full disk: the older ones still serve
            self._delete(name)
            return
        with self._catalog.writing(searchable=False) as connection:
            self._catalog.set_meta(connection, candidates=name)
        if older is not None:
            self._delete(older)

    def _delete(self, name: str) -> None:
        path = self._index / CACHE / name
        for file in (path, _codes_file(path)):
            with suppress(OSError):
                file.unlink()

    def beside(self, snapshot: Snapshot, layout: Layout, names: list[str]) -> TwoStage | None:
        """Return candidates matched with a layout; None, with a warning, if there are none."""
        name, held = self._catalog.meta("candidates"), self._held
        if held is None or held[0] != name or held[1] is not layout:
            two = None
            try:
                if held is not None and held[0] == name and held[2] is not None:
                    of = held[2].candidates
                else:
                    of = self._open(name)
                if of.sets == names:
                    two = TwoStage(of, layout, _made_from(snapshot, names))
            except IndexDamaged as error:
                warnings.warn(
                    f"searching all {layout.size:,} documents, not candidates only: {error}. "
                    f"To make them: strop check {self._index} --repair",
                    stacklevel=4,
                )
            held = self._held = name, layout, two
        return held[2]

    def _open(self, name: str | None) -> Candidates:
        if name is None:
            raise IndexDamaged(f"{self._index} has no candidates yet")
        return Candidates.open(self._index / CACHE / name)


def two_stage_suits(method: Method, documents: int, k: int) -> bool:
    """Tell whether the candidates are the ones a method would find."""
    return (
        documents >= max(TWO_STAGE_FROM, 4 * candidates_for(k))
        and method.weighting == "softmax"
        and method.alpha > 0
        and method.n is None
        and method.expanded is None
        and method.bm25 == "no"
        and not method.words
        and not method.whiten
        and not method.feedback
    )


def _made_from(snapshot: Snapshot, names: list[str]) -> Ints:
    """Return for each document its number and which vectors it has: (n, columns)."""
    sets = [snapshot.sets[name] for name in names]
    columns = [snapshot.numbers, snapshot.documents.made]
    return np.stack(columns + [part for of in sets for part in (of.made, of.count)], axis=1)


def _codes_file(path: Path) -> Path:
    return path.with_name(path.name + CODES)
