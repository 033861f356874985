"""Reads corpora: BEIR folders, JSONL, CSV, TSV, Parquet, folders of files.

Files are read line by line (Parquet by small batches of rows), so memory does not grow with the
corpus. Lines and documents have a limit, so it does not grow with one of them either.
"""

from __future__ import annotations

import csv
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from strop.common.secrets import one_line
from strop.errors import BadInput, MissingExtra
from strop.io.files import (
    MAX_BYTES,
    PathLike,
    Record,
    cannot_read,
    checked_id,
    checked_string,
    field_name,
    field_names,
    is_gzip,
    json_records,
    jsonable,
    number_as_string,
    numbered_lines,
    plain_or_gzip,
    short,
    shown_name,
    suffix,
    too_long,
)
from strop.io.folders import files_in, read_file
from strop.types import Document

FORMATS = ("beir", "jsonl", "csv", "tsv", "parquet", "text")
_FORMAT_OF = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet",
}  # fmt: skip
_ID_FIELDS = ("_id", "id")
_DELIMITERS = (",", ";", "\t", "|")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?")
"""Numbers as in JSON: 007 is a code, and so are more digits than a 64-bit number can store."""
_csv_limit_lock = threading.Lock()


class LocatedDocument(NamedTuple):
    """A document and its source: ``corpus.jsonl line 17``, or the path of a text file."""

    document: Document
    where: str


def read_corpus(source: PathLike, **options: Any) -> Iterator[Document]:
    """Yield the documents of a corpus; ``options`` are those of ``read_corpus_with_locations``."""
    return (item.document for item in read_corpus_with_locations(source, **options))


