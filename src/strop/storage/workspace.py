"""The folder of an index: creating and opening it, its one writer, looking after it."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from strop.embed import Embedder
from strop.errors import BadIndex, BadInput, IndexBusy, IndexDamaged, StropError, UnfinishedIndex
from strop.storage.catalog import Catalog
from strop.storage.check import check
from strop.storage.compaction import compact
from strop.storage.database import Database
from strop.storage.intake import (
    CATALOG,
    about_embedder,
    checked_record,
    is_left_over,
    load_embedder,
)
from strop.storage.pipeline import Pipeline
from strop.storage.query_sets import expanded_set
from strop.storage.repair import repair
from strop.storage.sidecar import CACHE, SIDECAR_FILE, belongs_to, entries
from strop.storage.sizes import counts, file_sizes, sizes
from strop.storage.snapshot import keep_cache
from strop.storage.trust import consent, needs_consent, stored_options, trusted_options
from strop.storage.vectors import DEFAULT_STORED, VECTOR_FILE, cannot_write, check_stored
from strop.types import Progress


class Workspace:
    """A catalog, its vectors and the embedder they were made with, in one folder.

    ``Index`` uses it. What changes the folder is done within ``writing()``.
    """

    def __init__(self, path: Path, embedder: Embedder | None = None) -> None:
        """Use ``create`` or ``open`` instead."""
        self.path = path
        self.catalog = Catalog(path / CATALOG)
        self._embedder = embedder
        self.embedder_record = checked_record(path, self.catalog.settings.get("embedder"))
        self.pipeline = Pipeline(path, self.catalog, self.dim, lambda: self.embedder)
        self._warned = False
        self._writer = FileLock(path / "writer.lock", timeout=0)

    # -- opening --------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] = "wordllama",
        query_vectors: str = DEFAULT_STORED,
        **options: Any,
    ) -> Workspace:
        """Make an empty index in a new folder (``Index.create``)."""
        folder = Path(path)
        check_stored(query_vectors)
        if (folder / CATALOG).exists():
            raise BadIndex(f"{folder} is an index already: open it, or choose another folder")
        if folder.exists() and not is_left_over(folder):
            raise BadIndex(f"{folder} is there already and is no index: choose another folder")
        model = load_embedder(embedder, options)
        about = about_embedder(model)
        try:
            (folder / "vectors").mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "writer.lock", timeout=0):
                if (folder / CATALOG).exists():  # made by another process meanwhile
                    raise BadIndex(f"{folder} is an index already: open it, or choose another")
                index_id = uuid4().hex
                Database.create(
                    folder / CATALOG,
                    {"embedder": about, "query_vectors": query_vectors, "index_id": index_id},
                )
        except Timeout:
            raise IndexBusy(f"another process is making an index at {folder}") from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        consent(index_id, about["name"], about["options"])  # given by the user just now
        return cls(folder, model)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] | None = None,
        **options: Any,
    ) -> Workspace:
        """Open an index. Its embedder is loaded when first needed, unless one is given."""
        folder = Path(path)
        if not (folder / CATALOG).exists():
            if not folder.exists():
                raise BadIndex(f"{folder} does not exist. Make it: strop build CORPUS -o {folder}")
            if (folder / "vectors").is_dir() and not is_left_over(folder):
                raise BadIndex(
                    f"{folder} is not an index any more: {CATALOG} is gone. Restore it from a "
                    "backup, or build the index again in another folder"
                )
            raise BadIndex(f"{folder} is not an index: name the folder that strop build made")
        workspace = cls(folder)
        if embedder is not None or options:
            name = workspace.embedder_record["name"]
            try:
                if embedder is None:  # what the user gives counts more than what is stored
                    options = workspace._stored_options(options) | options
                if isinstance(embedder, str) and embedder != name:
                    raise workspace._other_embedder(embedder)  # before loading it for nothing
                workspace._use(load_embedder(embedder or name, options))
            except StropError:
                workspace.close()
                raise
        return workspace

    def close(self) -> None:
        """Let go of the catalog's connections."""
        self.catalog.database.close()

    @property
    def embedder(self) -> Embedder:
        """The embedder the index was made with."""
        if self._embedder is None:
            self._use(load_embedder(self.embedder_record["name"], self._stored_options({})))
        assert self._embedder is not None
        return self._embedder

    def _stored_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the stored embedder, if the user gave or trusts what they need."""
        name, stored = self.embedder_record["name"], self.embedder_record["options"]
        left = stored_options({key: value for key, value in stored.items() if key not in given})
        if not needs_consent(name, left):
            return left
        index_id = self.catalog.settings.get("index_id")
        return trusted_options(self.path, index_id, name, stored)

    def _use(self, embedder: Embedder) -> None:
        # A service would have to be asked for its dimension; replies are checked anyway.
        asked = self.dim if embedder.name.startswith("api:") else None
        made, now = self.embedder_record, about_embedder(embedder, dim=asked)
        if now["name"] != made["name"]:
            raise self._other_embedder(now["name"])
        for what in ("revision", "dim", "prompts", "settings"):
            if now[what] != made[what]:
                raise BadIndex(
                    f"{self.path} was made by embedder {made['name']!r} with {what} "
                    f"{made[what]!r}, not {now[what]!r}: vectors of two models do not mix. Use the "
                    "first, or build another index"
                )
        self._embedder = embedder

    def trust(self) -> list[str]:
        """Take the embedder the index stores as given by the user; return what that covers."""
        record = self.embedder_record
        consent(self.catalog.settings.get("index_id"), record["name"], record["options"])
        return needs_consent(record["name"], record["options"])

    def _other_embedder(self, name: str) -> BadIndex:
        return BadIndex(
            f"{self.path} was made by embedder {self.embedder_record['name']!r}, not {name!r}: "
            "vectors of two models do not mix. Use the first, or build another index"
        )

    @property
    def dim(self) -> int:
        """The length of every vector."""
        return int(self.embedder_record["dim"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; waits for nobody."""
        with _lock(self.path, self._writer):
            self._sweep()
            yield
            keep_cache(self.catalog, self.path, self.dim)

    def augment(self, style: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of the set ``style`` appended."""
        name = expanded_set(style)
        known = self.catalog.sets.all().get(name)
        if known is not None and not self.catalog.vectors.waiting_count(known.set_id):
            return  # a reader needs no lock then
        with self.writing():
            self.catalog.sets.ensure(name, {"source": "expanded", "kind": "document", "of": style})
            self.pipeline.run(progress, expanded=style)
        refused = [one for one in self.catalog.vectors.refused() if one["set"] == name]
        if refused:
            raise BadInput(
                f"the embedder refuses {len(refused):,} of the documents with their {style!r} "
                f"queries, first {refused[0]['id']!r}: {refused[0]['reason']}"
            )

    def warn_if_unfinished(self) -> None:
        """Warn a reader, once, if documents or query lists still wait to be embedded."""
        if not self._warned and (message := self.unfinished()):
            self._warned = True
            warnings.warn(message, UnfinishedIndex, stacklevel=3)

    def unfinished(self) -> str:
        """Say what still waits to be embedded and how to continue; "" if nothing does."""
        waiting = self.catalog.settings.once_per_version(
            "unfinished", self.catalog.vectors.unfinished_count
        )
        if not waiting:
            return ""
        return (
            f"the index is unfinished: {waiting:,} of its documents and query lists wait to be "
            f"embedded; to continue: strop finish {shlex.quote(str(self.path))}"
        )

    # -- looking after it -----------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the index holds, as JSON values."""
        files = file_sizes(self.path)
        return {
            "path": str(self.path),
            "format": self.catalog.settings.get("format"),
            "embedder": self.embedder_record,
            **counts(self.catalog),
            "unfinished": self.unfinished(),
            "bytes": files,
            "total_bytes": sum(files.values()),
            "sizes": self.sizes(),
        }

    def _sweep(self) -> None:
        """Within ``writing``: delete what stopped writers left. Files of others stay."""
        with self.catalog.reading():
            files = {file.name for file in self.catalog.vectors.files().values()}
            sidecars = set(self.catalog.settings.sidecars().values())
        left = [
            one
            for one in entries(self.path / "vectors")
            if VECTOR_FILE.fullmatch(one.name) and one.name not in files
        ]
        left += [
            one
            for one in entries(self.path / CACHE)
            if SIDECAR_FILE.fullmatch(one.name)
            and not any(belongs_to(one.name, name) for name in sidecars)
        ]
        for file in left:
            # In a folder that is a link, others may keep files with such names.
            if not file.parent.is_symlink():
                with suppress(OSError):
                    file.unlink()

    def sizes(self) -> dict[str, Any]:
        """Return bytes by kind (``sizes.sizes``)."""
        return sizes(self.catalog, self.path, self.dim)

    def _in_use(self) -> set[str]:
        """Return the names of the files that count, none if the catalog cannot say."""
        try:
            files = {file.name for file in self.catalog.vectors.files().values()}
            return files | set(self.catalog.settings.sidecars().values())
        except IndexDamaged:
            return set()

    def check(self, progress: Progress | None = None) -> list[str]:
        """Read everything and return what is wrong."""
        while True:
            before = self._in_use()
            findings = check(self.catalog, self.path, self.dim, progress)
            # Not what a writer took away meanwhile.
            if not findings.problems or self._in_use() == before:
                return findings.problems

    def repair(self, progress: Progress | None = None) -> list[str]:
        """Within ``writing``: check, make lost vectors anew, and return what was wrong."""
        findings = check(self.catalog, self.path, self.dim, progress)
        if findings.problems:
            repair(self.catalog, self.path, self.dim, findings)
            self._sweep()
            self.pipeline.run(progress)
        return findings.problems

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> None:
        """Within ``writing``: free the space of vectors and texts that nothing uses.

        With ``query_vectors`` all query vectors are stored in that form from now on.
        """
        if query_vectors is not None:
            check_stored(query_vectors)
        compact(self.catalog, self.path, self.dim, query_vectors, progress)

    def shrink(self) -> None:
        """Within ``writing``: free the catalog's own unused pages."""
        keep_cache(self.catalog, self.path, self.dim)
        self.catalog.database.shrink()


_written: set[tuple[int, Path]] = set()
"""The folders that are being written to, each with the process that does."""


@contextmanager
def _lock(folder: Path, lock: FileLock) -> Iterator[None]:
    """Hold the writer's lock, or say who does."""
    key = os.getpid(), folder.resolve()
    try:
        lock.acquire()
    except Timeout:
        if key in _written:
            raise IndexBusy(
                f"this process is writing to {folder} already, in another thread or through "
                "another Index object. Reading it is fine meanwhile; write again when that is done"
            ) from None
        raise IndexBusy(
            f"another process is writing to {folder}. Reading it is fine meanwhile; "
            "write again when that one has finished"
        ) from None
    except RuntimeError as error:  # a lock that was made before a fork
        raise BadIndex(
            f"{folder} was opened by the parent of this process, which may only read it here; "
            "to write, open it again in this process: Index.open"
        ) from error
    except OSError as error:
        raise cannot_write(folder, error) from error
    _written.add(key)
    try:
        yield
    finally:
        lock.release()
        if not lock.is_locked:  # it may be held twice, one within the other
            _written.discard(key)
