"""Candidates for two-stage search: a graph (HNSW, by usearch) with one vector for each document.

The vector is ``d + mean of q_i``, the sharpened document at an infinite temperature. The graph
only decides who is looked at; what it finds is then scored exactly.

The graph is a cache: a folder of its own, written aside and renamed. It says of each document
which rows it was made from. A document that has others by now, or came later, is not trusted to
it, and is scanned instead.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strop import kernels
from strop.errors import IndexDamaged, MissingExtra
from strop.kernels import Floats, Ints
from strop.methods import Method
from strop.search import Layout, best_of
from strop.threads import thread_count
from strop.types import Progress, Vectors

TWO_STAGE_FROM = 20_000
"""Documents from which a search looks at candidates only; fewer are scanned in milliseconds."""
FORMAT = 1
_LINKS, _WIDTH = 16, 128
_GRAPH, _MADE_FROM = "graph.usearch", "made_from.npy"
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
    """A graph in a folder, opened memory-mapped. Row i of ``made_from`` is about its key i."""

    def __init__(self, graph: Any, made_from: Ints, about: dict[str, Any]) -> None:
        self._graph = graph
        self.made_from = made_from
        self.about = about

    @classmethod
    def open(cls, folder: Path, memory_mapped: bool = True) -> Candidates:
        """Open what ``write`` wrote."""
        graph_of = _usearch()
        try:
            about = json.loads((folder / "about.json").read_text())
            if about["format"] != FORMAT:
                raise ValueError(f"it has format {about['format']}, not {FORMAT}")
            for name, size in about["sizes"].items():
                if (folder / name).stat().st_size != size:
                    raise ValueError(f"{name} has another size than it was written with")
            graph = graph_of.restore(str(folder / _GRAPH), view=memory_mapped)
            made_from = np.load(folder / _MADE_FROM)
            if graph is None or len(graph) != len(made_from):
                raise ValueError("its files do not belong together")
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise IndexDamaged(f"{folder} cannot be used: {error}") from error
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

    def write(self, folder: Path, about: dict[str, Any]) -> None:
        """Put the graph at ``folder``, in place of what is there; open maps of that stay good."""
        unfinished, away = (folder.with_name(folder.name + end) for end in (".new", ".old"))
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        self._graph.save(str(unfinished / _GRAPH))
        np.save(unfinished / _MADE_FROM, self.made_from)
        sizes = {name: (unfinished / name).stat().st_size for name in (_GRAPH, _MADE_FROM)}
        text = json.dumps({**about, "format": FORMAT, "sizes": sizes})
        (unfinished / "about.json").write_text(text)
        shutil.rmtree(away, ignore_errors=True)
        if folder.exists():
            folder.rename(away)
        unfinished.rename(folder)
        shutil.rmtree(away, ignore_errors=True)

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


def _usearch() -> Any:
    try:
        from usearch.index import Index as Graph
    except ImportError:
        raise MissingExtra("two-stage search", "ann") from None
    return Graph
