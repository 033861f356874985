"""The folder of an index: creating and opening it, its one writer, looking after it."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """A catalog, its vectors and the embedder they were made with, in one folder.

    ``Index`` uses it. What changes the folder is done within ``writing()``.
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
        """Make an empty index in a new folder (``Index.create``)."""
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
        model = load_embedder(embedder, options)
        settings["embedder"] = about_embedder(model)
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
        workspace = cls(folder, model)
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
        """The embedder the index was made with."""
        if self._embedder is None:
            self._embedder = self._load(None, {})
        return self._embedder

    def _load(self, embedder: EmbedderSpec | None, options: Mapping[str, Any]) -> Embedder:
        index_id = self.catalog.settings.get("index_id")
        return given_embedder(self.path, index_id, self.catalog.embedder, embedder, options)

    def trust(self) -> list[str]:
        """Take the embedder the index stores as given by the user; return what that covers."""
        record = self.catalog.embedder
        consent(self.catalog.settings.get("index_id"), record["name"], record["options"])
        return needs_consent(record["name"], record["options"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; waits for another no longer than ``open`` was told."""
        with _lock(self.path, self._writer):
            self._sweep()
            yield
            keep_cache(self.catalog)

    def add(self, documents: Iterable[tuple[Document, str]], keep_queries: bool) -> Changes:
        """Within ``writing``: store documents, cut into chunks if the index has any."""
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
            read = manifest.changed(name, files)
            gone = manifest.gone(name, files) if remove else []
            documents = ((read_file(file, max_document_bytes), file.path) for file in read)
            changes = self.add(documents, keep_queries)
            if gone:
                self.catalog.documents.remove(gone)
            manifest.put(name, read)
        unchanged = changes.unchanged + len(files) - len(read)
        return replace(changes, unchanged=unchanged, removed=len(gone))

    def augment(self, style: str, progress: Progress | None = None) -> None:
        """Embed each document's text with its queries of the set ``style`` appended."""
        name = augmented_set(style)
        known = self.catalog.sets.all().get(name)
        if known is not None and not self.catalog.waiting.count(known.set_id):
            return  # a reader needs no lock then
        with self.writing():
            self.catalog.sets.ensure(name, {"source": "augmented", "kind": "document", "of": style})
            self.pipeline.run(progress, augmented=style)
        refused = [one for one in self.catalog.waiting.refused() if one["set"] == name]
        if refused:
            raise BadInput(
                f"the embedder refuses {len(refused):,} of the documents with their {style!r} "
                f"queries, first {refused[0]['id']!r}: {refused[0]['reason']}"
            )

    def drop_set(self, name: str) -> None:
        """Within ``writing``: drop a query set with its vectors."""
        for file in self.catalog.sets.drop(name):
            with suppress(OSError):  # where a reader has it open, it goes later
                (self.path / "vectors" / file).unlink()

    def warn_if_unfinished(self) -> None:
        """Warn a reader, once, if documents or query lists still wait to be embedded."""
        if not self._warned and (message := self.unfinished()):
            self._warned = True
            warnings.warn(message, UnfinishedIndex, stacklevel=3)

    def unfinished(self) -> str:
        """Say what still waits to be embedded and how to continue; "" if nothing does."""
        waiting = self.catalog.settings.once_per_version(
            "unfinished", self.catalog.waiting.unfinished
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
        return {
            "path": str(self.path),
            "format": self.catalog.settings.get("format"),
            "embedder": self.catalog.embedder,
            **counts(self.catalog),
            "unfinished": self.unfinished(),
            "sizes": sizes(self.catalog),
        }

    def _sweep(self) -> None:
        """Within ``writing``: delete what stopped writers left. Files of others stay."""
        used = set().union(*self._files_in_use())
        for name, pattern in (("vectors", VECTOR_FILE), (CACHE, SIDECAR_FILE)):
            folder = self.path / name
            # In a folder that is a link, others may keep files with such names.
            for file in [] if folder.is_symlink() else entries(folder):
                names = {file.name, file.name.split(".")[0]}  # a sidecar may be several files
                if pattern.fullmatch(file.name) and not names & used:
                    with suppress(OSError):
                        file.unlink()

    def _files_in_use(self) -> tuple[set[str], set[str]]:
        """Return the names of the vector files and of the sidecars that count."""
        with self.catalog.reading():
            vectors = {file.name for file in self.catalog.vectors.files().values()}
            return vectors, set(self.catalog.settings.sidecars().values())

    def check(self, progress: Progress | None = None) -> list[str]:
        """Read everything and return what is wrong."""
        while True:
            before = self._checked_files()
            problems = Check(self.catalog, progress).problems
            # Not what a writer removed meanwhile.
            if not problems or self._checked_files() == before:
                return problems

    def _checked_files(self) -> tuple[set[str], set[str]] | None:
        try:
            return self._files_in_use()
        except IndexDamaged:  # the check names it
            return None

    def repair(self, progress: Progress | None = None) -> list[str]:
        """Within ``writing``: check, make lost vectors anew, and return what was wrong."""
        check = Check(self.catalog, progress)
        if check.problems:
            check.repair()
            self._sweep()
            self.pipeline.run(progress)
        return check.problems

    def compact(self, progress: Progress | None = None, query_vectors: str | None = None) -> None:
        """Within ``writing``: free the space of vectors and texts that nothing uses.

        With ``query_vectors`` all query vectors are stored in that form from now on.
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
            "write again when that one has finished, or wait for it: --wait 60 (Index.open(…,"
            " wait=60))"
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
