"""The file of codes beside an index: written by its one writer, opened by its readers."""

from __future__ import annotations

import warnings
from contextlib import closing, suppress

import numpy as np

from strop.common.arrays import Ints
from strop.errors import BadIndex, IndexDamaged
from strop.search.layout import Layout
from strop.search.prefilter.prefilter import Prefilter
from strop.search.prefilter.table import CodeTable
from strop.search.views import View
from strop.storage.catalog import Catalog
from strop.storage.database import Database
from strop.storage.settings import Settings
from strop.storage.sidecar import CACHE, delete_sidecar, replaced_sidecar


class CodeCache:
    """The codes of an index; the catalog names the file that counts."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Replaced as one value: threads may look at different versions at the same time.
        self._last: tuple[str | None, Layout, Prefilter | None] | None = None

    def close(self) -> None:
        """Release the codes."""
        self._last = None

    def update(self, view: View) -> None:
        """Compute the codes if many are missing or useless; for the one writer."""
        older = self._catalog.settings.sidecar("candidates")
        with suppress(IndexDamaged):
            if (spare := self._match(view, older).spare) >= 0:
                return self._put(older, view, spare)
        try:
            with replaced_sidecar(self._catalog.folder, "candidates", older) as path:
                table = CodeTable.of(view.layout, _sources(view), view.names)
                table.write(path)
                fresh = Prefilter(table, view.layout, np.arange(len(table)))
                self._put(path.name, view, fresh.spare)
        except (OSError, BadIndex) as error:  # a full disk: the older ones still serve
            warnings.warn(
                f"the search codes of {self._catalog.folder} could not be written ({error}): "
                f"searches use what there is. To write them: strop finish {self._catalog.folder}",
                stacklevel=4,
            )

    def drop(self) -> None:
        """Delete the codes, of an index that is small now or to compute them anew."""
        self.close()
        older = self._catalog.settings.sidecar("candidates")
        with self._catalog.writing(searchable=False):
            self._catalog.settings.put_sidecar("candidates", None)
            self._catalog.settings.put(codes=None)
        delete_sidecar(self._catalog.folder, older)

    def _put(self, name: str | None, view: View, spare: int) -> None:
        """Let a file count, and note how many documents may change until it must be looked at."""
        known = {"file": name, "sets": view.names, "version": view.snapshot.version, "spare": spare}
        with self._catalog.writing(searchable=False):
            self._catalog.settings.put_sidecar("candidates", name)
            self._catalog.settings.put(codes=known)

    def prefilter(self, view: View) -> Prefilter | None:
        """Return the codes matched with a view; None, with a warning, if there are none."""
        last = self._last
        if last and last[1] is view.layout and last[2] and not len(last[2].without_row):
            return last[2]  # there can be no better ones
        name, prefilter = self._catalog.settings.sidecar("candidates"), None
        if last is None or last[0] != name or last[1] is not view.layout:
            try:
                prefilter = self._match(view, name)
            except IndexDamaged as error:
                warnings.warn(
                    f"searching all {view.layout.size:,} documents, without search codes: {error}. "
                    f"To make them: strop finish {self._catalog.folder}",
                    stacklevel=4,
                )
            last = self._last = name, view.layout, prefilter
        return last[2]

    def _match(self, view: View, name: str | None) -> Prefilter:
        """Open the codes and match them with a view."""
        known, _, before = self._last or (None, None, None)
        table = before.table if before is not None and known == name else self._open(name)
        if table.sets != view.names:
            raise IndexDamaged(f"they are of other query sets ({', '.join(table.sets)})")
        if table.dim != view.layout.dim:
            raise IndexDamaged(f"they are of vectors of {table.dim:,} dimensions")
        prefilter = Prefilter.of(table, view.layout, _sources(view))
        if not prefilter.usable:
            raise IndexDamaged("they are of other vectors")
        return prefilter

    def _open(self, name: str | None) -> CodeTable:
        if name is None:
            raise IndexDamaged("there are none yet")
        try:
            return CodeTable.open(self._catalog.folder / CACHE / name)
        except IndexDamaged:
            # A writer may have replaced them since this search began to read. Newer ones serve as
            # well: which rows can be used is known from their sources.
            with closing(Database(self._catalog.path)) as now:
                newer = Settings(now).sidecar("candidates")
            if newer in (None, name):
                raise
            return self._open(newer)


def _sources(view: View) -> Ints:
    """Return what names the vectors of each document, as ``CodeTable.sources``."""
    snapshot = view.snapshot
    sets = [snapshot.sets[name] for name in view.names]
    versions = [one.vector_version for one in (snapshot.documents, *sets)]
    columns = [snapshot.numbers, np.max(versions, axis=0), *(one.count for one in sets)]
    return np.stack(columns, axis=1)
