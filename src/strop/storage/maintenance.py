"""Looking after an index folder: checking and mending it, compaction, sizes, leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints, as_floats, ranges
from strop.errors import IndexDamaged
from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.sidecar import read_arrays
from strop.storage.snapshot import CACHE, cache_is_true
from strop.storage.vectors import (
    Sums,
    bytes_of,
    cannot_write,
    damaged_rows,
    map_rows,
    row_sums,
    row_type,
    stored_rows,
    sync_folder,
    type_for,
    whole_rows,
)
from strop.types import Progress

_COPIED_AT_ONCE = 64_000_000
CODES, CANDIDATES_FORMAT = ".codes", 4
"""Candidates (candidates.py) are two files of the cache, one with this ending."""


@dataclass
class Findings:
    """What is wrong with an index: in words, and what has to be done about it."""

    problems: list[str] = field(default_factory=list)
    rewrite: dict[int, set[int]] = field(default_factory=dict)
    """Files to write anew, by set, and the documents whose vectors in them are no good."""
    reindex: bool = False
    recount: bool = False
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(set, document) that should wait for vectors and does not."""
    cache: bool = False
    candidates: bool = False

    def bad(self, set_id: int, numbers: Iterable[int], problem: str) -> None:
        """Note vectors that have to be made again."""
        self.problems.append(problem)
        self.rewrite.setdefault(set_id, set()).update(numbers)


# -- checking --------------------------------------------------------------------------------


def check(catalog: Catalog, folder: Path, dim: int, progress: Progress | None = None) -> Findings:
    """Read everything and return what is wrong: damage of any file, and contradictions."""
    found = Findings()
    with catalog.reading() as connection:
        said = [line for (line,) in connection.execute("PRAGMA integrity_check(5)")]
        if said != ["ok"]:
            found.problems.append(f"catalog.sqlite: {'; '.join(said)}")
            found.reindex = True
        files = catalog.vectors.files()
        for at, file in enumerate(files.values()):
            spans = catalog.vectors.spans(file.set_id)
            _check_file(found, catalog, folder, dim, file, spans)
            _check_spans(found, connection, file, spans)
            if progress is not None:
                progress("checking vectors", at + 1, len(files))
        _check_waiting(found, catalog, connection)
        (documents,) = connection.execute("SELECT count(*) FROM documents").fetchone()
        if documents != catalog.documents.count():
            found.problems.append(
                f"{documents:,} documents are counted as {catalog.documents.count():,}"
            )
            found.recount = True
        if not cache_is_true(catalog, folder):
            found.problems.append("the cache of spans differs from the catalog")
            found.cache = True
        wrong = _wrong_with_candidates(catalog, folder)
        if wrong:
            found.problems.append(wrong)
            found.candidates = True
    return found


def _check_file(
    found: Findings,
    catalog: Catalog,
    folder: Path,
    dim: int,
    file: VectorFile,
    spans: NDArray[np.int64],
) -> None:
    path, row = folder / "vectors" / file.name, row_type(file.dtype, dim)
    name = f"vectors/{file.name}"
    have = whole_rows(path, row)
    cut = have < file.rows
    if cut:
        found.problems.append(f"{name} holds {have:,} of {file.rows:,} vectors")
    for first, behind in _damage(catalog, path, row, file):
        whose = spans[(spans[:, 1] < behind) & (spans[:, 1] + spans[:, 2] > first), 0]
        found.rewrite.setdefault(file.set_id, set()).update(whose.tolist())
        if cut and behind == file.rows:  # has been told
            continue
        found.problems.append(
            f"{name}: rows {first:,} to {behind - 1:,} are not what was written; they belong to "
            f"{len(whose):,} documents"
        )


def _damage(
    catalog: Catalog, path: Path, row: np.dtype[Any], file: VectorFile
) -> list[tuple[int, int]]:
    """Return the rows of a file that are not what was written."""
    sums = catalog.vectors.checksums(file.set_id)
    missing = [(len(sums), file.rows)] if len(sums) < file.rows else []
    return damaged_rows(path, row, sums[: file.rows]) + missing


