"""Reads everything in an index folder and names what is wrong: damage and contradictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.errors import BadIndex
from strop.storage.catalog import Catalog
from strop.storage.database import NONSENSE, explained
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.sidecar import CACHE, read_arrays
from strop.storage.snapshot import SPANS, cache_is_true
from strop.storage.vectors import damaged_rows, row_type, whole_rows
from strop.types import Progress


@dataclass
class Findings:
    """What is wrong with an index: in words, and what has to be done about it."""

    problems: list[str] = field(default_factory=list)
    rewrite: dict[int, set[int]] = field(default_factory=dict)
    """Files to write anew, by set, and the documents whose vectors in them are no good."""
    reindex: bool = False
    recount: bool = False
    reseal: bool = False
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(set, document) that should wait for vectors and does not."""
    sidecars: set[str] = field(default_factory=set)
    """Kinds of sidecars that have to be dropped."""

    def bad(self, set_id: int, numbers: Iterable[int], problem: str) -> None:
        """Note vectors that have to be made again."""
        self.problems.append(problem)
        self.rewrite.setdefault(set_id, set()).update(numbers)


def check(catalog: Catalog, folder: Path, dim: int, progress: Progress | None = None) -> Findings:
    """Read everything and return what is wrong: damage of any file, and contradictions."""
    findings = Findings()

    def section(examine: Callable[[], None]) -> None:
        """Survive whatever stands in the catalog, and name it."""
        try:
            with explained(catalog.path):
                examine()
        except (BadIndex, *NONSENSE) as error:
            findings.problems.append(f"{catalog.path.name}: {error}")

    with catalog.reading() as connection:

        def integrity() -> None:
            report = [line for (line,) in connection.execute("PRAGMA integrity_check(5)")]
            if report != ["ok"]:
                findings.problems.append(f"catalog.sqlite: {'; '.join(map(str, report))}")
                findings.reindex = True

        def seals() -> None:
            if tables := catalog.database.tables_changed_by_others():
                findings.problems.append(
                    f"catalog.sqlite: rows of {', '.join(tables)} are not what strop wrote: restore"
                    " it from a backup, or build the index again; --repair keeps them as they are"
                )
                findings.reseal = True

        def numbers() -> None:
            for key in ("version", "log_from"):
                catalog.settings.number(key)
            (documents,) = connection.execute("SELECT count(*) FROM documents").fetchone()
            if documents != catalog.documents.count():
                findings.problems.append(
                    f"{documents:,} documents are counted as {catalog.documents.count():,}"
                )
                findings.recount = True

        def vectors() -> None:
            files = catalog.vectors.files()
            for at, file in enumerate(files.values()):
                spans = catalog.vectors.spans(file.set_id)
                _check_file(findings, catalog, folder, dim, file, spans)
                _check_spans(findings, connection, file, spans)
                if progress is not None:
                    progress("checking vectors", at + 1, len(files))

        def sidecars() -> None:
            if not cache_is_true(catalog, folder):
                findings.problems.append("the cache of spans differs from the catalog")
                findings.sidecars.add(SPANS)
            for kind, name in catalog.settings.sidecars().items():
                # The spans are verified whenever they are read: spoilt ones (they are not synced,
                # a power cut may spoil them) are as good as none.
                if kind != SPANS and read_arrays(folder / CACHE / name) is None:
                    findings.problems.append(f"the {kind} {CACHE}/{name} are not what was written")
                    findings.sidecars.add(kind)

        section(integrity)
        section(seals)
        section(vectors)
        section(lambda: _check_waiting(findings, catalog, connection))
        section(lambda: _check_values(findings, connection))
        section(numbers)
        section(sidecars)
    return findings


def _check_values(findings: Findings, connection: Any) -> None:
    """Look for texts that should be JSON and are not."""
    for table, column, kind in (
        ("documents", "metadata", "object"), ("sets", "settings", "object"),
        ("queries", "texts", "array"), ("meta", "value", None),
    ):  # fmt: skip
        type_ = f"json_type({column})"
        wrong = f"{type_} IS NOT '{kind}'" if kind else "0"
        (count,) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE CASE WHEN typeof({column}) = 'text'"
            f" AND json_valid({column}) THEN {wrong} ELSE 1 END"
        ).fetchone()
        if count:
            findings.problems.append(
                f"catalog.sqlite: {count:,} values of {table}.{column} are not what strop writes: "
                "restore the catalog from a backup, or build the index again"
            )


def _check_file(
    findings: Findings,
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
        findings.problems.append(f"{name} holds {have:,} of {file.rows:,} vectors")
    for first, behind in damage(catalog, path, row, file):
        whose = spans[(spans[:, 1] < behind) & (spans[:, 1] + spans[:, 2] > first), 0]
        findings.rewrite.setdefault(file.set_id, set()).update(whose.tolist())
        if cut and behind == file.rows:  # has been told
            continue
        findings.problems.append(
            f"{name}: rows {first:,} to {behind - 1:,} are not what was written; they belong to "
            f"{len(whose):,} documents"
        )


def damage(
    catalog: Catalog, path: Path, row: np.dtype[Any], file: VectorFile
) -> list[tuple[int, int]]:
    """Return the rows of a file that are not what was written."""
    sums = catalog.vectors.checksums(file.set_id)
    missing = [(len(sums), file.rows)] if len(sums) < file.rows else []
    return damaged_rows(path, row, sums[: file.rows]) + missing


def _check_spans(
    findings: Findings, connection: Any, file: VectorFile, spans: NDArray[np.int64]
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
    wrong |= {
        number
        for (number,) in connection.execute(
            "SELECT number FROM spans s JOIN documents d USING (number)"
            " WHERE set_id = ? AND older IS NOT (s.digest IS NOT d.digest)",
            (file.set_id,),
        )
    }
    if wrong:
        findings.bad(file.set_id, wrong, f"{name}: {len(wrong):,} documents have impossible rows")
    if (int(count.sum()), int((count > 0).sum())) != (file.live, file.lists):
        findings.problems.append(f"{name}: its rows are miscounted in the catalog")
        findings.recount = True


def _overlapping(start: Ints, count: Ints) -> NDArray[np.bool_]:
    """Tell which spans share rows with others."""
    shared = np.zeros(len(start), np.bool_)
    filled = np.flatnonzero(count > 0)
    order = filled[np.argsort(start[filled], kind="stable")]
    ends = np.maximum.accumulate(start[order] + count[order])
    apart = np.concatenate([[True], start[order][1:] >= ends[:-1]])[: len(order)]
    group = np.cumsum(apart) - 1
    shared[order] = np.bincount(group)[group] > 1
    return shared


def _check_waiting(findings: Findings, catalog: Catalog, connection: Any) -> None:
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
            findings.problems.append(f"{len(lost):,} documents have no {name} and wait for none")
            findings.lost += [(set_id, number) for (number,) in lost]
