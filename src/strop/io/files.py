"""Text files: lines and JSON records with their locations; files written completely or not at all.

A file that cannot be used raises a ``BadInput`` of one line that names the location, the value and
the remedy. A path may be ``-`` for standard input; gzip is recognised everywhere.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import reprlib
import sys
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, TextIO, cast

from strop.common.secrets import one_line
from strop.errors import BadInput

PathLike = str | os.PathLike[str]
Record = dict[str, Any]

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = _shortener.maxlong = 60
short = _shortener.repr
"""The repr of a value, shortened for messages."""

MAX_BYTES = 64_000_000
"""Default limit of the length of a line and of a document.

A gzip file of a few megabytes can contain one line of many gigabytes.
"""


@contextmanager
def atomic_write(path: PathLike) -> Iterator[TextIO]:
    """Open a UTF-8 text file to write, gzipped if its name ends in ``.gz``; see ``replaced``."""
    with replaced(path) as temporary, open(temporary, "xb") as raw:
        # The gzip header has no name and no time, so that equal texts give equal files.
        gzipped = is_gzip(os.fspath(path))
        sink = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if gzipped else raw
        with sink, io.TextIOWrapper(sink, encoding="utf-8", newline="\n") as text:
            yield text


@contextmanager
def replaced(path: PathLike) -> Iterator[str]:
    """Yield the name of a hidden file to write beside ``path``; then sync it and replace ``path``.

    If anything fails before that, an older file does not change. An ``OSError`` becomes
    ``BadInput``.
    """
    path = os.fspath(path)
    target = os.path.realpath(path)  # replace the file a link points to, not the link
    if os.path.exists(target) and not os.path.isfile(target):
        raise BadInput(f"{path}: cannot be written: not a regular file; choose another name")
    # Not tempfile: its files are private to the user; this one must follow the umask.
    temporary = os.path.join(os.path.dirname(target), f".strop-{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except OSError as error:
        reason = f"{error.strerror or error}; check the folder, its permissions and the disk"
        raise BadInput(f"{path}: cannot be written: {reason}") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def json_records(path: PathLike, max_bytes: int = MAX_BYTES) -> Iterator[tuple[str, Record]]:
    """Yield the location and the object of each line that is not blank."""
    for where, line in nonblank_lines(path, max_bytes):
        yield where, json_object(line, where)


def json_object(line: str, where: str) -> Record:
    """Read one line as a JSON object."""
    if line.lstrip().startswith("["):
        problem = "a JSON array, where each line should be an object"
        raise BadInput(f"{where}: {problem}; make lines with: jq -c '.[]' FILE > lines.jsonl")
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        near = repr(line[max(0, error.pos - 20) : error.pos + 20])
        problem = f"not valid JSON at column {error.colno}: {error.msg}, near {near}"
        raise BadInput(f"{where}: {problem}; write one object a line (jq -c . FILE)") from error
    except (ValueError, RecursionError) as error:  # too many digits or brackets
        raise BadInput(f"{where}: JSON too large to read: {one_line(error)}; cut it") from error
    if not isinstance(record, dict):
        raise BadInput(f"{where}: {short(record)} is not a JSON object; write {{…}} on each line")
    return record


def nonblank_lines(path: PathLike, max_bytes: int = MAX_BYTES) -> Iterator[tuple[str, str]]:
    """Yield the location and the text, without its line break, of each line that is not blank."""
    path = os.fspath(path)
    for number, line in numbered_lines(path, max_bytes):
        if line.strip():
            yield f"{shown_name(path)} line {number}", line.rstrip("\r\n")


def numbered_lines(path: str, max_bytes: int = MAX_BYTES) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line, its line break included.

    A line longer than ``max_bytes`` is an error before more of it is read.
    """
    for number, data in enumerate(_byte_lines(path, max_bytes + 2), 1):
        if len(data.rstrip(b"\r\n")) > max_bytes:
            raise too_long(f"{shown_name(path)} line {number}", "the line", max_bytes)
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"{shown_name(path)} line {number}, byte {error.start + 1}"
            encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
            problem = f"0x{data[error.start]:02x} is not UTF-8"
            raise BadInput(f"{place}: {problem}; try: iconv -f {encoding} -t utf-8 FILE") from error
        yield number, line.removeprefix("\ufeff") if number == 1 else line