def _check_spans(
    found: Findings, connection: Any, file: VectorFile, spans: NDArray[np.int64]
) -> None:
    """Look for spans that cannot be: outside their file, overlapping, with other texts."""
    name, (numbers, start, count) = f"vectors/{file.name}", spans.T[:3]
    outside = (start < 0) | (count < 0) | (start + count > file.rows)
    wrong = set(numbers[outside | _overlapping(start, count)].tolist())
    if file.set_id == DOCUMENTS:
        wrong |= set(numbers[count != 1].tolist())
    else:
        wrong |= {
            number
            for (number,) in connection.execute(
                "SELECT number FROM spans LEFT JOIN queries USING (set_id, number)"
                " WHERE set_id = ? AND count IS NOT json_array_length(texts)",
                (file.set_id,),
            )
        }
    wrong |= {
        number
        for (number,) in connection.execute(
            "SELECT number FROM spans LEFT JOIN documents USING (number)"
            " WHERE set_id = ? AND id IS NULL",
            (file.set_id,),
        )
    }
    if wrong:
        found.bad(file.set_id, wrong, f"{name}: {len(wrong):,} documents have impossible rows")
    if (int(count.sum()), int((count > 0).sum())) != (file.live, file.lists):
        found.problems.append(f"{name}: its rows are miscounted in the catalog")
        found.recount = True


def _overlapping(start: Ints, count: Ints) -> NDArray[np.bool_]:
    """Tell which spans share rows with others."""
    found = np.zeros(len(start), np.bool_)
    filled = np.flatnonzero(count > 0)
    order = filled[np.argsort(start[filled], kind="stable")]
    ends = np.maximum.accumulate(start[order] + count[order])
    apart = np.concatenate([[True], start[order][1:] >= ends[:-1]])[: len(order)]
    group = np.cumsum(apart) - 1
    found[order] = np.bincount(group)[group] > 1
    return found


def _check_waiting(found: Findings, catalog: Catalog, connection: Any) -> None:
    """Look for documents that have no vectors and do not wait for any."""
    derived = {set_.set_id: set_.name for set_ in catalog.sets.all().values() if set_.derived}
    for set_id, name in {DOCUMENTS: "vector", **derived}.items():
        lost = connection.execute(
            "SELECT number FROM documents d WHERE NOT EXISTS (SELECT 1 FROM spans s"
            " WHERE s.set_id = ? AND s.number = d.number) AND NOT EXISTS (SELECT 1 FROM waiting w"
            " WHERE w.set_id = ? AND w.number = d.number)",
            (set_id, set_id),
        ).fetchall()
        if lost:
            found.problems.append(f"{len(lost):,} documents have no {name} and wait for none")
            found.lost += [(set_id, number) for (number,) in lost]


def _wrong_with_candidates(catalog: Catalog, folder: Path) -> str | None:
    name = catalog.settings.get("candidates")
    if name is None:
        return None
    found = read_arrays(folder / CACHE / name)
    if found is None or read_arrays(folder / CACHE / f"{name}{CODES}") is None:
        return f"the candidates {CACHE}/{name} are not what was written"
    if found[1]["format"] != CANDIDATES_FORMAT:
        return (
            f"the candidates {CACHE}/{name} are of another version of strop (format "
            f"{found[1]['format']}, not {CANDIDATES_FORMAT}): searches do without them"
        )
    return None


