"""Shard files: Parquet tables, written atomically, and the manifest that lists finished ones.

A file gets its name only when it is complete and synced to disk. A manifest is a file of JSON
lines, one for each finished task; the last line of a task counts, an incomplete line does not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.common.secrets import one_line
from strop.errors import BadInput, MissingExtra
from strop.io.files import replaced
from strop.storage.vectors import sync_folder
from strop.types import Document, Vectors

Columns = dict[str, Any]
"""Arrays, lists or Arrow arrays by name."""


@dataclass(frozen=True)
class ShardFile:
    """A finished file: its name without the suffix, its length and a hash of its bytes."""

    name: str
    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class TaskResult:
    """The files of a task, its duration in seconds, and its processor seconds (``cpu``).

    ``counts`` are statistics by name. ``complete`` is False if another run may finish more, such
    as requests that a service did not answer.
    """

    files: tuple[ShardFile, ...]
    seconds: float = 0.0
    cpu: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    complete: bool = True


def arrow() -> Any:
    """Return pyarrow, with its Parquet module loaded."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("A cluster run", "parquet") from None
    return pyarrow


# -- files ------------------------------------------------------------------------------------


def finished(path: Path, rows: int) -> ShardFile:
    """Return the record of a file that has been written."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return ShardFile(path.name.partition(".")[0], rows, path.stat().st_size, digest.hexdigest())


def write_table(path: Path, *groups: Columns, labels: Sequence[int] = ()) -> ShardFile:
    """Write columns as a Parquet file; each of several ``groups`` is a row group with a label."""
    pyarrow, rows = arrow(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        writer = None
        for columns in groups:
            table = pyarrow.table(columns)
            rows += len(table)
            if writer is None:
                metadata = {**(table.schema.metadata or {}), "labels": json.dumps(list(labels))}
                schema = table.schema.with_metadata(metadata)
                # Vectors do not compress, and searching them for a dictionary is slow.
                texts = [one.name for one in schema if pyarrow.types.is_string(one.type)]
                writer = pyarrow.parquet.ParquetWriter(
                    temporary, schema, compression=dict.fromkeys(texts, "zstd") or "none",
                    use_dictionary=False,
                )  # fmt: skip
            writer.write_table(table.cast(schema), row_group_size=max(1, len(table)))
        assert writer is not None
        writer.close()
    sync_folder(path.parent)
    return finished(path, rows)


def read_table(
    path: Path, columns: Sequence[str] | None = None, labels: Sequence[int] | None = None
) -> Any:
    """Read columns of a Parquet file, or of its row groups with these labels, as an Arrow table."""
    pyarrow = arrow()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if labels is None:
                return file.read(columns)
            stored = json.loads(file.schema_arrow.metadata[b"labels"])
            groups = [at for at, label in enumerate(stored) if label in labels]
            return file.read_row_groups(groups, columns)
    except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadInput(
            f"{path}: cannot be read: {one_line(error)}; delete it, and run again"
        ) from error


# -- columns ----------------------------------------------------------------------------------


def vector_column(vectors: Vectors) -> Any:
    """Return vectors (n, dim) as a column of lists of fixed length."""
    pyarrow = arrow()
    flat = pyarrow.array(np.ascontiguousarray(vectors, np.float32).ravel())
    return pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def vectors_in(column: Any) -> Vectors:
    """Return a column of vectors as an array (n, dim)."""
    width = column.type.list_size
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float32).reshape(-1, width)


def list_column(values: NDArray[Any], counts: NDArray[Any]) -> Any:
    """Return the first ``counts[i]`` values of each row i as a column of lists."""
    pyarrow = arrow()
    kept = values[np.arange(values.shape[1]) < counts[:, None]]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(kept))


def padded(column: Any, width: int, fill: int | float) -> NDArray[Any]:
    """Return a column of lists as an array (n, width), ``fill`` after the end of each list."""
    lists = column.combine_chunks()
    counts = np.diff(lists.offsets.to_numpy())
    flat = lists.flatten().to_numpy()
    rows = np.full((len(lists), width), fill, flat.dtype)
    rows[np.arange(width) < counts[:, None]] = flat
    return rows


def documents_in(table: Any) -> list[tuple[int, Document]]:
    """Return (row, document) of a table with the columns row, id, title, text."""
    columns = (table[name].to_pylist() for name in ("row", "id", "title", "text"))
    return [(row, Document(id_, text, title)) for row, id_, title, text in zip(*columns)]  # noqa: B905


def rows_in(table: Any) -> Ints:
    """Return the rows of a table: each document's number in the whole corpus."""
    return np.asarray(table["row"].to_numpy(), np.int64)


# -- the manifest -----------------------------------------------------------------------------


class Manifest:
    """The finished tasks of one stage. Only the driver writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / "manifest.jsonl"
        self.lines: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().split(b"\n"):
                with suppress(ValueError, KeyError, TypeError):  # cut off by a kill
                    record = json.loads(line)
                    self.lines[record["task"]] = record

    def add(self, task: str, key: str, result: TaskResult) -> None:
        """Append the line of a finished task; it is synced to disk when this returns."""
        record = {"task": task, "key": key, **asdict(result)}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as file:
            # On a new line: a killed driver may have left an incomplete one.
            file.write(b"\n" * (file.tell() > 0) + json.dumps(record).encode())
            file.flush()
            os.fsync(file.fileno())
        self.lines[task] = json.loads(json.dumps(record))

    def done(self, task: str, key: str, suffix: str) -> bool:
        """Return whether a task is finished with this key, and its files exist."""
        line = self.lines.get(task)
        if line is None or line["key"] != key or not line["complete"]:
            return False
        files = {self.folder / (one["name"] + suffix): one["bytes"] for one in line["files"]}
        return all(path.is_file() and path.stat().st_size == files[path] for path in files)

    def files(self, task: str) -> list[ShardFile]:
        """Return the files of a finished task."""
        return [ShardFile(**one) for one in self.lines[task]["files"]]


def key_of(*parts: Any) -> str:
    """Return a hash of JSON values, those that a task's result depends on."""
    content = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
