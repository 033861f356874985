"""Computes the missing vectors of an index: documents, then each query set, in batches."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from strop.embed.base import Embedder, checked_vectors
from strop.errors import BadIndex, BadInput, ServiceError, StropError, TextRefused
from strop.io.sentences import title_and_sentences
from strop.storage.catalog import Catalog
from strop.storage.ledger import DOCUMENTS, VectorFile
from strop.storage.query_sets import QuerySet
from strop.storage.vectors import Sums, append_rows, cannot_write, row_sums, stored_rows
from strop.storage.waiting import Waiting
from strop.types import Kind, Progress, Vectors

_REFUSALS = frozenset({400, 413, 422})
"""HTTP statuses by which a service refuses a text."""
_BATCH_SECONDS = 2.0
"""The time that a batch should take. Each batch is a commit: a stop loses at most about this much
work, and commits do not slow down a fast embedder."""
FEWEST, MOST = 64, 8192
"""The minimum and the maximum number of documents or lists in a batch."""


class Pipeline:
    """Embeds what waits in a catalog. Each batch is on disk before the next begins."""

    def __init__(self, catalog: Catalog, embedder: Callable[[], Embedder]) -> None:
        """``embedder`` is called when a text must be embedded: loading one can be slow."""
        self._catalog, self._embedder = catalog, embedder

    def run(self, progress: Progress | None, augmented: str | None = None) -> None:
        """Compute the vectors that are missing: documents, then each set.

        Augmented texts are embedded only for the set ``augmented``, because they cost as much as
        the documents.
        """
        self._embed_set(None, progress)
        for set_ in self._catalog.sets.all().values():
            if not set_.augmented or set_.settings["of"] == augmented:
                self._embed_set(set_, progress)

    def _embed_set(self, set_: QuerySet | None, progress: Progress | None) -> None:
        """Embed what waits of a query set, or (None) the documents; each batch is a commit."""
        catalog = self._catalog
        set_id, name = (set_.set_id, set_.name) if set_ else (DOCUMENTS, "documents")
        kind: Kind = set_.settings["kind"] if set_ else "document"
        done, total, size = 0, catalog.waiting.count(set_id, refused=False), FEWEST
        while done < total:
            began = time.monotonic()
            batch = catalog.waiting.next(set_id, size)
            if not batch:  # only if the catalog contradicts itself; avoids an endless loop
                raise BadIndex("the catalog counts work that it does not find: strop check")
            lists = [self._texts(set_, entry) for entry in batch]
            vectors, reasons = embed_lists(self.embed, lists, kind)
            file, sums = self._append(set_id, vectors)
            pairs = enumerate(zip(batch, lists, strict=True))
            embedded = [pair for at, pair in pairs if at not in reasons]
            spans = [(entry.number, len(texts), entry.digest) for entry, texts in embedded]
            with catalog.writing():
                catalog.waiting.remove(set_id, [entry.number for entry, _ in embedded])
                catalog.vectors.place(file, spans, sums)
                if set_ is not None:
                    catalog.sets.write(set_, {entry.number: texts for entry, texts in embedded})
                catalog.waiting.refuse(
                    set_id, {batch[at].number: reason for at, reason in reasons.items()}
                )
            done += len(batch)
            seconds = time.monotonic() - began
            if seconds < _BATCH_SECONDS / 2:
                size = min(2 * size, MOST)
            elif seconds > _BATCH_SECONDS:
                size = max(size // 2, FEWEST)
            if progress is not None:
                progress(f"embedding {name}", done, total)

    def _texts(self, set_: QuerySet | None, entry: Waiting) -> list[str]:
        """Return the texts to embed for a document."""
        document = entry.document
        if set_ is None:
            return [document.content]
        if set_.settings["source"] == "sentences":
            return title_and_sentences(document.title, document.text, set_.settings["n"])
        if set_.augmented:
            source = self._catalog.sets.all()[set_.settings["of"]]
            queries = self._catalog.sets.queries(source, entry.number)
            return [" ".join([document.content, *queries])]
        return entry.queries

    def _append(self, set_id: int, vectors: Vectors) -> tuple[VectorFile, Sums]:
        """Append vectors to the file of a set; return the file as it was before, and checksums."""
        file = self._catalog.vectors.files()[set_id]
        rows = stored_rows(vectors, file.dtype)
        try:
            append_rows(self._catalog.vector_file(file)[0], file.rows, rows)
        except OSError as error:
            raise cannot_write(self._catalog.folder, error) from error
        return file, row_sums(rows)

    def embed(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed texts (n,) to unit rows (n, dim); an empty text gets a zero row."""
        filled = [at for at, text in enumerate(texts) if text.strip()]
        vectors = np.zeros((len(texts), self._catalog.dim), np.float32)
        if filled:
            embedder = self._embedder()
            rows = embedder.embed([texts[at] for at in filled], kind)
            vectors[filled] = checked_vectors(rows, len(filled), embedder.name, self._catalog.dim)
        return vectors


def embed_lists(
    embed: Callable[[list[str], Kind], Vectors], lists: list[list[str]], kind: Kind
) -> tuple[Vectors, dict[int, str]]:
    """Embed lists of texts; return the rows of all lists that the embedder accepts.

    The second value has the reason for each list that it refuses, by position.
    """
    try:
        return embed([text for texts in lists for text in texts], kind), {}
    except StropError as error:
        if not _is_about_text(error):
            raise
        if len(lists) == 1:
            try:
                return embed(["word"], kind)[:0], {0: str(error)}
            except StropError:  # it accepts no text at all: the document is not the cause
                raise error from None
    middle = len(lists) // 2
    first, reasons = embed_lists(embed, lists[:middle], kind)
    second, second_reasons = embed_lists(embed, lists[middle:], kind)
    reasons |= {middle + at: reason for at, reason in second_reasons.items()}
    return np.concatenate([first, second]), reasons


def _is_about_text(error: StropError) -> bool:
    """Return whether an error is caused by a text, and not by the embedder or its service."""
    if isinstance(error, ServiceError) and not isinstance(error, TextRefused):
        return error.status in _REFUSALS
    return isinstance(error, (BadInput, TextRefused))
