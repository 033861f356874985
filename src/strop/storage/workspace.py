"""The folder of an index: creating and opening it, its one writer, maintenance."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from strop.embed import Embedder
from strop.errors import BadIndex, BadInput, IndexBusy, IndexDamaged, StropError, UnfinishedIndex
from strop.io.files import MAX_BYTES
from strop.io.folders import files_in, read_file
from strop.io.languages import given_language
from strop.storage.catalog import Catalog
from strop.storage.check import Check
from strop.storage.chunks import AUTO, checked_chunking, decide, splitter
from strop.storage.compaction import compact
from strop.storage.database import Database
from strop.storage.intake import (
    CATALOG,
    EmbedderSpec,
    about_embedder,
    check_wait,
    given_embedder,
    is_left_over,
    load_embedder,
)
from strop.storage.pipeline import Pipeline
from strop.storage.query_sets import augmented_set
from strop.storage.sidecar import CACHE, SIDECAR_FILE, entries
from strop.storage.sizes import counts, sizes
from strop.storage.snapshot import keep_cache
from strop.storage.trust import consent, needs_consent
from strop.storage.vectors import VECTOR_FILE, cannot_write, check_stored
from strop.storage.word_index import word_settings
from strop.types import Changes, Document, Progress


def index_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of an index; refuse the URL of a published copy."""
    if re.match(r"[a-z][a-z0-9+]+:/", str(path)):  # a Path has lost the second slash
        raise BadInput(  # without the URL, which may contain a password
            "an index is a folder, not a URL: build it in a folder, then publish it to the URL;"
            " strop.connect(URL) opens such a copy"
        )
    return Path(path)


