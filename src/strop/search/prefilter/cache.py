"""The file of codes in an index folder: its writer writes it, readers open it."""

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
    """The codes of an index; the catalog has the name of the file in use."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Replaced as one value: threads may use different versions at the same time.
        self._last: tuple[str | None, Layout, Prefilter | None] | None = None

    def close(self) -> None:
        """Release the codes."""
        self._last = None

    def update(self, view: View) -> None:
        """Compute the codes if many are missing or obsolete; only the writer calls it."""
        older = self._catalog.settings.sidecar("candidates")
        with suppress(IndexDamaged):
            if (spare := self._match(view, older).spare) >= 0:
                return self._record_file(older, view, spare)
        try:
            with replaced_sidecar(self._catalog.folder, "candidates", older) as path:
                table = CodeTable.of(view.layout, _sources(view), view.names)
                table.write(path)
                fresh = Prefilter(table, view.layout, np.arange(len(table)))
                self._record_file(path.name, view, fresh.spare)
        except (OSError, BadIndex) as error:  # such as a full disk: older codes stay in use
            warnings.warn(
                f"the search codes of {self._catalog.folder} could not be written ({error}): "
                f"searches use what there is. To write them: strop finish {self._catalog.folder}",
                stacklevel=4,
            )

    def drop(self) -> None:
        """Delete the codes of an index that has become small, or before they are recomputed."""
        self.close()
        older = self._catalog.settings.sidecar("candidates")
        with self._catalog.writing(searchable=False):
            self._catalog.settings.put_sidecar("candidates", None)
            self._catalog.settings.put(codes=None)
        delete_sidecar(self._catalog.folder, older)

    def _record_file(self, name: str | None, view: View, spare: int) -> None:
        """Store the name of the file in use, and how many documents may change before a check."""
        version = view.snapshot.version
        record = {"file": name, "sets": view.names, "version": version, "spare": spare}
        with self._catalog.writing(searchable=False):
            self._catalog.settings.put_sidecar("candidates", name)
            self._catalog.settings.put(codes=record)

    def prefilter(self, view: View) -> Prefilter | None:
        """Return the codes matched with a view; None, with a warning, if there are none."""
        last = self._last
        if last and last[1] is view.layout and last[2] and not len(last[2].without_row):
            return last[2]  # it is complete
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
        opened, _, previous = self._last or (None, None, None)
        if previous is not None and opened == name:
            table = previous.table
        else:
            table = self._open(name)
        if table.sets != view.names:
            raise IndexDamaged(f"they are of other query sets ({', '.join(table.sets)})")
        if table.dim != view.layout.dim:
            raise IndexDamaged(f"they are of vectors of {table.dim:,} dimensions")
        prefilter = Prefilter.of(table, view.layout, _sources(view))
        if not prefilter.usable:
            raise IndexDamaged("they are of other vectors")
        return prefilter

    def _open(self, name: str | None) -> CodeTable:
        while name is not None:
            try:
                return CodeTable.open(self._catalog.folder / CACHE / name)
            except IndexDamaged:
                # A writer may have replaced the file since this search began to read. A newer one
                # can be used too: its sources show which rows are valid.
                with closing(Database(self._catalog.path)) as now:
                    newer = Settings(now).sidecar("candidates")
                if newer in (None, name):
                    raise
                name = newer
        raise IndexDamaged("there are none yet")


def _sources(view: View) -> Ints:
    """Return the values that identify the vectors of each document, as ``CodeTable.sources``."""
    snapshot = view.snapshot
    sets = [snapshot.sets[name] for name in view.names]
    versions = [spans.vector_version for spans in (snapshot.documents, *sets)]
    columns = [snapshot.numbers, np.max(versions, axis=0), *(spans.count for spans in sets)]
    return np.stack(columns, axis=1)
