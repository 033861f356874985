"""Reads everything in an index folder, reports problems, and repairs what can be repaired."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from strop.common.arrays import Ints
from strop.common.text import counted
from strop.errors import BadIndex, IndexDamaged
from strop.storage.catalog import Catalog
from strop.storage.compaction import damage, rewrite
from strop.storage.database import DECODING_ERRORS, reporting_damage, sqlite_errors
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.sidecar import CACHE, read_arrays
from strop.storage.snapshot import SPANS, cache_is_true
from strop.storage.vectors import whole_rows
from strop.types import Progress

_JSON_COLUMNS = (
    ("documents", "metadata", "object"), ("sets", "settings", "object"),
    ("queries", "texts", "array"), ("meta", "value", None), ("chunks", "headings", "array"),
)  # fmt: skip
"""Cells that must be JSON: table, column and type of the value, None for any type."""
_DERIVED = {
    "words": ("word_sources", "word_segments", "word_lengths"), "facets": ("fields", "facets"),
}  # fmt: skip
"""Sealed tables that a repair recomputes, by its name."""


class Check:
    """One check of an index: descriptions of its ``problems``, and how to ``repair`` them."""

    def __init__(self, catalog: Catalog, progress: Progress | None = None) -> None:
        """Read everything: damage of any file, and contradictions."""
        self._catalog, self._progress = catalog, progress
        self._rows_of, self._value_of = catalog.database.rows, catalog.database.value
        self.problems: list[str] = []
        self._repairs: dict[str, Callable[[], None]] = {}  # in this order, by what is repaired
        self._indexes_are_broken = False  # SQLite's own
        self._unsealed: list[str] = []  # tables whose rows do not match their seal
        self._damaged: dict[int, set[int]] = {}  # by set: documents with damaged vectors
        self._lost: list[tuple[int, int]] = []  # (set, document): no vectors, and not waiting
        sections = (
            self._seals, self._integrity, self._words, self._facets, self._vectors, self._waiting,
            self._values, self._counts, self._chunks, self._cached,
        )  # fmt: skip
        with catalog.reading():
            for section in sections:
                try:
                    with sqlite_errors(catalog.path):
                        section()
                except (BadIndex, *DECODING_ERRORS) as error:  # the check survives any contents
                    self.problems.append(f"{catalog.path.name}: {error}")

    def repair(self) -> list[IndexDamaged]:
        """Undo damage as far as the catalog allows; return the errors of repairs that failed.

        Lost vectors wait to be recomputed. Only the one writer may call this. Nothing is written,
        and the error raised, if SQLite still reports problems after its indexes are rebuilt: new
        rows could overwrite texts.
        """
        if self._indexes_are_broken:
            self._rebuild_indexes()
        for set_id, numbers in self._damaged.items():
            self._repairs[f"vectors of set {set_id}"] = partial(self._rewrite, set_id, numbers)
        self._repairs["waiting documents"] = self._wait
        failures: list[IndexDamaged] = []
        for name, repair in self._repairs.items():
            try:
                with reporting_damage(self._catalog.path, name):
                    repair()
            except IndexDamaged as error:
                failures.append(error)
        # A seal may be the only evidence of damage: seals are renewed if no repair failed.
        if self._unsealed and not failures:
            self._catalog.database.seal()
        return failures

    def _rewrite(self, set_id: int, damaged: set[int]) -> None:
        file = self._catalog.vectors.files()[set_id]
        rewrite(self._catalog, file, file.dtype, sorted(damaged))

    def _wait(self) -> None:
        """Let the lost vectors wait to be recomputed, and count what is stored."""
        with self._catalog.writing() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO waiting (set_id, number) VALUES (?, ?)", self._lost
            )
            connection.execute(
                "DELETE FROM waiting WHERE number NOT IN (SELECT number FROM documents)"
            )
            self._catalog.vectors.recount()

    # -- sections -------------------------------------------------------------------------

    def _integrity_report(self) -> str:
        """Return the problems that SQLite reports about its file, "" if there are none."""
        report = "; ".join(str(line) for (line,) in self._rows_of("PRAGMA integrity_check(5)"))
        return "" if report == "ok" else report

    def _integrity(self) -> None:
        if report := self._integrity_report():
            self.problems.append(f"catalog.sqlite: {report}")
            self._indexes_are_broken = True

    def _rebuild_indexes(self) -> None:
        with self._catalog.writing() as connection:
            connection.execute("REINDEX")
            if report := self._integrity_report():
                raise IndexDamaged(
                    f"{self._catalog.path} is damaged ({report}) and cannot be rebuilt: restore it "
                    "from a backup, or build the index again in another folder"
                )

    def _seals(self) -> None:
        self._unsealed, are_readable = self._catalog.database.tables_changed_by_others()
        if not are_readable:
            self.problems.append(
                "catalog.sqlite: rows cannot be compared with their seals, which are unreadable;"
                " --repair makes new seals for the rows as they are"
            )
            return
        derived = {*chain(*_DERIVED.values())}
        if given := ", ".join(table for table in self._unsealed if table not in derived):
            self.problems.append(
                f"catalog.sqlite: rows of {given} are not what strop wrote: restore it from a"
                " backup, or build the index again; --repair keeps them as they are"
            )
        if computed := ", ".join(table for table in self._unsealed if table in derived):
            self.problems.append(
                f"catalog.sqlite: rows of {computed} are not what strop wrote; --repair computes"
                " them again from the texts and metadata"
            )

    def _vectors(self) -> None:
        files = self._catalog.vectors.files()
        for at, file in enumerate(files.values(), 1):
            spans = self._catalog.vectors.spans(file.set_id)
            self._rows(file, spans)
            self._spans(file, spans)
            if self._progress is not None:
                self._progress("checking vectors", at, len(files))

    def _rows(self, file: VectorFile, spans: NDArray[np.int64]) -> None:
        """Compare the rows of a file with their checksums."""
        stored = whole_rows(*self._catalog.vector_file(file))
        truncated = stored < file.rows
        if truncated:
            self.problems.append(f"vectors/{file.name} holds {stored:,} of {file.rows:,} vectors")
        for first, behind, owners in damage(self._catalog, file, spans):
            self._damaged.setdefault(file.set_id, set()).update(owners.tolist())
            if not truncated or behind != file.rows:  # else it is reported already
                self.problems.append(
                    f"vectors/{file.name}: rows {first:,} to {behind - 1:,} are not what was "
                    f"written; they belong to {counted(len(owners), 'document')}"
                )

    def _spans(self, file: VectorFile, spans: NDArray[np.int64]) -> None:
        """Find impossible spans: outside their file, overlapping, or not fitting their texts."""
        numbers, start, count = spans.T[:3]
        wrong = (start < 0) | (count < 0) | (start + count > file.rows)
        wrong |= _overlapping(start, count)
        if file.set_id == DOCUMENTS:
            wrong |= count != 1
        rows = self._rows_of(
            "SELECT number FROM spans s LEFT JOIN documents d USING (number)"
            " LEFT JOIN queries q USING (set_id, number) WHERE set_id = ? AND (d.id IS NULL"
            " OR older IS NOT (s.digest IS NOT d.digest)"
            " OR (set_id != 0 AND count IS NOT json_array_length(texts)))",
            (file.set_id,),
        )
        documents = {*numbers[wrong].tolist(), *(number for (number,) in rows)}
        if documents:
            self.problems.append(
                f"vectors/{file.name}: {len(documents):,} documents have impossible rows"
            )
            self._damaged.setdefault(file.set_id, set()).update(documents)
        if (int(count.sum()), int((count > 0).sum())) != (file.live, file.lists):
            self.problems.append(f"vectors/{file.name}: its rows are miscounted in the catalog")

    def _waiting(self) -> None:
        """Find documents that have no vectors and do not wait for any."""
        sets = self._catalog.sets.all().values()
        derived = {set_.set_id: set_.name for set_ in sets if set_.derived}
        for set_id, name in {DOCUMENTS: "vector", **derived}.items():
            lost = self._rows_of(
                "SELECT ?1, number FROM documents WHERE number NOT IN"
                " (SELECT number FROM spans WHERE set_id = ?1 UNION ALL"
                " SELECT number FROM waiting WHERE set_id = ?1)",
                (set_id,),
            )
            if lost:
                self.problems.append(f"{len(lost):,} documents have no {name} and wait for none")
                self._lost += lost

    def _values(self) -> None:
        for table, column, kind in _JSON_COLUMNS:
            wrong_type = f"json_type({column}) IS NOT '{kind}'" if kind else "0"
            count = self._value_of(
                f"SELECT count(*) FROM {table} WHERE CASE WHEN typeof({column}) = 'text'"
                f" AND json_valid({column}) THEN {wrong_type} ELSE 1 END"
            )
            if count:
                self.problems.append(
                    f"catalog.sqlite: {count:,} values of {table}.{column} are not what strop "
                    "writes: restore the catalog from a backup, or build the index again"
                )

    def _counts(self) -> None:
        for key in ("version", "log_from"):
            self._catalog.settings.number(key)
        documents = self._value_of("SELECT count(*) FROM documents")
        stored = self._catalog.documents.count()
        if documents != stored:
            self.problems.append(f"{documents:,} documents are counted as {stored:,}")

    def _words(self) -> None:
        words = self._catalog.words
        self._recomputed("words", words.recount, words.problems)

    def _facets(self) -> None:
        facets = self._catalog.facets
        self._recomputed("facets", facets.rebuild, facets.problems)

    def _recomputed(
        self, name: str, repair: Callable[[], None], read: Callable[[], list[str]]
    ) -> None:
        """Report the problems of derived tables; repair them too if they cannot be read."""
        self._repairs[name] = repair
        problems = read()
        self.problems += [f"catalog.sqlite: {problem}" for problem in problems]
        if not problems and not {*_DERIVED[name]} & {*self._unsealed}:
            del self._repairs[name]

    def _chunks(self) -> None:
        documents = self._catalog.documents
        problems = documents.chunks.problems(documents.are_split())
        self.problems += [f"catalog.sqlite: {problem}" for problem in problems]

    def _cached(self) -> None:
        if not cache_is_true(self._catalog):
            self.problems.append("the cache of spans differs from the catalog")
            self._repairs[SPANS] = partial(self._catalog.settings.put_sidecar, SPANS, None)
        for kind, name in self._catalog.settings.sidecars().items():
            # The cached spans are verified whenever they are read. They are not synced, so a power
            # cut may damage them; damaged ones are ignored like missing ones.
            if kind != SPANS and read_arrays(self._catalog.folder / CACHE / name) is None:
                self.problems.append(f"the {kind} {CACHE}/{name} are not what was written")
                self._repairs[kind] = partial(self._catalog.settings.put_sidecar, kind, None)


def _overlapping(start: Ints, count: Ints) -> NDArray[np.bool_]:
    """Return which spans share rows with others."""
    shared = np.zeros(len(start), np.bool_)
    filled = np.flatnonzero(count > 0)
    order = filled[np.argsort(start[filled], kind="stable")]
    ends = np.maximum.accumulate(start[order] + count[order])
    apart = np.concatenate([[True], start[order][1:] >= ends[:-1]])[: len(order)]
    group = np.cumsum(apart) - 1
    shared[order] = np.bincount(group)[group] > 1
    return shared
