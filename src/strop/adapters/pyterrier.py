"""PyTerrier: an index as an artifact, an indexer and a transformer (docs/adapters/pyterrier.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from strop.adapters.shared import Collection, open_collection, raising, writing
from strop.errors import BadInput, MissingExtra
from strop.evaluation.scoring import decreasing
from strop.methods import Method
from strop.storage.intake import CATALOG, EmbedderSpec
from strop.types import HIT_FIELDS, Document, Hit

try:
    import pandas as pd
    import pyterrier as pt
except ImportError:
    raise MissingExtra("The adapter for PyTerrier", "pyterrier") from None

_TYPE, _FORMAT = "dense_index", "strop"


def read_metadata(path: str, listing: Sequence[str]) -> dict[str, str] | None:
    """Return the artifact type for ``pt.Artifact.load`` if a folder is an index of strop."""
    return {"type": _TYPE, "format": _FORMAT} if CATALOG in listing else None


class StropIndex(pt.Artifact, pt.Indexer):
    """An index folder: ``StropIndex("my.index").index(documents)``, then ``.retriever("sharp")``.

    The first call of ``index`` creates the index, with ``embedder``, sharpened by the documents'
    own sentences. ``strop_index`` is the ``Index``.
    """

    ARTIFACT_TYPE, ARTIFACT_FORMAT, ARTIFACT_PACKAGE_HINT = _TYPE, _FORMAT, "strop"

    def __init__(self, path: str | os.PathLike[str], embedder: EmbedderSpec | None = None) -> None:
        super().__init__(os.fspath(path))
        self._embedder = embedder
        self._opened: Collection | None = None

    def _open(self, create: bool) -> Collection:
        if self._opened is None:
            self._opened = open_collection(str(self.path), self._embedder, create=create)
        return self._opened

    @property
    def strop_index(self) -> Collection:
        """The index, opened on first use."""
        return self._open(create=False)

    def index(self, iter: Iterable[Mapping[str, Any]], **_: Any) -> StropIndex:
        """Add documents, or replace those with a known docno; other fields become metadata."""
        with raising(ValueError, BadInput), writing(self._open(create=True)) as index:
            index.add(_documents(iter))
        return self

    def index_inputs(self) -> list[list[str]]:
        """Return the columns that documents need."""
        return [["docno", "text"]]

    def retriever(self, method: str | Method | None = None, **settings: Any) -> StropRetriever:
        """Return a transformer that searches this index (``StropRetriever``)."""
        return StropRetriever(self.strop_index, method, **settings)

    def schematic(self, *, input_columns: list[str] | None = None) -> dict[str, Any]:
        """Return a label for diagrams, and no help URL: PyTerrier would look for one."""
        return {"label": "StropIndex", "help_url": ""}


class StropRetriever(pt.Transformer):
    """Ranks documents for queries: ``StropRetriever("my.index", "sharp", num_results=100)``.

    ``include_fields`` are additional columns: ``title``, ``text``, ``passage`` (the part of the
    document nearest to the query) or a field of the metadata. ``where`` is a filter of strop,
    ``settings`` are additional arguments of ``Index.search`` (``alpha``, ``words``…). Equal scores
    are lowered by the smallest step, so that measures keep the order of the search.
    """

    def __init__(
        self,
        index: Collection | str | os.PathLike[str],
        method: str | Method | None = None,
        *,
        num_results: int = 1000,
        where: Mapping[str, Any] | None = None,
        include_fields: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__()
        self.strop_index = open_collection(index)
        self.method, self.num_results, self.where = method, num_results, where
        self.include_fields, self.settings = tuple(include_fields), settings

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return qid, query, docno, score, rank and the additional columns."""
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        return self._ranked({name: inp[name].to_numpy() for name in inp.columns})

    def search(self, query: str, qid: str = "1", sort: bool = True) -> pd.DataFrame:
        """Rank for one query, without creating an input frame or sorting the result."""
        return self._ranked({"qid": np.array([qid], object), "query": np.array([query], object)})

    def _ranked(self, query_columns: Mapping[str, Any]) -> pd.DataFrame:
        """Return the ranked documents of queries, given as columns, in one frame.

        One frame, because pandas takes a millisecond for each change of a frame.
        """
        columns: dict[str, list[Any]] = {
            name: [] for name in ("docno", "score", "rank", *self.include_fields)
        }
        lengths = []
        for hits in self._search(query_columns["query"].tolist()):
            lengths.append(len(hits))
            columns["docno"] += [hit.id for hit in hits]
            columns["score"] += decreasing([hit.score for hit in hits])
            columns["rank"] += range(len(hits))
            for name in self.include_fields:
                columns[name] += [_value(hit, name) for hit in hits]
        places = np.repeat(np.arange(len(lengths)), lengths)
        data = {
            name: values[places] for name, values in query_columns.items() if name not in columns
        }
        dtypes = {"score": np.float64, "rank": np.int64}
        data |= {
            name: np.array(values, dtypes.get(name, object)) for name, values in columns.items()
        }
        return pd.DataFrame(data, copy=False)

    def _search(self, queries: list[str]) -> Iterable[list[Hit]]:
        if not queries:
            return ()
        with raising(ValueError, BadInput):
            return self.strop_index.search(
                queries, self.num_results, self.method, where=self.where,
                fields=HIT_FIELDS if self.include_fields else (), **self.settings,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"StropRetriever({self.strop_index.method(self.method).name!r})"

    def schematic(self, *, input_columns: list[str] | None = None) -> dict[str, Any]:
        """Return a label for diagrams, and no help URL: PyTerrier would look for one."""
        name = self.strop_index.method(self.method).name
        return {"label": f"strop {name}"[:20], "help_url": ""}


def _documents(records: Iterable[Mapping[str, Any]]) -> Iterator[Document]:
    for record in records:
        fields = dict(record)
        try:
            id_, text = str(fields.pop("docno")), fields.pop("text")
        except KeyError as error:
            raise BadInput(f"a document has no {error}: {record!r:.120}") from None
        yield Document(id_, text, fields.pop("title", None) or "", fields)


def _value(hit: Hit, name: str) -> Any:
    if name == "passage":
        return hit.passage and hit.passage.text
    return getattr(hit, name) if name in ("title", "text") else hit.metadata.get(name)