def mend(catalog: Catalog, folder: Path, dim: int, found: Findings) -> None:
    """Undo damage as far as the catalog allows; vectors that were lost wait to be made again."""
    if found.reindex:
        with catalog.writing() as connection:
            connection.execute("REINDEX")
            said = [line for (line,) in connection.execute("PRAGMA integrity_check(5)")]
            if said != ["ok"]:
                raise IndexDamaged(
                    f"{catalog.path} is damaged ({'; '.join(said)}) and cannot be rebuilt: restore "
                    "it from a backup, or build the index again in another folder"
                )
    for set_id, numbers in found.rewrite.items():
        file = catalog.vectors.files()[set_id]
        rewrite(catalog, folder, dim, file, file.dtype, sorted(numbers))
    with catalog.writing() as connection:
        connection.executemany(
            "INSERT OR IGNORE INTO waiting (set_id, number) VALUES (?, ?)", found.lost
        )
        connection.execute("DELETE FROM waiting WHERE number NOT IN (SELECT number FROM documents)")
        if found.recount:
            catalog.vectors.recount()
        if found.cache:
            catalog.settings.put(cache=None)
        if found.candidates:
            catalog.settings.put(candidates=None)


# -- compaction ------------------------------------------------------------------------------


def compact(
    catalog: Catalog,
    folder: Path,
    dim: int,
    stored: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write vector files anew without the rows that nothing refers to.

    With ``stored``, all become of the types of that way to store, as will be sets to come.
    Stopped in between, some files are: each says of itself what it is.
    """
    sources = {set_.set_id: set_.settings["source"] for set_ in catalog.sets.all().values()}
    wanted = {file.set_id: file.dtype for file in catalog.vectors.files().values()}
    if stored is not None:
        wanted |= {set_id: type_for(stored, source) for set_id, source in sources.items()}
        catalog.settings.put(query_vectors=stored)
    files = [
        file
        for file in catalog.vectors.files().values()
        if file.rows > file.live or file.dtype != wanted[file.set_id]
    ]
    for at, file in enumerate(files):
        path, row = folder / "vectors" / file.name, row_type(file.dtype, dim)
        spans = catalog.vectors.spans(file.set_id)
        for first, behind in _damage(catalog, path, row, file):
            if ((spans[:, 1] < behind) & (spans[:, 1] + spans[:, 2] > first)).any():
                raise IndexDamaged(
                    f"{path} is damaged in rows {first:,} to {behind - 1:,}. Mend it first: "
                    f"strop check {folder} --repair"
                )
        rewrite(catalog, folder, dim, file, wanted[file.set_id])
        if progress is not None:
            progress("compacting", at + 1, len(files))


def rewrite(
    catalog: Catalog,
    folder: Path,
    dim: int,
    file: VectorFile,
    dtype: str,
    bad: list[int] | None = None,
) -> None:
    """Copy the rows in use to a new file, in the order of documents, and let it take over.

    Its rows are of the type ``dtype``. The vectors of the documents ``bad`` are left out and wait
    to be made again. Readers of the old file keep it until they look again.
    """
    row = row_type(file.dtype, dim)
    old, name = folder / "vectors" / file.name, file.renamed(dtype)
    spans = catalog.vectors.spans(file.set_id)
    spans = spans[~np.isin(spans[:, 0], bad or [])]
    start, count = spans[:, 1].copy(), spans[:, 2]
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    rows = map_rows(old, min(file.rows, whole_rows(old, row)), row)
    try:
        sums = copy_rows(
            rows, start, count, folder / "vectors" / name, 4 * dim,
            None if dtype == file.dtype else dtype,
        )  # fmt: skip
    except OSError as error:
        with suppress(OSError):
            (folder / "vectors" / name).unlink()
        raise cannot_write(folder, error) from error
    del rows
    spans[:, 1] = ends - count
    with catalog.writing():
        if bad:
            catalog.sets.forget(file.set_id, bad)
        catalog.vectors.move(file, name, dtype, total, spans, sums)
    with suppress(OSError):  # where a reader holds it, it goes later
        old.unlink()


def copy_rows(
    rows: NDArray[Any], start: Ints, count: Ints, path: Path, row_bytes: int, dtype: str | None
) -> Sums:
    """Write spans of rows one behind the other; return the new file's checksums.

    They become rows of the type ``dtype``, if one is given; as floats they take ``row_bytes``.
    """
    sums, written = [np.empty(0, np.uint32)], 0
    ends = np.cumsum(count)
    path.parent.mkdir(exist_ok=True)
    with open(path, "w+b") as file:
        at = 0
        while at < len(start):
            most = written + max(1, _COPIED_AT_ONCE // row_bytes)
            end = max(at + 1, int(np.searchsorted(ends, most, "right")))
            part = rows[ranges(start[at:end], count[at:end])]
            if dtype is not None:
                part = stored_rows(as_floats(part), dtype)
            file.write(bytes_of(part))
            sums.append(row_sums(part))
            written += len(part)
            at = end
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return np.concatenate(sums)


# -- sizes and leftovers ---------------------------------------------------------------------


def counts(catalog: Catalog) -> dict[str, Any]:
    """Return numbers for people: documents, lists and queries by set, what waits."""
    with catalog.reading() as connection:

        def number(sql: str, *values: object) -> int:
            return int(connection.execute(sql, values).fetchone()[0] or 0)

        files = catalog.vectors.files()
        sets = {
            set_.name: {
                **set_.settings,
                "vectors": files[set_.set_id].dtype,
                "documents": files[set_.set_id].lists,
                "queries": files[set_.set_id].live,
                "older_than_text": number(
                    "SELECT count(*) FROM spans INDEXED BY older_spans WHERE set_id = ? AND older",
                    set_.set_id,
                ),
                "waiting": catalog.vectors.waiting_count(set_.set_id),
            }
            for set_ in catalog.sets.all().values()
        }
        return {
            "references": catalog.references.counts(),
            "documents": catalog.documents.count(),
            "empty": number("SELECT count(*) FROM documents WHERE empty"),
            "waiting": catalog.vectors.waiting_count(),
            "sets": sets,
        }


def sizes(catalog: Catalog, folder: Path, dim: int) -> dict[str, Any]:
    """Return bytes by kind. ``waste`` is part of the others: what compaction would give back.

    ``plain`` is what the documents' vectors alone take as float32, ``times_plain`` how many
    times that they and the query vectors take here (without expanded texts).
    """
    with catalog.reading():
        sets = catalog.sets.all().values()
        files, names = catalog.vectors.files(), {set_.set_id: set_.name for set_ in sets}
        waste, documents = catalog.database.free_bytes(), catalog.documents.count()
    named = {file.name for file in files.values()}
    vectors = {}
    for file in files.values():
        size = _size(folder / "vectors" / file.name)
        vectors[file.set_id] = size
        waste += max(0, size - file.live * row_type(file.dtype, dim).itemsize)
    left = sum(_size(one) for one in _entries(folder / "vectors") if one.name not in named)
    told: dict[str, Any] = {
        "catalog": sum(_size(one) for one in folder.glob(f"{catalog.path.name}*")),
        "documents": vectors.pop(DOCUMENTS),
        "sets": {names[set_id]: size for set_id, size in vectors.items()},
        "cache": sum(map(_size, _entries(folder / CACHE))),
        "left_over": left,
        "waste": waste + left,
    }
    total = sum(told[kind] for kind in ("catalog", "documents", "cache", "left_over"))
    total += sum(vectors.values())
    own = {set_.set_id for set_ in sets if set_.settings["source"] != "expanded"}
    used = told["documents"] + sum(size for set_id, size in vectors.items() if set_id in own)
    plain = 4 * dim * documents
    return {
        **told, "total": total, "per_document": total / documents if documents else None,
        "plain": plain, "times_plain": used / plain if plain else None,
    }  # fmt: skip


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of an index, by its path in the folder."""
    return {
        file.relative_to(folder).as_posix(): _size(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "writer.lock"
    }


def sweep(catalog: Catalog, folder: Path) -> None:
    """Delete what stopped writers left; for the one writer."""
    with catalog.reading():
        name = catalog.settings.get("candidates")
        kept = {file.name for file in catalog.vectors.files().values()}
        kept |= {catalog.settings.get("cache"), name, f"{name}{CODES}"}
    for entry in (*_entries(folder / "vectors"), *_entries(folder / CACHE)):
        if entry.name not in kept:
            with suppress(OSError):
                entry.unlink()


def _entries(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.is_file()] if folder.is_dir() else []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
