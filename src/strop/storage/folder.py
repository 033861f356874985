"""The folder of an index: making and opening it, its one writer, looking after it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from strop.embed import Embedder
from strop.errors import BadIndex, IndexBusy, StropError
from strop.storage.catalog import Catalog
from strop.storage.database import OldFormat
from strop.storage.intake import CATALOG, about_embedder, is_left_over, load_embedder
from strop.storage.ledger import DOCUMENTS
from strop.storage.maintenance import check, compact, file_sizes, mend, sizes, sweep
from strop.storage.pipeline import Pipeline
from strop.storage.snapshot import keep_cache
from strop.storage.upgrade import upgrade
from strop.storage.vectors import DEFAULT_STORED, cannot_write, check_stored, file_name, type_for
from strop.types import Progress

F = TypeVar("F", bound="IndexFolder")


class IndexFolder:
    """A catalog, its vectors and the embedder they were made with, in one folder."""

    def __init__(self, path: Path, catalog: Catalog, embedder: Embedder | None) -> None:
        """Use ``create`` or ``open`` instead."""
        self.path = path
        self._catalog = catalog
        self._embedder = embedder
        self._made_by: dict[str, Any] = catalog.meta("embedder")
        self._pipeline = Pipeline(path, catalog, self.dim, lambda: self.embedder)
        self._writer = FileLock(path / "writer.lock", timeout=0)

    # -- opening --------------------------------------------------------------------------

    @classmethod
    def create(
        cls: type[F],
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] = "wordllama",
        query_vectors: str = DEFAULT_STORED,
        **options: Any,
    ) -> F:
        """Make an empty index in a new folder; ``options`` are the embedder's.

        ``query_vectors`` says how the vectors of its query sets are stored: ``int8``,
        ``float16``, ``float32`` or ``compact``. The documents' own are float32, but float16
        where it is compact.
        """
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
                own = type_for(query_vectors, "documents")
                catalog = Catalog.create(
                    folder / CATALOG,
                    {"embedder": about, "query_vectors": query_vectors},
                    (file_name(DOCUMENTS, own), own),
                )
        except Timeout:
            raise IndexBusy(f"another process is making an index at {folder}") from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        return cls(folder, catalog, model)

    @classmethod
    def open(
        cls: type[F],
        path: str | os.PathLike[str],
        /,
        embedder: str | Embedder | Callable[..., Any] | None = None,
        **options: Any,
    ) -> F:
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
        try:
            index = cls(folder, Catalog(folder / CATALOG), None)
        except OldFormat:
            if not os.access(folder, os.W_OK):
                raise
            with _lock(folder, FileLock(folder / "writer.lock", timeout=0)):
                upgrade(folder / CATALOG)
            index = cls(folder, Catalog(folder / CATALOG), None)
        if embedder is not None or options:
            embedder = embedder or index._made_by["name"]
            try:
                if isinstance(embedder, str) and embedder != index._made_by["name"]:
                    raise index._other_embedder(embedder)  # before loading it for nothing
                index._use(load_embedder(embedder, options))
            except StropError:
                index.close()
                raise
        return index

    def close(self) -> None:
        """Let go of the catalog's connections."""
        self._catalog.close()

    def __enter__(self: F) -> F:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def embedder(self) -> Embedder:
        """The embedder the index was made with."""
        if self._embedder is None:
            self._use(load_embedder(self._made_by["name"], self._made_by["options"]))
        assert self._embedder is not None
        return self._embedder

    def _use(self, embedder: Embedder) -> None:
        # A service would have to be asked for its dimension; replies are checked anyway.
        asked = self.dim if embedder.name.startswith("api:") else None
        made, now = self._made_by, about_embedder(embedder, dim=asked)
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

    def _other_embedder(self, name: str) -> BadIndex:
        return BadIndex(
            f"{self.path} was made by embedder {self._made_by['name']!r}, not {name!r}: vectors of "
            "two models do not mix. Use the first, or build another index"
        )

    @property
    def dim(self) -> int:
        """The length of every vector."""
        return int(self._made_by["dim"])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only writer; waits for nobody."""
        with _lock(self.path, self._writer):
            sweep(self._catalog, self.path)
            yield
            keep_cache(self._catalog, self.path, self.dim)

    def _make_vectors(self, progress: Progress | None) -> None:
        """Make the vectors that are missing, and let what hangs on them follow."""
        self._pipeline.run(progress)
        self._follow()

    def _follow(self) -> None:
        """Bring up to date what is made from vectors; a folder alone has nothing of the kind."""

    # -- looking after it -----------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return what the index holds, as JSON values."""
        files = file_sizes(self.path)
        return {
            "path": str(self.path),
            "format": self._catalog.meta("format"),
            "embedder": self._made_by,
            **self._catalog.counts(),
            "bytes": files,
            "total_bytes": sum(files.values()),
            "sizes": sizes(self._catalog, self.path, self.dim),
        }

    def _in_use(self) -> set[str | None]:
        """Return the names of the files that count."""
        files = {file.name for file in self._catalog.files().values()}
        return files | {self._catalog.meta("cache"), self._catalog.meta("candidates")}

    def check(self, repair: bool = False, progress: Progress | None = None) -> list[str]:
        """Read everything and return what is wrong; with ``repair``, make lost vectors anew."""
        while not repair:
            before = self._in_use()
            found = check(self._catalog, self.path, self.dim, progress)
            # Not what a writer took away meanwhile.
            if not found.problems or self._in_use() == before:
                return found.problems
        with self._writing():
            found = check(self._catalog, self.path, self.dim, progress)
            if found.problems:
                mend(self._catalog, self.path, self.dim, found)
                sweep(self._catalog, self.path)
                self._pipeline.run(progress)
            self._follow()
        return found.problems

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> int:
        """Give back the space of vectors and texts that are in no use; return how many bytes.

        With ``query_vectors`` the index stores its vectors so from now on (as in ``create``),
        those it has included; digits they have lost do not come back. Searches go on meanwhile,
        also in other processes.
        """
        if query_vectors is not None:
            check_stored(query_vectors)
        with self._writing():
            before = sizes(self._catalog, self.path, self.dim)["total"]
            compact(self._catalog, self.path, self.dim, query_vectors, progress)
            self._follow()
            keep_cache(self._catalog, self.path, self.dim)
            self._catalog.shrink()
        return int(before - sizes(self._catalog, self.path, self.dim)["total"])

    def delete(self) -> None:
        """Close the index and delete its folder."""
        with _lock(self.path, self._writer):
            self.close()
        shutil.rmtree(self.path)


@contextmanager
def _lock(folder: Path, lock: FileLock) -> Iterator[None]:
    """Hold the writer's lock, or say who does."""
    try:
        lock.acquire()
    except Timeout:
        raise IndexBusy(
            f"another process is writing to {folder}. Reading it is fine meanwhile; "
            "write again when that one has finished"
        ) from None
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()