class Workspace:
    """A catalog, its vectors and the embedder that computed them, in one folder.

    ``Index`` uses it. Everything that changes the folder happens within ``writing()``.
    """

    def __init__(self, path: Path, embedder: Embedder | None = None, wait: float = 0) -> None:
        """Use ``create`` or ``open`` instead."""
        self.path, self.catalog = path, Catalog(path)
        self.dim = self.catalog.dim
        self._embedder = embedder
        self.pipeline = Pipeline(self.catalog, lambda: self.embedder)
        self._warned = False
        self._writer = FileLock(path / "writer.lock", timeout=wait)

    # -- opening --------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: Path,
        embedder: EmbedderSpec,
        options: Mapping[str, Any],
        query_vectors: str,
        language: str | None = None,
        chunking: str | None = AUTO,
    ) -> Workspace:
        """Create an empty index in a new folder (``Index.create``)."""
        check_stored(query_vectors)
        chunking = checked_chunking(chunking)
        settings: dict[str, Any] = {"query_vectors": query_vectors, "index_id": uuid4().hex}
        if language:
            settings["words"] = word_settings(given_language(language), None)
        if chunking:
            settings["chunking"] = chunking
        if (folder / CATALOG).exists():
            raise BadIndex(f"{folder} is an index already: open it, or choose another folder")
        if folder.exists() and not is_left_over(folder):
            raise BadIndex(f"{folder} exists and is not an index: choose another folder")
        loaded = load_embedder(embedder, options)
        settings["embedder"] = about_embedder(loaded)
        try:
            (folder / "vectors").mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "writer.lock", timeout=0):
                if (folder / CATALOG).exists():  # made by another process meanwhile
                    raise BadIndex(f"{folder} is an index already: open it, or choose another")
                Database.create(folder / CATALOG, settings)
        except Timeout:
            raise IndexBusy(f"another process is making an index at {folder}") from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        workspace = cls(folder, loaded)
        workspace.trust()  # the user has given the embedder just now
        return workspace

    @classmethod
    def open(
        cls, folder: Path, embedder: EmbedderSpec | None, options: Mapping[str, Any]
    ) -> Workspace:
        """Open an index. Its embedder is loaded when first needed, unless one is given."""
        if not (folder / CATALOG).exists():
            if not folder.exists():
                raise BadIndex(f"{folder} does not exist. Make it: strop build CORPUS -o {folder}")
            if (folder / "vectors").is_dir() and not is_left_over(folder):
                raise BadIndex(
                    f"{folder} is not an index any more: {CATALOG} is gone. Restore it from a "
                    "backup, or build the index again in another folder"
                )
            raise BadIndex(f"{folder} is not an index: name the folder that strop build made")
        options = dict(options)
        workspace = cls(folder, wait=check_wait(options.pop("wait", 0)))
        if embedder is not None or options:
            try:
                workspace._embedder = workspace._load(embedder, options)
            except StropError:
                workspace.close()
                raise
        return workspace

    def close(self) -> None:
        """Close the connections of the catalog."""
        self.catalog.database.close()

    @property
    def embedder(self) -> Embedder:
        """The embedder that the index was built with."""
        if self._embedder is None:
            self._embedder = self._load(None, {})
        return self._embedder

    def _load(self, embedder: EmbedderSpec | None, options: Mapping[str, Any]) -> Embedder:
        index_id = self.catalog.settings.get("index_id")
        return given_embedder(self.path, index_id, self.catalog.embedder, embedder, options)

    def trust(self) -> list[str]:
        """Record the user's consent to the stored embedder; return the options that needed it."""
        record = self.catalog.embedder
        consent(self.catalog.settings.get("index_id"), record["name"], record["options"])
        return needs_consent(record["name"], record["options"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; wait for another one up to the ``wait`` seconds of ``open``."""
        with _lock(self.path, self._writer):
            self._sweep()
            yield
            keep_cache(self.catalog)

    def add(self, documents: Iterable[tuple[Document, str]], keep_queries: bool) -> Changes:
        """Within ``writing``: store documents, split into chunks if the index has chunks."""
        with self.catalog.writing():
            chunking = self.catalog.documents.chunking()
            if chunking == AUTO:
                chunking, documents = decide(documents, self.embedder)
                self.catalog.settings.put(chunking=chunking)
            split = None if chunking is None else splitter(chunking, self.embedder)
            return self.catalog.documents.add(documents, keep_queries, split)

    def sync(
        self,
        folder: Path,
        remove: bool,
        keep_queries: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        max_document_bytes: int = MAX_BYTES,
    ) -> Changes:
        """Within ``writing``: read the files of a folder that changed (``Index.sync``)."""
        files, manifest = files_in(str(folder), include, exclude), self.catalog.manifest
        name = str(folder.resolve())
        with self.catalog.writing():
            manifest.adopt(name, files)
            changed = manifest.changed(name, files)
            removed = manifest.gone(name, files) if remove else []
            documents = ((read_file(file, max_document_bytes), file.path) for file in changed)
            changes = self.add(documents, keep_queries)
            if removed:
                self.catalog.documents.remove(removed)
            manifest.put(name, changed)
        unchanged = changes.unchanged + len(files) - len(changed)
        return replace(changes, unchanged=unchanged, removed=len(removed))

    def augment(self, style: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of the set ``style`` appended."""
        name = augmented_set(style)
        stored = self.catalog.sets.all().get(name)
        if stored is not None and not self.catalog.waiting.count(stored.set_id):
            return  # complete: no lock is needed, so readers can call this
        with self.writing():
            self.catalog.sets.ensure(name, {"source": "augmented", "kind": "document", "of": style})
            self.pipeline.run(progress, augmented=style)
        refused = [text for text in self.catalog.waiting.refused() if text["set"] == name]
        if refused:
            raise BadInput(
                f"the embedder refuses {len(refused):,} of the documents with their {style!r} "
                f"queries, first {refused[0]['id']!r}: {refused[0]['reason']}"
            )

    def drop_set(self, name: str) -> None:
        """Within ``writing``: drop a query set with its vectors."""
        for file in self.catalog.sets.drop(name):
            with suppress(OSError):  # if a reader has it open, a later writer deletes it
                (self.path / "vectors" / file).unlink()

    def warn_if_unfinished(self) -> None:
        """Warn a reader, once, if documents or query lists still wait to be embedded."""
        if not self._warned and (message := self.unfinished()):
            self._warned = True
            warnings.warn(message, UnfinishedIndex, stacklevel=3)

    def unfinished(self) -> str:
        """Describe what still waits to be embedded and how to continue; "" if nothing waits."""
        waiting = self.catalog.settings.once_per_version(
            "unfinished", self.catalog.waiting.unfinished
        )
        if not waiting:
            return ""
        return (
            f"the index is unfinished: {waiting:,} of its documents and query lists wait to be "
            f"embedded; to continue: strop finish {shlex.quote(str(self.path))}"
        )

    # -- maintenance ----------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return a description of the index, as JSON values."""
        return {
            "path": str(self.path),
            "format": self.catalog.settings.get("format"),
            "embedder": self.catalog.embedder,
            **counts(self.catalog),
            "unfinished": self.unfinished(),
            "sizes": sizes(self.catalog),
        }

    def _sweep(self) -> None:
        """Within ``writing``: delete files that stopped writers left. Other files stay."""
        used = set().union(*self._files_in_use())
        for name, pattern in (("vectors", VECTOR_FILE), (CACHE, SIDECAR_FILE)):
            folder = self.path / name
            # If the folder is a link, other programs may have files with such names there.
            for file in [] if folder.is_symlink() else entries(folder):
                if pattern.fullmatch(file.name) and file.name not in used:
                    with suppress(OSError):
                        file.unlink()

    def _files_in_use(self) -> tuple[set[str], set[str]]:
        """Return the names of the current vector files and sidecars."""
        with self.catalog.reading():
            vectors = {file.name for file in self.catalog.vectors.files().values()}
            return vectors, set(self.catalog.settings.sidecars().values())

    def check(self, progress: Progress | None = None) -> list[str]:
        """Read everything and return descriptions of the problems."""
        while True:
            files = self._readable_files()
            problems = Check(self.catalog, progress).problems
            # If a writer replaced files meanwhile, the problems may be only that: check again.
            if not problems or self._readable_files() == files:
                return problems

    def _readable_files(self) -> tuple[set[str], set[str]] | None:
        """Return ``_files_in_use``, None if the catalog is damaged: the check reports it."""
        try:
            return self._files_in_use()
        except IndexDamaged:
            return None

    def repair(self, update_codes: Callable[[], None], progress: Progress | None) -> list[str]:
        """Within ``writing``: check, recompute what is lost, and return the problems.

        If a part cannot be repaired, its error is raised after everything else is repaired.
        """
        check = Check(self.catalog, progress)
        failures: list[IndexDamaged] = []
        if check.problems:
            failures = check.repair()
            self._sweep()
            self.pipeline.run(progress)
        update_codes()
        if failures:
            raise failures[0]
        return check.problems

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> None:
        """Within ``writing``: free the space of vectors and texts that nothing uses.

        With ``query_vectors`` all query vectors are stored with that type from now on.
        """
        if query_vectors is not None:
            check_stored(query_vectors)
        compact(self.catalog, query_vectors, progress)
        self.catalog.words.compact()

    def shrink(self) -> None:
        """Within ``writing``: free the catalog's own unused pages."""
        keep_cache(self.catalog)
        self.catalog.database.shrink()


_written: set[tuple[int, Path]] = set()
"""(process id, folder) of each folder that is being written to."""


@contextmanager
def _lock(folder: Path, lock: FileLock) -> Iterator[None]:
    """Hold the writer's lock; if it is taken, report by whom."""
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
            "write again when that one has finished, or wait for it: --wait 60 (Index.open(…,"
            " wait=60))"
        ) from None
    except RuntimeError as error:  # the lock was created before a fork
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
        if not lock.is_locked:  # calls can be nested
            _written.discard(key)
