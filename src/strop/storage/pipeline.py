"""Makes the vectors an index is missing: documents, then each query set, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from strop.embed.base import Embedder, checked_vectors
from strop.io.sentences import title_and_sentences
from strop.storage.batching import Batches
from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.query_sets import QuerySet
from strop.storage.vectors import Sums, append_rows, cannot_write, row_sums, stored_rows
from strop.types import Document, Kind, Progress, Vectors


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
        batches = Batches(progress, "embedding documents", self._catalog.vectors.waiting_count())
        for size in batches:
            batch = self._catalog.documents.waiting(size)
            texts = [document.content for _, document, _ in batch]
            file, sums = self._append(DOCUMENTS, self.embed(texts, "document"))
            done = [(number, digest) for number, _, digest in batch]
            self._catalog.documents.embedded(file, done, sums)
            batches.did(len(batch))
        for set_ in self._catalog.sets.all().values():
            if set_.settings["source"] != "expanded" or set_.settings["of"] == expanded:
                self._embed_set(set_, progress)

    def _embed_set(self, set_: QuerySet, progress: Progress | None) -> None:
        waiting = self._catalog.vectors.waiting_count(set_.set_id)
        batches = Batches(progress, f"embedding {set_.name}", waiting)
        after = -1
        for size in batches:
            batch = self._catalog.sets.waiting(set_, after, size)
            lists = [self._texts(set_, one.number, one.document, one.texts) for one in batch]
            flat = [text for texts in lists for text in texts]
            file, sums = self._append(set_.set_id, self.embed(flat, set_.settings["kind"]))
            done = [
                (one.number, one.digest, list_) for one, list_ in zip(batch, lists, strict=True)
            ]
            self._catalog.sets.embedded(set_, file, done, sums)
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

    def embed(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed texts (n,) to unit rows (n, dim); a text with nothing in it is a zero row."""
        said = [at for at, text in enumerate(texts) if text.strip()]
        vectors = np.zeros((len(texts), self._dim), np.float32)
        if said:
            embedder = self._embedder()
            made = embedder.embed([texts[at] for at in said], kind)
            vectors[said] = checked_vectors(made, len(said), embedder.name, self._dim)
        return vectors
