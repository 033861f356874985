"""Candidates for two-stage search: a graph (HNSW, by usearch) with one vector for each document.

The vector is ``d + mean of q_i``, the sharpened document at an infinite temperature. The graph
only decides who is looked at; what it finds is then scored exactly.

The graph is a cache. Beside it stands, for each document, which vectors it was made from (by
``Spans.made``, which compaction leaves as it is). A document that has others by now, or came
later, is not trusted to it, and is scanned instead.
"""

from __future__ import annotations

import os
import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strop import kernels
from strop.catalog import Catalog
from strop.errors import IndexDamaged, MissingExtra
from strop.kernels import Floats, Ints
from strop.maintenance import GRAPH, GRAPH_FORMAT
from strop.methods import Method
from strop.search import Layout, best_of
from strop.sidecar import file_sum, read_arrays, write_arrays
from strop.snapshot import CACHE, Snapshot
from strop.threads import thread_count
from strop.types import Progress, Vectors

TWO_STAGE_FROM = 20_000
"""Documents from which a search looks at candidates only; fewer are scanned in milliseconds."""
_LINKS, _WIDTH = 16, 128
_FOLLOW = 0.1
"""The graph follows when this share of the documents is not in it as they are."""


def candidates_for(k: int) -> int:
    """Return how many candidates are scored for the best k."""
    return 100 + 30 * k


def mean_vectors(layout: Layout) -> Vectors:
    """Return the direction of ``d + mean of q_i`` for each document (n, dim)."""
    means = np.empty((layout.size, layout.dim), np.float32)
    for block, (first, last) in enumerate(layout.blocks):
        kernels.sharpened_by_mean(*layout.block(block), means[first:last])
    return means


class Candidates:
    """A graph in two files, opened memory-mapped. Row i of ``made_from`` is about its key i."""

    def __init__(self, graph: Any, made_from: Ints, about: dict[str, Any]) -> None:
        self._graph = graph
        self.made_from = made_from
        self.about = about

    @classmethod
    def open(cls, path: Path, memory_mapped: bool = True) -> Candidates:
        """Open what ``write`` wrote."""
        graph_of = _usearch()
        found = read_arrays(path)
        try:
            if found is None:
                raise ValueError("it is missing or not what was written")
            made_from, about = found[0]["made_from"], found[1]
            if about["format"] != GRAPH_FORMAT:
                raise ValueError(f"it has format {about['format']}, not {GRAPH_FORMAT}")
            file = _graph_file(path)
            if file.stat().st_size != about["graph"][0]:
                raise ValueError(f"{file.name} has another size than it was written with")
            graph = graph_of.restore(str(file), view=memory_mapped)
            if graph is None or len(graph) != len(made_from):
                raise ValueError("its files do not belong together")
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise IndexDamaged(f"the graph {path} cannot be used: {error}") from error
        return cls(graph, made_from, about)

    @classmethod
    def empty(cls, dim: int, columns: int) -> Candidates:
        """Return a graph with nothing in it; ``columns`` numbers say what a document is from."""
        # Inner products of unit vectors. Two bytes a value: rescoring makes up for what is lost.
        graph = _usearch()(
            ndim=dim, metric="ip", dtype="f16", connectivity=_LINKS, expansion_add=_WIDTH
        )
        return cls(graph, np.empty((0, columns), np.int64), {})

    def add(self, vectors: Vectors, made_from: Ints, progress: Progress | None = None) -> None:
        """Add documents (not to a memory-mapped one)."""
        begin = len(self.made_from)
        for at in range(0, len(vectors), 5_000):
            part = vectors[at : at + 5_000]
            keys = np.arange(begin + at, begin + at + len(part))
            self._graph.add(keys, part, threads=thread_count())
            if progress is not None:
                progress("linking candidates", at + len(part), len(vectors))
        self.made_from = np.concatenate([self.made_from, made_from])

    def write(self, path: Path, about: dict[str, Any]) -> None:
        """Write the graph and, beside it, what it was made from to new files."""
        file = _graph_file(path)
        path.parent.mkdir(exist_ok=True)
        self._graph.save(str(file))
        with open(file, "r+b") as written:
            os.fsync(written.fileno())
        about = {**about, "format": GRAPH_FORMAT, "graph": file_sum(file)}
        write_arrays(path, {"made_from": self.made_from}, about)

    def search(self, asked: Vectors, most: int) -> Ints:
        """Return the keys of the nearest documents for each asked vector: (n, most or fewer)."""
        most = min(most, len(self.made_from))
        self._graph.expansion_search = max(_WIDTH, most)
        found = self._graph.search(asked, most, threads=min(len(asked), thread_count()))
        keys: Ints = np.atleast_2d(np.asarray(found.keys)).astype(np.int64)
        return keys


