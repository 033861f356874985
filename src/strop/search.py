"""Exact search: the scan over a snapshot's documents and their queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from strop import kernels
from strop.kernels import Floats, Ints
from strop.methods import Method
from strop.snapshot import Spans
from strop.threads import in_parts, pool
from strop.types import Vectors
from strop.whitening import Whitening

_BLOCK_ROWS = 8192
"""Vectors scored at a time: their products with a batch of queries stay near the cores."""
_ASKED_AT_ONCE = 64
_FEEDBACK_FROM = 2


@dataclass(frozen=True)
class _Block:
    """Documents ``first:last`` of a layout, with the rows of each file they need."""

    first: int
    last: int
    documents: Vectors
    document_slots: Ints
    queries: list[Vectors]
    slots: Ints  # position of each query vector in the concatenation of ``queries``

    @property
    def rows(self) -> int:
        return sum(len(part) for part in self.queries)


class Layout:
    """A snapshot's documents with the lists of some of its sets, and what is fixed for each.

    Made once for a mix of sets, then used by every search with that mix. ``whiten`` moves all
    vectors to the space evened out by that power.
    """

    def __init__(
        self, documents: Spans, mixed: list[Spans], n: int | None, whiten: float = 0.0
    ) -> None:
        self._whitening = None
        if whiten:
            self._whitening = Whitening([spans.vectors for spans in mixed], whiten)
            documents = self._whitening.spans(documents)
            mixed = [self._whitening.spans(spans) for spans in mixed]
        self.documents = documents
        self.mixed = mixed
        self.size = len(documents.start)
        limit = np.iinfo(np.int64).max if n is None else n
        self._counts = [np.minimum(spans.count, limit) for spans in mixed]
        per_document = np.zeros(self.size, np.int64)
        for counts in self._counts:
            per_document += counts
        self.offsets = _starts(per_document)
        self._gram_offsets = _starts(per_document * (per_document + 1) // 2)
        self.blocks = self._cut(per_document)
        # Filled on the first sharpened search; maxsim needs none of it.
        self._fixed: tuple[Floats, Floats, Floats] | None = None

    def _cut(self, per_document: Ints) -> list[tuple[int, int]]:
        """Cut the documents into blocks of about equally many vectors."""
        rows = np.cumsum(per_document + 1)
        cuts = [0]
        while cuts[-1] < self.size:
            done = rows[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(rows, done + _BLOCK_ROWS, "right"))))
        return list(pairwise(cuts))

    def block(self, first: int, last: int) -> _Block:
        """Gather one block; where rows stand together in their file nothing is copied."""
        documents, document_slots = _slab(
            self.documents.vectors, self.documents.start[first:last], np.ones(last - first, int)
        )
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        slots = np.empty(offsets[-1], np.int64)
        queries: list[Vectors] = []
        begin, shift = offsets[:-1].copy(), 0
        for spans, counts in zip(self.mixed, self._counts, strict=True):
            count = counts[first:last]
            part, places = _slab(spans.vectors, spans.start[first:last], count)
            slots[_ranges(begin, count)] = places + shift
            begin += count
            shift += len(part)
            queries.append(part)
        return _Block(first, last, documents, document_slots, queries, slots)

    def fixed(self) -> tuple[Floats, Floats, Floats]:
        """Return d.d of each document, d.q_i of each query, and the packed Gram triangles."""
        if self._fixed is None:
            self_dots = np.empty(self.size, np.float32)
            doc_dots = np.empty(self.offsets[-1], np.float32)
            grams = np.empty(self._gram_offsets[-1], np.float32)

            def fill(bounds: tuple[int, int]) -> None:
                first, last = bounds
                block = self.block(first, last)
                dim = block.documents.shape[1]
                queries = np.concatenate([*block.queries, np.empty((0, dim), np.float32)])
                span = slice(self.offsets[first], self.offsets[last])
                gram = slice(self._gram_offsets[first], self._gram_offsets[last])
                kernels.gram_of_documents(
                    np.ascontiguousarray(block.documents[block.document_slots]),
                    queries, block.slots, self.offsets[first : last + 1] - self.offsets[first],
                    self_dots[first:last], doc_dots[span], grams[gram],
                    self._gram_offsets[first : last + 1] - self._gram_offsets[first],
                    0, last - first,
                )  # fmt: skip

            list(pool().map(fill, self.blocks))
            self._fixed = (self_dots, doc_dots, grams)
        return self._fixed

    def scan(self, asked: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each row of ``asked``: scores and places, (n, k)."""
        return self._best(self.moved(asked, method), method, k)

    def moved(self, asked: Vectors, method: Method) -> Vectors:
        """Return asked vectors (n, dim) as they are compared: in the evened space, after feedback.

        Feedback moves a query towards the mean of the documents that rank first for it.
        """
        if self._whitening is not None:
            asked = self._whitening.apply(asked)
        if method.feedback and self.size:
            _, places = self._best(asked, method, _FEEDBACK_FROM)
            first = self.documents.vectors[self.documents.start[places]].mean(axis=1)
            asked = kernels.unit_rows(asked + np.float32(method.feedback) * first)
        return asked

    def _best(self, asked: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        k = min(k, self.size)
        best = np.full((len(asked), k), -np.inf, np.float32)
        places = np.zeros((len(asked), k), np.int64)
        if k:
            for at in range(0, len(asked), _ASKED_AT_ONCE):
                part = slice(at, at + _ASKED_AT_ONCE)
                self._scan(np.ascontiguousarray(asked[part]), method, best[part], places[part])
        return best, places

    def _scan(self, asked: Vectors, method: Method, best: Floats, places: Ints) -> None:
        turned = np.ascontiguousarray(asked.T)
        for first, last in self.blocks:
            block = self.block(first, last)
            plain = (block.documents @ turned)[block.document_slots]
            if method.weighting == "none" or (method.weighting == "softmax" and not method.alpha):
                scores = np.ascontiguousarray(plain.T)
            else:
                scores = self._sharpened(block, plain, asked, turned, method)
            in_parts(len(asked), partial(kernels.keep_best, scores, first, best, places))

    def _sharpened(
        self, block: _Block, plain: Floats, asked: Vectors, turned: Vectors, method: Method
    ) -> Floats:
        first, last = block.first, block.last
        sims = np.empty((block.rows, turned.shape[1]), np.float32)
        row = 0
        for part in block.queries:
            np.matmul(part, turned, out=sims[row : row + len(part)])
            row += len(part)
        scores = np.empty((turned.shape[1], last - first), np.float32)
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        if method.weighting == "max":
            in_parts(
                last - first,
                partial(kernels.maxsim_scores, plain, sims, block.slots, offsets, scores),
            )
            return scores
        self_dots, doc_dots, grams = self.fixed()
        span = slice(self.offsets[first], self.offsets[last])
        gram = slice(self._gram_offsets[first], self._gram_offsets[last])
        gram_offsets = self._gram_offsets[first : last + 1] - self._gram_offsets[first]
        in_parts(
            last - first,
            partial(
                kernels.sharpened_scores,
                plain, sims, block.slots, offsets, self_dots[first:last], doc_dots[span],
                grams[gram], gram_offsets, method.alpha, method.temperature, scores,
            ),
        )  # fmt: skip
        for q, j in zip(*np.nonzero(np.isnan(scores)), strict=True):
            scores[q, j] = kernels.cosine_with_sharpened(
                asked[q], self.document(first + j), self.queries(first + j),
                method.alpha, method.temperature,
            )  # fmt: skip
        return scores

    def document(self, place: int) -> Vectors:
        """Return one document's vector."""
        vector: Vectors = self.documents.vectors[self.documents.start[place]]
        return vector

    def queries(self, place: int) -> Vectors:
        """Return one document's query vectors (n, dim), set after set."""
        lists = [
            spans.vectors[spans.start[place] : spans.start[place] + counts[place]]
            for spans, counts in zip(self.mixed, self._counts, strict=True)
        ]
        empty = np.empty((0, self.documents.vectors.shape[1]), np.float32)
        return np.concatenate([*lists, empty])


def _slab(vectors: Vectors, start: Ints, count: Ints) -> tuple[Vectors, Ints]:
    """Return rows that hold all wanted ones, and where each wanted one stands among them."""
    rows = _ranges(start, count)
    if not len(rows):
        return vectors[:0], rows
    low, high = int(rows.min()), int(rows.max()) + 1
    if high - low <= 1.25 * len(rows) + 64:  # a few strangers cost less than a copy
        return vectors[low:high], rows - low
    return vectors[rows], np.arange(len(rows))


def _ranges(start: Ints, count: Ints) -> Ints:
    """Return ``start[0], start[0]+1, … (count[0] of them), start[1], …``."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    rows: Ints = np.arange(total) + np.repeat(start - (ends - count), count)
    return rows


def _starts(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
