"""Candidates beside an index: made and brought up to date by its writer, opened by its readers."""

from __future__ import annotations

import uuid
import warnings
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from strop.common.arrays import Ints
from strop.errors import BadIndex, IndexDamaged
from strop.search.candidates import Candidates, TwoStage, codes_file
from strop.search.layout import Layout
from strop.storage.catalog import Catalog
from strop.storage.database import Database
from strop.storage.settings import Settings
from strop.storage.sidecar import CACHE
from strop.storage.snapshot import Snapshot


class CandidateCache:
    """The candidates of an index: brought up to date by its writer, set beside what a search sees.

    The catalog says which count, and without any searches are exact.
    """

    def __init__(self, catalog: Catalog, index: Path) -> None:
        self._catalog = catalog
        self._index = index
        # Replaced together, as threads may look at different versions at the same time.
        self._held: tuple[str | None, Layout, TwoStage | None] | None = None

    def close(self) -> None:
        """Let go of the candidates."""
        self._held = None

    def follow(self, snapshot: Snapshot, layout: Layout, names: list[str]) -> None:
        """Make candidates, or add to them, where much of the index is not among them as it is."""
        older, made_from = self._catalog.settings.sidecar("candidates"), _made_from(snapshot, names)
        made = None
        if older is not None:
            with suppress(IndexDamaged):  # then they are made anew
                two = TwoStage(Candidates.open(self._index / CACHE / older), layout, made_from)
                if two.candidates.sets == names and not (two.worn or two.outgrown):
                    if not two.behind:
                        return
                    of = two.candidates
                    late = layout.only(two.tail)
                    made = of.and_more(Candidates.make(late, made_from[two.tail], names, of))
        made = made or Candidates.make(layout, made_from, names)
        name = f"candidates-{uuid.uuid4().hex}"
        try:
            made.write(self._index / CACHE / name)
            self._replace(older, name)
        except (OSError, BadIndex) as error:  # a full disk: the older ones still serve
            self._delete(name)
            warnings.warn(
                f"the candidates of {self._index} could not be written ({error}): searches go on "
                f"with what there is. To make them: strop finish {self._index}",
                stacklevel=4,
            )

    def drop(self) -> None:
        """Do without candidates, for an index that is small now."""
        older = self._catalog.settings.sidecar("candidates")
        if older is not None:
            self._replace(older, None)

    def _replace(self, older: str | None, name: str | None) -> None:
        self._catalog.settings.put_sidecar("candidates", name)
        if older is not None:
            self._delete(older)

    def _delete(self, name: str) -> None:
        path = self._index / CACHE / name
        for file in (path, codes_file(path)):
            with suppress(OSError):
                file.unlink()

    def beside(self, snapshot: Snapshot, layout: Layout, names: list[str]) -> TwoStage | None:
        """Return candidates matched with a layout; None, with a warning, if there are none."""
        name, held = self._catalog.settings.sidecar("candidates"), self._held
        if held is None or held[0] != name or held[1] is not layout:
            two = None
            try:
                if held is not None and held[0] == name and held[2] is not None:
                    of = held[2].candidates
                else:
                    of = self._open(name)
                if of.sets != names:
                    raise IndexDamaged(f"they are of other query sets ({', '.join(of.sets)})")
                two = TwoStage(of, layout, _made_from(snapshot, names))
            except IndexDamaged as error:
                warnings.warn(
                    f"searching all {layout.size:,} documents, not candidates only: {error}. "
                    f"To make them: strop finish {self._index}",
                    stacklevel=4,
                )
            held = self._held = name, layout, two
        return held[2]

    def _open(self, name: str | None) -> Candidates:
        while name is not None:
            try:
                return Candidates.open(self._index / CACHE / name)
            except IndexDamaged:
                # A writer may have replaced them since this search began to read. Others serve as
                # well: who is among them as they are is found out by what they were made from.
                with closing(Database(self._catalog.path)) as now:
                    newer = Settings(now).sidecar("candidates")
                if newer in (None, name):
                    raise
                name = newer
        raise IndexDamaged("there are none yet")


def _made_from(snapshot: Snapshot, names: list[str]) -> Ints:
    """Return for each document its number and which vectors it has: (n, columns)."""
    sets = [snapshot.sets[name] for name in names]
    columns = [snapshot.numbers, snapshot.documents.vector_version]
    return np.stack(
        columns + [part for of in sets for part in (of.vector_version, of.count)], axis=1
    )