@dataclass(frozen=True)
class TwoStage:
    """A graph beside the layout it serves: who of it is there as they are, who is not."""

    candidates: Candidates
    layout: Layout
    place_of: Ints  # by key; -1 where the document is gone or changed
    tail: Ints  # places of documents the graph does not know as they are
    tail_layout: Layout

    @classmethod
    def match(cls, candidates: Candidates, layout: Layout, made_from: Ints) -> TwoStage:
        """Find the documents of a layout, ``made_from`` (n, columns), in a graph."""
        known = candidates.made_from
        place_of = np.full(len(known), -1, np.int64)
        if len(known) and len(made_from) and known.shape[1] == made_from.shape[1]:
            # The first column is a document's number, ascending in a layout.
            at = np.minimum(np.searchsorted(made_from[:, 0], known[:, 0]), len(made_from) - 1)
            same = (made_from[at] == known).all(axis=1)
            place_of[same] = at[same]
        there = np.zeros(layout.size, bool)
        there[place_of[place_of >= 0]] = True
        tail = np.flatnonzero(~there)
        return cls(candidates, layout, place_of, tail, layout.only(tail))

    @property
    def behind(self) -> bool:
        """Whether so much has changed that the graph should follow."""
        return len(self.tail) > _FOLLOW * self.layout.size

    @property
    def mostly_gone(self) -> bool:
        """Whether so much of the graph is of no use that it should be made anew."""
        return int((self.place_of < 0).sum()) > 0.3 * len(self.place_of)

    def search(self, asked: Vectors, method: Method, k: int) -> tuple[Floats, Ints]:
        """Return the best k documents for each asked vector: scores and places, (n, k)."""
        lost = int((self.place_of < 0).sum())
        keys = self.candidates.search(asked, candidates_for(k) + min(lost, 5 * candidates_for(k)))
        best = np.empty((len(asked), k), np.float32)
        places = np.empty((len(asked), k), np.int64)
        scores, late = self.tail_layout.scan(asked, method, k)
        for q, row in enumerate(keys):
            found = self.place_of[row]
            found = found[found >= 0]
            if len(found) + len(self.tail) < k:  # too much of the graph is of no use
                exact = self.layout.scan(asked[q : q + 1], method, k)
                best[q], places[q] = exact[0][0], exact[1][0]
                continue
            mine = self.layout.rescore(asked[q], found, method)
            both = np.concatenate([mine, scores[q]]), np.concatenate([found, self.tail[late[q]]])
            best[q], places[q] = best_of(*both, k)
        return best, places


class GraphCache:
    """The graph of an index: brought up to date by its writer, set beside what a search sees.

    It is a cache: the catalog says which graph counts, and without one searches are exact.
    """

    def __init__(self, catalog: Catalog, index: Path) -> None:
        self._catalog = catalog
        self._index = index
        # Replaced together, as threads may look at different versions at the same time.
        self._held: tuple[str | None, Layout, TwoStage | None] | None = None

    def close(self) -> None:
        """Let go of the graph."""
        self._held = None

    def follow(
        self, snapshot: Snapshot, layout: Layout, names: list[str], progress: Progress | None
    ) -> None:
        """Make the graph, or add to it, where much of the index is not in it as it is now."""
        older, made_from = self._catalog.meta("graph"), _made_from(snapshot, names)
        graph, wanted = None, np.arange(layout.size)
        if older is not None:
            with suppress(IndexDamaged):  # then it is made anew
                path = self._index / CACHE / older
                two = TwoStage.match(Candidates.open(path), layout, made_from)
                if two.candidates.about["sets"] == names and not two.mostly_gone:
                    if not two.behind:
                        return
                    graph, wanted = Candidates.open(path, memory_mapped=False), two.tail
        graph = graph or Candidates.empty(layout.dim, made_from.shape[1])
        graph.add(mean_vectors(layout.only(wanted)), made_from[wanted], progress)
        name = f"graph-{uuid.uuid4().hex}"
        try:
            graph.write(self._index / CACHE / name, {"sets": names})
        except (OSError, RuntimeError):  # a full disk: the older one still serves
            self._delete(name)
            return
        with self._catalog.writing(searchable=False) as connection:
            self._catalog.set_meta(connection, graph=name)
        if older is not None:
            self._delete(older)

    def _delete(self, name: str) -> None:
        path = self._index / CACHE / name
        for file in (path, _graph_file(path)):
            with suppress(OSError):
                file.unlink()

    def beside(self, snapshot: Snapshot, layout: Layout, names: list[str]) -> TwoStage | None:
        """Return the graph matched with a layout; None, with a warning, if it cannot be used."""
        name, held = self._catalog.meta("graph"), self._held
        if held is None or held[0] != name or held[1] is not layout:
            two = None
            try:
                if held is not None and held[0] == name and held[2] is not None:
                    graph = held[2].candidates
                else:
                    graph = self._open(name)
                if graph.about["sets"] == names:
                    two = TwoStage.match(graph, layout, _made_from(snapshot, names))
            except (IndexDamaged, MissingExtra) as error:
                warnings.warn(
                    f"searching all {layout.size:,} documents, not candidates only: {error}. "
                    f"To make them: strop check {self._index} --repair",
                    stacklevel=4,
                )
            held = self._held = name, layout, two
        return held[2]

    def _open(self, name: str | None) -> Candidates:
        if name is None:
            _usearch()
            raise IndexDamaged(f"{self._index} has no graph of candidates yet")
        return Candidates.open(self._index / CACHE / name)


def two_stage_suits(method: Method, documents: int, k: int) -> bool:
    """Tell whether candidates of the graph are the ones a method would find."""
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


def _graph_file(path: Path) -> Path:
    return path.with_name(path.name + GRAPH)


def _usearch() -> Any:
    try:
        from usearch.index import Index as Graph
    except ImportError:
        raise MissingExtra("two-stage search", "ann") from None
    return Graph
