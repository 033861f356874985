"""Makes the vectors an index is missing: documents, then each query set, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from strop.embed.base import Embedder, checked_vectors
from strop.errors import BadInput, ServiceError, StropError, TextRefused
from strop.io.sentences import title_and_sentences
from strop.storage.batching import Batches
from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.query_sets import QuerySet
from strop.storage.vectors import Sums, append_rows, cannot_write, row_sums, stored_rows
from strop.types import Document, Kind, Progress, Vectors

_REFUSALS = frozenset({400, 413, 422})
"""HTTP statuses by which a service refuses a text."""


class Pipeline:
    """Embeds what waits in a catalog. Each batch is on disk before the next begins."""

    def __init__(
        self, folder: Path, catalog: Catalog, dim: int, embedder: Callable[[], Embedder]
    ) -> None:
        """``embedder`` is called when a text must be embedded: loading one can be slow."""
        self._dim = dim
        self._folder = folder
        self._catalog = catalog
        self._embedder = embedder

    def run(self, progress: Progress | None, expanded: str | None = None) -> None:
        """Make the vectors that are missing: documents, then each set.

        Expanded text is embedded only when asked for: it costs as much as the documents.
        """
        waiting = self._catalog.vectors.waiting_count(refused=False)
        batches = Batches(progress, "embedding documents", waiting)
        for size in batches:
            batch = self._catalog.documents.waiting(size)
            lists = [[document.content] for _, document, _ in batch]
            vectors, reasons = self._embed_lists(lists, "document")
            file, sums = self._append(DOCUMENTS, vectors)
            done = [
                (number, digest)
                for at, (number, _, digest) in enumerate(batch)
                if at not in reasons
            ]
            with self._catalog.writing():
                self._catalog.documents.embedded(file, done, sums)
                self._catalog.vectors.refuse(
                    DOCUMENTS, {batch[at][0]: reason for at, reason in reasons.items()}
                )
            batches.did(len(batch))
        for set_ in self._catalog.sets.all().values():
            if set_.settings["source"] != "expanded" or set_.settings["of"] == expanded:
                self._embed_set(set_, progress)

    def _embed_set(self, set_: QuerySet, progress: Progress | None) -> None:
        waiting = self._catalog.vectors.waiting_count(set_.set_id, refused=False)
        batches = Batches(progress, f"embedding {set_.name}", waiting)
        after = -1
        for size in batches:
            batch = self._catalog.sets.waiting(set_, after, size)
            lists = [self._texts(set_, one.number, one.document, one.texts) for one in batch]
            vectors, reasons = self._embed_lists(lists, set_.settings["kind"])
            file, sums = self._append(set_.set_id, vectors)
            done = [
                (one.number, one.digest, texts)
                for at, (one, texts) in enumerate(zip(batch, lists, strict=True))
                if at not in reasons
            ]
            with self._catalog.writing():
                self._catalog.sets.embedded(set_, file, done, sums)
                self._catalog.vectors.refuse(
                    set_.set_id, {batch[at].number: reason for at, reason in reasons.items()}
                )
            batches.did(len(batch))
            after = batch[-1].number

    def _texts(
        self, set_: QuerySet, number: int, document: Document, given: list[str] | None
    ) -> list[str]:
        if set_.settings["source"] == "sentences":
            return title_and_sentences(document.title, document.text, set_.settings["n"])
        if set_.settings["source"] == "expanded":
            queries = self._catalog.sets.queries(
                self._catalog.sets.all()[set_.settings["of"]], number
            )
            return [" ".join([document.content, *queries])]
        return given or []

    def _append(self, set_id: int, vectors: Vectors) -> tuple[VectorFile, Sums]:
        """Write vectors behind those of a set; return the file as it was, and checksums."""
        file = self._catalog.vectors.files()[set_id]
        rows = stored_rows(vectors, file.dtype)
        try:
            append_rows(self._folder / "vectors" / file.name, file.rows, rows)
        except OSError as error:
            raise cannot_write(self._folder, error) from error
        return file, row_sums(rows)

    def _embed_lists(self, lists: list[list[str]], kind: Kind) -> tuple[Vectors, dict[int, str]]:
        """Embed lists of texts; return the rows of all that the embedder takes, one by one.

        Also returns which lists it does not take, by place, and why.
        """
        try:
            return self.embed([text for texts in lists for text in texts], kind), {}
        except StropError as error:
            if not _is_about_text(error):
                raise
            if len(lists) == 1:
                if not self._takes_a_word(kind):
                    raise
                return np.empty((0, self._dim), np.float32), {0: str(error)}
        middle = len(lists) // 2
        first, reasons = self._embed_lists(lists[:middle], kind)
        second, more = self._embed_lists(lists[middle:], kind)
        reasons |= {middle + at: reason for at, reason in more.items()}
        return np.concatenate([first, second]), reasons

    def _takes_a_word(self, kind: Kind) -> bool:
        """Tell whether the embedder takes any text: else the fault is not a document's."""
        try:
            self.embed(["word"], kind)
        except StropError:
            return False
        return True

    def embed(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed texts (n,) to unit rows (n, dim); a text with nothing in it is a zero row."""
        said = [at for at, text in enumerate(texts) if text.strip()]
        vectors = np.zeros((len(texts), self._dim), np.float32)
        if said:
            embedder = self._embedder()
            made = embedder.embed([texts[at] for at in said], kind)
            vectors[said] = checked_vectors(made, len(said), embedder.name, self._dim)
        return vectors


def _is_about_text(error: StropError) -> bool:
    """Tell whether an embedder's error is about a text, and not about itself or its service."""
    if isinstance(error, ServiceError) and not isinstance(error, TextRefused):
        return error.status in _REFUSALS
    return isinstance(error, (BadInput, TextRefused))