def read_corpus_with_locations(
    source: PathLike,
    *,
    id_field: str | None = None,
    text_field: str | None = None,
    title_field: str | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    max_document_bytes: int = MAX_BYTES,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Iterator[LocatedDocument]:
    """Yield the documents of a corpus in order, with their locations; few are in memory at a time.

    ``source`` is a BEIR folder (with ``corpus.jsonl``), a JSONL, CSV, TSV or Parquet file, a
    folder of files (folders.py), or ``-`` for JSON lines on standard input. Plain text may be
    gzipped. ``format`` (one of ``FORMATS``) overrides the suffix. ``delimiter``
    separates the columns of a CSV file; without it the header decides.

    The fields are ``_id`` or ``id``, ``text`` and optionally ``title``; a field named by the
    caller must be in every record. Other fields become metadata. An object in the field
    ``metadata`` is merged into it; if both have a name, the field outside wins. In a folder
    of files the ids are relative paths, which ``include`` and ``exclude`` choose; YAML front matter
    of an .md file becomes metadata, and the title is the one named there, else the first heading.
    A column of a CSV file whose values are all numbers becomes numbers. Ids may repeat: the index
    refuses that, not this function.
    """
    format, path = _find_corpus(os.fspath(source), format)
    if delimiter is not None and (format not in ("csv", "tsv") or len(delimiter) != 1):
        one_character = len(delimiter) == 1
        problem = "is for csv and tsv" if one_character else "takes one character, such as ';'"
        raise BadInput(f"delimiter {short(delimiter)}: it {problem}")
    fields = (id_field, text_field, title_field)
    if format == "text":
        files = files_in(path, include, exclude)
        return (LocatedDocument(read_file(file, max_document_bytes), file.path) for file in files)
    if include or exclude:
        raise BadInput(f"{path}: --include and --exclude are for folders of files")
    if format == "parquet":
        records = _parquet_records(path, max_document_bytes)
    elif format in ("csv", "tsv"):
        if delimiter is None and format == "tsv":
            delimiter = "\t"
        expected = {name for name in (*fields, *_ID_FIELDS, "text") if name}
        read_records = partial(_csv_records, path, delimiter, expected, max_document_bytes)
        # Standard input can be read once only.
        numbers = set() if path == "-" else _number_columns(record for _, record in read_records())
        records = _with_numbers(read_records(), numbers - expected - {"title"})
    else:
        records = json_records(path, max_document_bytes)
    return (LocatedDocument(_document(record, where, *fields), where) for where, record in records)


def is_folder_of_files(source: PathLike, format: str | None = None) -> bool:
    """Return whether a corpus is a folder of files, which ``Index.sync`` can follow."""
    return _find_corpus(os.fspath(source), format)[0] == "text"


def _find_corpus(path: str, format: str | None) -> tuple[str, str]:
    """Return the format of a corpus and the path of the file or folder to read."""
    if format is not None and format not in FORMATS:
        raise BadInput(f"format {short(format)} is not one of: {', '.join(FORMATS)}")
    if path == "-":
        if format in ("beir", "text", "parquet"):
            raise BadInput(f"standard input cannot be read as {format}; give a path")
        return format or "jsonl", path
    try:
        os.stat(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    if os.path.isdir(path):
        corpus = plain_or_gzip(path, "corpus.jsonl")
        format = format or ("beir" if os.path.exists(corpus) else "text")
        if format not in ("beir", "text"):
            raise BadInput(f"{path}: is a folder, and --format {format} needs a file")
        if format == "beir":
            return format, corpus
        beir_folders = sorted(file.parent for file in Path(path).glob("*/corpus.jsonl*"))
        if beir_folders:
            names = ", ".join(folder.name for folder in beir_folders[:5])
            raise BadInput(
                f"{path}: holds BEIR folders ({names}{', …' if len(beir_folders) > 5 else ''}):"
                f" name one of them, such as {beir_folders[0]}"
            )
        return format, path
    if format in ("beir", "text"):
        raise BadInput(f"{path}: is a file, and --format {format} needs a folder")
    format = format or _FORMAT_OF.get(suffix(path))
    if format is None:
        raise BadInput(
            f"{path}: the format is not clear from the extension; known are .jsonl, .ndjson, .json,"
            " .csv, .tsv (each also .gz), .parquet, BEIR folders and folders of files;"
            f" or give --format {' | '.join(FORMATS)}"
        )
    return format, path


def _parquet_records(path: str, max_bytes: int) -> Iterator[tuple[str, Record]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("Reading Parquet", "parquet") from None
    if is_gzip(path):
        raise BadInput(f"{path}: Parquet cannot be read through gzip; unpack it: gunzip {path}")
    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = _distinct(file.schema_arrow.names, path)
            for batch in file.iter_batches(batch_size=256):
                columns = [
                    # Python's datetime lacks nanoseconds and some time zones; strings have them.
                    column.cast("string") if pyarrow.types.is_timestamp(column.type) else column
                    for column in batch.columns
                ]
                for values in zip(*(column.to_pylist() for column in columns), strict=True):
                    row += 1
                    if sum(len(value) for value in values if isinstance(value, str)) > max_bytes:
                        raise too_long(f"{path} row {row}", "the row", max_bytes)
                    yield f"{path} row {row}", dict(zip(names, values, strict=True))
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        problem = f"cannot be read as Parquet after row {row}: {one_line(error)}"
        remedy = "if it is damaged or cut short, copy it again"
        raise BadInput(f"{path}: {problem}; {remedy}") from error


def _csv_records(
    path: str, delimiter: str | None, expected: set[str], max_bytes: int
) -> Iterator[tuple[str, Record]]:
    lines = numbered_lines(path, max_bytes)
    if delimiter is None:
        first = next(lines, (1, ""))
        delimiter = _guess_delimiter(first[1], expected)
        lines = chain([first], lines)
    rows = _csv_rows(path, lines, delimiter, max_bytes)
    where, header = next(rows, (f"{shown_name(path)} line 1", []))
    if not any(cell.strip() for cell in header):
        raise BadInput(f"{where}: the header is empty; name the columns there, as in id,title,text")
    # A column may have no name: pandas writes row numbers without one.
    columns = [cell.strip() or f"column_{number}" for number, cell in enumerate(header, 1)]
    _distinct(columns, where)
    for where, row in rows:
        if len(row) > len(columns):
            extra = short(row[len(columns)])
            raise BadInput(
                f"{where}: {len(row)} fields, but the header has {len(columns)}: {extra} is one too"
                f" many; put fields that contain {delimiter!r} in double quotes, or give another"
                " --delimiter"
            )
        yield where, dict(zip(columns, row, strict=False))


def _number_columns(rows: Iterable[Record]) -> set[str]:
    """Return the columns whose values are all numbers or empty.

    Reading stops when no column is left, which in most files is soon.
    """
    possible: set[str] | None = None
    nonempty: set[str] = set()
    for row in rows:
        possible = set(row) if possible is None else possible
        filled = {name for name in possible if row.get(name)}
        nonempty |= filled
        possible -= {name for name in filled if not _NUMBER.fullmatch(row[name])}
        if not possible:
            break
    return (possible or set()) & nonempty


def _with_numbers(
    records: Iterable[tuple[str, Record]], columns: set[str]
) -> Iterator[tuple[str, Record]]:
    """Yield records with the texts of ``columns`` as numbers, None for empty cells."""
    for where, record in records:
        for name in columns & record.keys():
            text = record[name]
            is_integer = text.lstrip("-").isdigit()
            record[name] = None if not text else int(text) if is_integer else float(text)
        yield where, record


def _guess_delimiter(header: str, expected: set[str]) -> str:
    """Return the delimiter that gives most expected column names; of these, most columns."""

    def column_counts(delimiter: str) -> tuple[int, int]:
        try:
            cells = next(csv.reader([header], delimiter=delimiter), [])
        except csv.Error:  # reported when the rows are read
            return 0, 0
        return len(expected & {cell.strip() for cell in cells}), len(cells)

    return max(_DELIMITERS, key=column_counts)


def _csv_rows(
    path: str, lines: Iterable[tuple[int, str]], delimiter: str, max_bytes: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield the line where each row starts and its cells; a quoted cell may span lines."""
    where, size = "", 0

    def limited() -> Iterator[str]:
        nonlocal size
        for _, line in lines:
            size += len(line)
            if size > max_bytes:  # a quote that is never closed makes the rest one row
                raise too_long(where, "the row", max_bytes)
            yield line

    # Strict: otherwise a quote that is never closed makes the rest of the file one cell.
    reader = csv.reader(limited(), delimiter=delimiter, strict=True)
    row: list[str] | None = []
    while row is not None:
        where, size = f"{shown_name(path)} line {reader.line_num + 1}", 0
        # Python's limit of 128 KB per cell is one for the whole process: raise it for this row.
        with _csv_limit_lock:
            limit = csv.field_size_limit(max(max_bytes, 1))
            try:
                row = next(reader, None)
            except csv.Error as error:
                remedy = "put fields with quotes or line breaks in quotes, inner quotes doubled"
                raise BadInput(f"{where}: not a valid row: {error}; {remedy}") from error
            finally:
                csv.field_size_limit(limit)
        if row:
            yield where, row


def _distinct(columns: list[str], where: str) -> list[str]:
    for column in columns:
        if columns.count(column) > 1:
            raise BadInput(f"{where}: two columns are named {short(column)}; rename one")
    return columns


def _document(
    record: Record,
    where: str,
    id_field: str | None,
    text_field: str | None,
    title_field: str | None,
) -> Document:
    id_key = field_name(record, where, (id_field,) if id_field else _ID_FIELDS, "--id-field")
    text_key = field_name(record, where, (text_field or "text",), "--text-field")
    title_key = (
        field_name(record, where, (title_field,), "--title-field") if title_field else "title"
    )
    title = record.get(title_key)
    title = "" if title is None else number_as_string(title)
    fields = {key: record[key] for key in record if key not in (id_key, text_key, title_key)}
    if isinstance(nested := fields.get("metadata"), dict):
        del fields["metadata"]
        fields = nested | fields
    try:
        metadata = jsonable(fields, where)
    except RecursionError:
        raise BadInput(f"{where}: values nested too deeply to be stored; flatten them") from None
    remedy = (
        f"make it one, or name another field with --text-field (there are: {field_names(fields)})"
    )
    return Document(
        checked_id(record[id_key], where),
        checked_string(record[text_key], text_key, where, remedy),
        checked_string(title, title_key, where, "--title-field names another"),
        metadata,
    )