def too_long(where: str, what: str, max_bytes: int) -> BadInput:
    """Return the error for a line or a document that is longer than allowed."""
    return BadInput(
        f"{where}: {what} is longer than {max_bytes:,} bytes; split it, or allow more for a corpus:"
        " --max-document-bytes (in Python max_document_bytes)"
    )


def _byte_lines(path: str, max_bytes: int) -> Iterator[bytes]:
    """Yield lines as bytes; a line longer than ``max_bytes`` is yielded in pieces of that size."""
    try:
        with _open(path) as stream:
            if is_gzip(path) or stream.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield from iter(lambda: unpacked.readline(max_bytes), b"")
            else:
                yield from iter(lambda: stream.readline(max_bytes), b"")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = f"gzip data damaged or cut short: {one_line(error)}"
        raise BadInput(f"{shown_name(path)}: {problem}; copy or make the file again") from error
    except OSError as error:
        raise cannot_read(shown_name(path), error) from error


@contextmanager
def _open(path: str) -> Iterator[io.BufferedReader]:
    if path != "-":
        with open(path, "rb") as stream:
            yield stream
        return
    # sys.stdin may be replaced by an object that cannot peek, and this function must not close it.
    stream = io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
    try:
        yield stream
    finally:
        with suppress(ValueError):  # its owner has closed it
            stream.detach()


def cannot_read(name: str, error: OSError) -> BadInput:
    """Return the error for a file that cannot be read."""
    reason = error.strerror or str(error)
    return BadInput(f"{name}: cannot be read: {reason}; check the path and its permissions")


def shown_name(path: str) -> str:
    """Return a path as messages name it."""
    return "standard input" if path == "-" else path


def is_gzip(path: str) -> bool:
    """Return whether a name ends in .gz."""
    return path.lower().endswith(".gz")


def suffix(path: str) -> str:
    """Return a name's suffix in lower case; of ``x.csv.gz`` that is ``.csv``."""
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def plain_or_gzip(folder: PathLike, name: str) -> str:
    """Return the path of a file in a folder, or of its gzipped form if only that exists."""
    path = os.path.join(folder, name)
    return f"{path}.gz" if not os.path.exists(path) and os.path.exists(f"{path}.gz") else path


def field_name(record: Record, where: str, names: tuple[str, ...], option: str = "") -> str:
    """Return which of ``names`` a record has; ``option`` can name another."""
    for name in names:
        if name in record:
            return name
    expected = " or ".join(map(short, names))
    remedy = f"add it, or name another with {option}" if option else "add it"
    fields = field_names(record)
    raise BadInput(f"{where}: no field {expected}; {remedy}. Fields there are: {fields}")


def field_names(record: Record) -> str:
    """Return a record's field names for a message."""
    names = [short(name) for name in record]
    return ", ".join(names[:20] + ["…"] * (len(names) > 20)) or "none"


def checked_id(value: object, where: str) -> str:
    """Return an id as a string; ``BadInput`` with the problem if it cannot be used."""
    id = checked_string(number_as_string(value), "id", where, "ids are strings or numbers")
    if not id.strip() or "\0" in id:
        problem = "holds a NUL character" if "\0" in id else "is empty"
        raise BadInput(f"{where}: the id {short(id)} {problem}; give it visible characters")
    return id


def number_as_string(value: object) -> object:
    """Return a finite number as a string, any other value unchanged."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return value
    return str(value) if isinstance(value, int | float | Decimal) else value


def checked_string(value: object, what: str, where: str, remedy: str) -> str:
    """Return a string that can be stored; ``BadInput`` with the problem for other values."""
    if not isinstance(value, str):
        shown = "null" if value is None else f"{short(value)} ({type(value).__name__})"
        raise BadInput(f"{where}: {what} is {shown}, not a string; {remedy}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        near = repr(value[max(0, error.start - 20) : error.start + 20])
        raise BadInput(f"{where}: a lone surrogate, not UTF-8, in {near}; remove it") from None
    return value


def jsonable(value: object, where: str) -> Any:
    """Return a JSON value: NaN becomes null; dates, decimals and bytes become strings."""
    if isinstance(value, dict):
        return {jsonable(str(key), where): jsonable(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item, where) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, bool | int):
        return value
    return checked_string(str(value), "metadata", where, "")
