"""Exact search over a snapshot's documents and their queries: propose, fetch and score in one.

A small layout is fetched once, as floats, and scored in numpy (scoring.py): loading compiled code
takes a second. In a larger one each thread takes blocks of documents small enough for its cache. It
multiplies the block's vectors with the queries (BLAS on that thread alone). Then a compiled kernel
turns the products into scores and merges them into the thread's best k. No array has the size
documents times queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Floats, Ints, ranges, read_only
from strop.common.threads import in_parts, on_each_thread, one_blas_thread, pool
from strop.methods import Method
from strop.search.formula import LOWEST, reference
from strop.search.rows import QUERIES_AT_ONCE, QueryBatch, as_floats
from strop.search.scoring import Fetched, best_of, best_of_all, score
from strop.storage.snapshot import Spans
from strop.types import Vectors

NUMPY_UP_TO = 8_000_000
"""A layout of at most this many values is scored by numpy as fast as by compiled code."""
BLOCK_ROWS = 4096
"""Vectors scored at a time: their products with a batch of queries fit into the cache."""
_BUILT_AT_ONCE = 512

_GramTerms = tuple[Floats, Floats, Floats]
_KernelArrays = tuple[
    Vectors, Ints, tuple[NDArray[Any], ...], tuple[Ints, ...], tuple[Ints, ...], bool
]


class Layout:
    """A snapshot's documents with the lists of some of its sets, and the Gram terms of each.

    It is built once for a mix of sets and then used by every search with that mix.
    """

    def __init__(self, documents: Spans, mixed: list[Spans], n: int | None) -> None:
        self.size = len(documents.start)
        self.dim = documents.vectors.shape[1]
        limit = np.iinfo(np.int64).max if n is None else n
        counts = [
            np.ones(self.size, np.int64),
            *(np.minimum(spans.count, limit) for spans in mixed),
        ]
        self._files = [  # a memory map's own class is slow to slice
            replace(spans, vectors=np.asarray(spans.vectors), count=count)
            for spans, count in zip((documents, *mixed), counts, strict=True)
        ]
        self._counts = np.array(counts, np.int64)
        per_document = self._counts[1:].sum(axis=0)
        self.offsets = _starts(per_document)
        self._gram_offsets = _starts(per_document * (per_document + 1) // 2)
        self.blocks = self._cut()
        # Filled on the first sharpened search; maxsim needs none of it.
        self._gram: _GramTerms | None = None
        self._scanned = False

    def _cut(self) -> list[tuple[int, int]]:
        """Cut the documents into blocks of about equally many vectors."""
        cuts, rows = [0], self.offsets + np.arange(self.size + 1)
        while cuts[-1] < self.size:
            full = np.searchsorted(rows, rows[cuts[-1]] + BLOCK_ROWS, "right") - 1
            cuts.append(max(cuts[-1] + 1, int(full)))
        return list(pairwise(cuts))

    @cached_property
    def _block_rows(self) -> list[tuple[list[slice | None], Ints]]:
        """For each block: its rows in each file, and where each list (files, documents) begins.

        Rows that are not stored together are None: they are copied. A list begins at an offset
        among the rows of all files, one file after the other.
        """
        block_rows = []
        for first, last in self.blocks:
            slices, starts, total = [], [], 0
            for file in self._files:
                start, count = file.start[first:last], file.count[first:last]
                rows = _as_slice(start, count)
                slices.append(rows)
                local = np.cumsum(count) - count if rows is None else start - rows.start
                starts.append(total + local)
                total += int(count.sum()) if rows is None else rows.stop - rows.start
            block_rows.append((slices, np.array(starts)))
        return block_rows

    def _stored_rows(self, block: int) -> Iterator[NDArray[Any]]:
        """Yield a block's rows as stored, by file; rows that are stored together are not copied."""
        first, last = self.blocks[block]
        for file, rows in zip(self._files, self._block_rows[block][0], strict=True):
            if rows is not None:
                yield file.vectors[rows]
            else:
                yield file.vectors[ranges(file.start[first:last], file.count[first:last])]

    def _row_offsets(self, block: int) -> tuple[Ints, Ints, Ints]:
        """Return where the documents and the lists of a block begin in its rows, and the counts."""
        starts = self._block_rows[block][1]
        counts = self._counts[1:, slice(*self.blocks[block])]
        return starts[0], starts[1:], np.ascontiguousarray(counts)

    @cached_property
    def small(self) -> bool:
        """Whether numpy scores it as fast as compiled code."""
        longest = int(np.diff(self.offsets).max(initial=0))
        return bool(self.size * (1 + longest) * self.dim <= NUMPY_UP_TO)

    @cached_property
    def fetched(self) -> Fetched:
        """All documents, in the form that ``scoring.score`` accepts; for a small layout."""
        return self.fetch(np.arange(self.size))

    def fetch(self, places: Ints) -> Fetched:
        """Return some documents in the form that ``scoring.score`` accepts."""
        documents, *sets = (
            as_floats(file.vectors[ranges(file.start[places], file.count[places])])
            for file in self._files
        )
        counts = np.array([file.count[places] for file in self._files[1:]], np.int64)
        counts = counts.reshape(len(sets), len(places))
        # Rows ordered by set become rows ordered by document.
        document_of = np.repeat(np.tile(np.arange(len(places)), len(sets)), counts.ravel())
        order = np.argsort(document_of, kind="stable")
        rows = np.concatenate([*sets, np.empty((0, self.dim), np.float32)])[order]
        return Fetched(documents, rows, counts.sum(axis=0))

    def block(self, block: int) -> tuple[Vectors, Ints, Ints, Ints]:
        """Return a block's rows as floats, and where each document and its lists begin in them.

        These are arguments of ``kernels.gram_of_documents``.
        """
        rows = np.concatenate([as_floats(rows) for rows in self._stored_rows(block)])
        return rows, *self._row_offsets(block)

    def gram_terms(self) -> _GramTerms:
        """Return d.d of each document, d.q_i of each query, and the packed Gram triangles."""
        if self._gram is None:
            gram = self._empty_gram()

            from strop.search import kernels

            def fill(block: int) -> None:
                kernels.gram_of_documents(
                    *self.block(block), *self._gram_slices(gram, *self.blocks[block])
                )

            list(pool().map(fill, range(len(self.blocks))))
            self._gram = gram
        return self._gram

    def _empty_gram(self) -> _GramTerms:
        sizes = self.size, self.offsets[-1], self._gram_offsets[-1]
        self_dots, doc_dots, grams = (np.empty(size, np.float32) for size in sizes)
        return self_dots, doc_dots, grams

    def _gram_slices(self, gram: _GramTerms, first: int, last: int) -> _GramTerms:
        """Return the terms of the documents ``first:last``."""
        self_dots, doc_dots, grams = gram
        return (
            self_dots[first:last],
            doc_dots[self.offsets[first] : self.offsets[last]],
            grams[self._gram_offsets[first] : self._gram_offsets[last]],
        )

    def follow(self, older: Layout, at: Ints) -> None:
        """Copy the Gram terms of unchanged documents from an older layout of the same sets.

        ``at`` has each document's place there, -1 if it has none. ``vector_version`` shows which
        documents have other vectors now; only the terms of these are computed.
        """
        types = [[file.vectors.dtype for file in layout._files] for layout in (self, older)]
        if older._gram is None or types[0] != types[1]:
            return
        same = at >= 0
        for mine, theirs in zip(self._files, older._files, strict=True):
            same &= mine.vector_version == theirs.vector_version[at]
            same &= mine.count == theirs.count[at]
        fresh = np.flatnonzero(~same)
        if len(fresh) > self.size // 2:
            return
        new, gram = self.only(fresh), self._empty_gram()
        source = at.copy()
        source[fresh] = np.arange(len(fresh))
        # Documents that are adjacent in both layouts are copied together.
        broken = (np.diff(source) != 1) | (same[1:] != same[:-1])
        edges = [0, *(np.flatnonzero(broken) + 1).tolist(), self.size]
        for first, last in pairwise(edges if self.size else []):
            layout, begin = older if same[first] else new, int(source[first])
            terms = layout._gram_slices(layout.gram_terms(), begin, begin + last - first)
            for target, values in zip(self._gram_slices(gram, first, last), terms, strict=True):
                target[:] = values
        self._gram = gram

    def documents(self, places: Ints) -> Vectors:
        """Return the vectors of the documents at some places (n, dim)."""
        file = self._files[0]
        return as_floats(file.vectors[file.start[places]])

    def scan(self, query_vectors: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each query vector: scores and places, (n, k)."""
        k = min(k, self.size)
        shape = (len(query_vectors), k)
        if not k or not len(query_vectors):
            return np.empty(shape, np.float32), np.empty(shape, np.int64)
        if self.small:
            scores = score(query_vectors, self.fetched, method)
            best = [best_of_all(row, k) for row in scores]
            return np.array([row for row, _ in best]), np.array([row for _, row in best])
        if method.sharpens and method.alpha:
            # Computing Gram matrices takes longer than one scan without them, but makes later
            # scans twice as fast: so they are computed at the second query.
            if len(query_vectors) == 1 and self._gram is None and not self._scanned:
                self._scanned = True
                return self._best_for_one(query_vectors[0], method, k)
            self.gram_terms()
        results: list[tuple[Floats, Ints]] = []
        next_block = count()  # shared by the threads
        batches = [
            QueryBatch(query_vectors, at) for at in range(0, len(query_vectors), QUERIES_AT_ONCE)
        ]

        def work() -> None:
            best = np.full(shape, -np.inf, np.float32)
            places = np.zeros(shape, np.int64)
            buffer = np.empty(0, np.float32)
            while (block := next(next_block)) < len(self.blocks):
                stored = list(self._stored_rows(block))
                if len(batches) > 1:  # a single batch may multiply without conversion to floats
                    stored = [as_floats(rows) for rows in stored]
                needed = sum(map(len, stored)) * max(batch.width for batch in batches)
                buffer = buffer if len(buffer) >= needed else np.empty(needed, np.float32)
                for batch in batches:
                    self._score(block, stored, batch, method, buffer, best, places)
            results.append((best, places))

        with one_blas_thread():
            on_each_thread(work, len(self.blocks))
        scores, places = (np.concatenate(arrays, axis=1) for arrays in zip(*results, strict=True))
        return best_of(scores, places, k)

    def _best_for_one(self, query_vector: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Scan for one query vector (dim,) by building every d*, without Gram matrices."""
        scores = np.empty(self.size, np.float32)

        def work(first: int, last: int) -> None:
            for at in range(first, last, _BUILT_AT_ONCE):
                some = np.arange(at, min(at + _BUILT_AT_ONCE, last))
                scores[some] = self.rescore(query_vector, some, method)

        in_parts(self.size, work)
        best, places = best_of_all(scores, k)
        return best[None], places[None]

    def _score(
        self, block: int, stored: list[NDArray[Any]], batch: QueryBatch, method: Method,
        buffer: Floats, best: Floats, places: Ints,
    ) -> None:  # fmt: skip
        """Merge a block's documents into the best k of the queries of a batch."""
        from strop.search import kernels

        first, last = self.blocks[block]
        best, places = best[batch.queries], places[batch.queries]
        n_rows = sum(map(len, stored))
        products = buffer[: n_rows * batch.width].reshape(n_rows, batch.width)
        plain = method.weighting == "none" or (method.sharpens and not method.alpha)
        row = 0
        for rows in stored[:1] if plain else stored:
            batch.multiply(rows, products[row : row + len(rows)])
            row += len(rows)
        own, local, counts = self._row_offsets(block)
        if plain:
            local = counts = local[:0]
        if plain or method.weighting == "max":
            self._lower_empty(stored[0], own, products, counts.sum(axis=0))
            kernels.maxsim_block(products, own, local, counts, first, best, places)
        else:
            doubtful = kernels.sharpened_block(
                products, own, local, counts, *self._gram_slices(self.gram_terms(), first, last),
                float(method.alpha), method.softmax_temperature, first, best, places,
            )  # fmt: skip
            if doubtful:
                for j, q in np.argwhere(np.isnan(products[own, : len(best)])).tolist():
                    score = self._reference(batch.query_vectors[q], first + j, method)
                    kernels.offer(best, places, q, np.float32(score), first + j)

    def _lower_empty(
        self, documents: NDArray[Any], own: Ints, products: Floats, queries: Ints
    ) -> None:
        """Give documents that have neither a vector nor queries the lowest score."""
        zero = np.flatnonzero((products[own, 0] == 0) & (queries == 0))  # nearly always none
        for row in own[zero].tolist():
            if not as_floats(documents[row : row + 1]).any():
                products[row] = LOWEST

    def _reference(self, query_vector: Vectors, place: int, method: Method) -> float:
        return reference(query_vector, self.document(place), self.queries(place), method)

    def rescore(self, query_vector: Vectors, places: Ints, method: Method) -> Floats:
        """Return the exact scores of the documents at ``places`` for one query vector (dim,).

        It fetches and scores in one pass, and reads only these documents' vectors.
        """
        if self._kernel_arrays is None:
            scores: Floats = score(query_vector[None], self.fetch(places), method, once=True)[0]
            return scores
        from strop.search import kernels

        scores = np.empty(len(places), np.float32)
        settings = float(method.alpha), method.softmax_temperature
        kernels.sharpened_at(query_vector, places, *self._kernel_arrays, *settings, scores)
        for doubtful in np.flatnonzero(np.isnan(scores)).tolist():
            scores[doubtful] = self._reference(query_vector, places[doubtful], method)
        return scores

    @cached_property
    def _kernel_arrays(self) -> _KernelArrays | None:
        """Return the files as arguments of ``kernels.sharpened_at``.

        None if there are no sets, or sets of different types.
        """
        kinds = [file.vectors.dtype for file in self._files]
        if kinds[0] != np.float32 or set(kinds[1:]) not in ({np.dtype("i1")}, {np.dtype("f4")}):
            return None
        # Numba needs arrays of one type in a tuple, and being writable is part of the type.
        rows, starts, counts = (
            tuple(read_only(getattr(file, name)) for file in self._files)
            for name in ("vectors", "start", "count")
        )
        return rows[0], starts[0], rows[1:], starts[1:], counts[1:], kinds[1] == np.int8

    def only(self, places: Ints) -> Layout:
        """Return a layout of some of the documents."""
        spans = [
            Spans(file.vectors, file.start[places], file.count[places]) for file in self._files
        ]
        return Layout(spans[0], spans[1:], None)

    def document(self, place: int) -> Vectors:
        """Return one document's vector."""
        vector: Vectors = self.documents(np.array([place]))[0]
        return vector

    def queries(self, place: int) -> Vectors:
        """Return one document's query vectors (n, dim), set after set."""
        lists = [
            as_floats(file.vectors[file.start[place] : file.start[place] + file.count[place]])
            for file in self._files[1:]
        ]
        return np.concatenate([*lists, np.empty((0, self.dim), np.float32)])


def _as_slice(start: Ints, count: Ints) -> slice | None:
    """Return a slice with the rows of these lists, None if it would contain many other rows."""
    start, count = start[count > 0], count[count > 0]
    low, high = (start.min(), (start + count).max()) if len(start) else (0, 0)
    together = high - low <= 1.25 * count.sum() + 64  # a few unneeded rows cost less than a copy
    return slice(low, high) if together else None


def _starts(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
