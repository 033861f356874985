"""Folders of files as documents: which files, and their texts.

The id of a document is the file's path in the folder. Its metadata are that path, the time of the
last modification, and the front matter of Markdown.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from strop.common.text import counted
from strop.errors import BadInput, MissingExtra, pip_install
from strop.io.conversion import CONVERTED, can_convert, convert
from strop.io.files import (
    MAX_BYTES,
    cannot_read,
    checked_id,
    is_gzip,
    jsonable,
    numbered_lines,
    suffix,
    too_long,
)
from strop.io.markdown import first_heading, split_front_matter
from strop.types import Document

TEXTS = (".txt", ".md", ".rst")
_log = logging.getLogger(__name__)


class File(NamedTuple):
    """A file of a folder: the id of its document, its path, size and time of modification."""

    id: str
    path: str
    size: int
    modified_ns: int


def files_in(folder: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[File]:
    """Return the files of a folder that can be read: files before subfolders, sorted by name.

    Hidden names are skipped and links to folders not followed. ``include`` and ``exclude`` are
    patterns such as ``*.md`` or ``docs/*``: one without a slash is compared with the name of each
    file and folder; one with a slash is compared with the path in the folder, and ``*`` matches
    slashes too.
    Files of a kind that ``include`` names, such as ``*.py``, are read as text.
    """
    files: list[File] = []
    left_out: Counter[str] = Counter()
    others: Counter[str] = Counter()
    named = {suffix(pattern) for pattern in include} - {""}
    for path, id_ in _walk(folder, exclude):
        if include and not _matches(id_, include):
            continue
        kind = "" if is_gzip(path) and suffix(path) in CONVERTED else suffix(path)
        if kind in CONVERTED and not can_convert(kind):
            left_out[kind] += 1
        elif kind not in {*TEXTS, *CONVERTED, *named}:
            others[kind or "without extension"] += 1
        else:
            try:
                about = os.stat(path)
            except OSError as error:
                raise cannot_read(path, error) from error
            files.append(File(checked_id(id_, path), path, about.st_size, about.st_mtime_ns))
    if others and files:
        _log.warning(
            "%s: %s of other kinds not read: %s. To read a kind as text, name it and the kinds to"
            " keep: --include '*.py' --include '*.md' reads these two only", folder,
            counted(sum(others.values()), "file"),
            ", ".join(f"{kind} ({count})" for kind, count in others.most_common(8)),
        )  # fmt: skip
    if left_out and not files:
        raise MissingExtra(f"Reading {' and '.join(sorted(left_out))} files", "files")
    if left_out:
        _log.warning(
            "%s: %s not read: %s; to read such files: %s", folder,
            counted(sum(left_out.values()), "file"), ", ".join(sorted(left_out)),
            pip_install("strop[files]"),
        )  # fmt: skip
    if not files:
        matching = " that --include and --exclude leave" if include or exclude else ""
        raise BadInput(
            f"{folder}: nothing to read{matching}; it needs corpus.jsonl (BEIR), or files:"
            f" {', '.join((*TEXTS[:-1], *CONVERTED))} or {TEXTS[-1]}"
        )
    return files


def _walk(folder: str, exclude: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that is not left out, and its path in the folder."""

    def fail(error: OSError) -> None:  # os.walk skips unreadable folders silently
        raise cannot_read(str(error.filename), error) from error

    for parent, subfolders, names in os.walk(folder, onerror=fail):
        inside = Path(parent).relative_to(folder)
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not name.startswith(".") and not _matches((inside / name).as_posix(), exclude)
        )
        for name in sorted(names):
            plain = (inside / (name[:-3] if is_gzip(name) else name)).as_posix()
            if not name.startswith(".") and not _matches(plain, exclude):
                yield os.path.join(parent, name), plain


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatchcase(path, pattern)
        if "/" in pattern
        else any(fnmatchcase(part, pattern) for part in path.split("/"))
        for pattern in patterns
    )


def read_file(file: File, max_bytes: int = MAX_BYTES) -> Document:
    """Return the document of a file."""
    kind, title = suffix(file.path), ""
    front: dict[str, Any] = {}
    if kind in CONVERTED:
        text, title = convert(_content(file.path, max_bytes), kind, file.path, max_bytes)
    else:
        text = _whole_text(file.path, max_bytes)
    if kind == ".md":
        front, text = split_front_matter(text, file.path)
        front = jsonable(front, file.path)
        title = front.pop("title", None) or first_heading(text)
    modified = datetime.fromtimestamp(file.modified_ns // 10**9, timezone.utc)
    about = {"path": file.id, "modified": modified.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return Document(file.id, text, str(title), about | front)


def _content(path: str, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise cannot_read(path, error) from error
    if len(data) > max_bytes:
        raise too_long(path, "the file", max_bytes)
    return data


def _whole_text(path: str, max_bytes: int) -> str:
    lines, size = [], 0
    for _, line in numbered_lines(path, max_bytes):
        size += len(line.encode("utf-8"))
        if size > max_bytes:
            raise too_long(path, "the file", max_bytes)
        lines.append(line)
    return "".join(lines)
