"""Writes the vectors of an index to a file, for any database (docs/engines.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from strop.common.arrays import unit_rows
from strop.engines.base import unpack
from strop.engines.publish import BATCH, records_of
from strop.errors import BadInput, MissingExtra
from strop.io.files import atomic_write
from strop.search.rows import as_floats
from strop.search.searcher import Searcher
from strop.storage.query_sets import augmented_set
from strop.types import Vectors

Form = Literal["indexsharp", "rows", "augmented"]
ENDINGS = (".parquet", ".npy", ".jsonl")
Row = dict[str, Any]


def export(
    searcher: Searcher,
    output: str | os.PathLike[str],
    form: Form = "indexsharp",
    *,
    sets: Sequence[str] = (),
    alpha: float = 1.0,
) -> int:
    """Write vectors with ids and metadata; return how many.

    ``indexsharp``: one vector for each document, d + ``alpha`` * the mean of its queries, of unit
    length. ``rows``: the document's own vector and one for each query. ``augmented``: the vector of
    the text with the queries of one set appended (``Index.augment`` computes these). ``sets``:
    query sets, by default all that ``sharp`` mixes. The suffix of the file determines its format;
    ids and metadata of ``x.npy`` are written to ``x.npy.ids.jsonl``.
    """
    path = Path(output)
    if form not in get_args(Form):
        raise BadInput(f"form {form!r} is not one of: {', '.join(get_args(Form))}")
    if path.suffix not in ENDINGS:
        raise BadInput(f"{path}: the name must end in one of {', '.join(ENDINGS)}")
    with searcher.catalog.reading():
        names = [searcher.require(name).name for name in sets] or searcher.views.query_sets()
        if form == "augmented":
            rows = _augmented(searcher, names)
        else:
            rows = _rows(searcher, names, form, alpha)
        return _WRITERS[path.suffix](path, rows, searcher.catalog.dim)


def _rows(searcher: Searcher, names: Sequence[str], form: Form, alpha: float) -> Iterator[Row]:
    catalog, snapshot = searcher.catalog, searcher.views.snapshot()
    all_sets = catalog.sets.all()
    for first in range(0, len(snapshot.numbers), BATCH):
        for record in records_of(catalog, snapshot, snapshot.numbers[first : first + BATCH]):
            by_set = {
                set_id: as_floats(stored)
                for set_id, stored in unpack(record.packed, catalog.dim).items()
            }
            about = {"id": record.document.id, "metadata": dict(record.document.metadata)}
            lists = [(name, by_set.get(all_sets[name].set_id)) for name in names]
            queries = [vectors for _, vectors in lists if vectors is not None]
            if form == "indexsharp":
                vector = by_set[0]
                if queries:
                    mean = np.concatenate(queries).mean(axis=0, dtype=np.float64)
                    vector = unit_rows(vector + alpha * mean)
                yield {**about, "vector": vector[0]}
                continue
            yield {**about, "set": "", "n": 0, "text": "", "vector": by_set[0][0]}
            for name, vectors in lists:
                for n, row in enumerate([] if vectors is None else vectors):
                    text = record.queries[name][n]
                    yield {**about, "set": name, "n": n + 1, "text": text, "vector": row}


def _augmented(searcher: Searcher, names: Sequence[str]) -> Iterator[Row]:
    if len(names) != 1:
        raise BadInput("the form augmented appends the queries of one set: name it with --sets")
    snapshot = searcher.views.snapshot()
    spans = snapshot.sets.get(augmented_set(names[0]))
    if spans is None or not (spans.count == 1).all():
        raise BadInput(
            f"not every document is embedded with its {names[0]!r} queries: call"
            f" index.augment({names[0]!r}) first"
        )
    for first in range(0, len(snapshot.numbers), BATCH):
        numbers = snapshot.numbers[first : first + BATCH].tolist()
        documents = searcher.catalog.documents.several(numbers)
        vectors = as_floats(np.asarray(spans.vectors[spans.start[first : first + BATCH]]))
        for number, vector in zip(numbers, vectors, strict=True):
            document = documents[number]
            yield {"id": document.id, "metadata": dict(document.metadata), "vector": vector}


# -- writing -----------------------------------------------------------------------------------


def _write_jsonl(path: Path, rows: Iterator[Row], dim: int) -> int:
    count = 0
    with atomic_write(path) as file:
        for row in rows:
            vector = [float(f"{value:.8g}") for value in row["vector"].tolist()]
            file.write(json.dumps({**row, "vector": vector}, ensure_ascii=False) + "\n")
            count += 1
    return count


def ids_beside(path: Path) -> Path:
    """Return the path of the file with the ids of a ``.npy`` file; no other file has it."""
    return path.with_name(f"{path.name}.ids.jsonl")


def _write_npy(path: Path, rows: Iterator[Row], dim: int) -> int:
    vectors: list[Vectors] = []
    with atomic_write(path) as file, atomic_write(ids_beside(path)) as about:
        for row in rows:
            vectors.append(row.pop("vector"))
            about.write(json.dumps(row, ensure_ascii=False) + "\n")
        np.save(file.buffer, np.array(vectors, np.float32).reshape(-1, dim))
    return len(vectors)


def _write_parquet(path: Path, rows: Iterator[Row], dim: int) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("Writing Parquet", "parquet") from None
    types = {"vector": pa.list_(pa.float32(), dim), "n": pa.int32()}
    count, batch = 0, list(islice(rows, 5000))
    names = batch[0] if batch else ("id", "metadata", "vector")
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    with atomic_write(path) as file, parquet.ParquetWriter(file.buffer, schema) as writer:
        while batch:
            for row in batch:
                row["metadata"] = json.dumps(row["metadata"], ensure_ascii=False)
            writer.write_table(pa.Table.from_pylist(batch, schema))
            count += len(batch)
            batch = list(islice(rows, 5000))
    return count


_WRITERS = {".parquet": _write_parquet, ".npy": _write_npy, ".jsonl": _write_jsonl}
