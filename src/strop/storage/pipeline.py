"""Makes the vectors an index is missing: documents, then each query set, batch by batch."""

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
_SECONDS = 2.0
"""About how long a batch takes. Each is a commit: a stop loses so much work, and a fast embedder is
not held up by commits."""
FEWEST, MOST = 64, 8192
"""Documents or lists in a batch."""


class Pipeline:
    """Embeds what waits in a catalog. Each batch is on disk before the next begins."""

    def __init__(self, catalog: Catalog, embedder: Callable[[], Embedder]) -> None:
        """``embedder`` is called when a text must be embedded: loading one can be slow."""
        self._catalog, self._embedder = catalog, embedder

    def run(self, progress: Progress | None, augmented: str | None = None) -> None:
        """Make the vectors that are missing: documents, then each set.

        Of augmented texts only those with queries of the set ``augmented``: they cost as much as
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
            if not batch:  # cannot be while counts and batches agree; never loop for ever
                raise BadIndex("the catalog counts work that it does not find: strop check")
            lists = [self._texts(set_, one) for one in batch]
            vectors, reasons = embed_lists(self.embed, lists, kind)
            file, sums = self._append(set_id, vectors)
            pairs = enumerate(zip(batch, lists, strict=True))
            taken = [pair for at, pair in pairs if at not in reasons]
            with catalog.writing():
                catalog.waiting.remove(set_id, [one.number for one, _ in taken])
                catalog.vectors.place(
                    file, [(one.number, len(texts), one.digest) for one, texts in taken], sums
                )
                if set_ is not None:
                    catalog.sets.write(set_, {one.number: texts for one, texts in taken})
                catalog.waiting.refuse(
                    set_id, {batch[at].number: reason for at, reason in reasons.items()}
                )
            done += len(batch)
            seconds = time.monotonic() - began
            if seconds < _SECONDS / 2:
                size = min(2 * size, MOST)
            elif seconds > _SECONDS:
                size = max(size // 2, FEWEST)
            if progress is not None:
                progress(f"embedding {name}", done, total)

    def _texts(self, set_: QuerySet | None, waiting: Waiting) -> list[str]:
        """Return the texts to embed for a document."""
        document = waiting.document
        if set_ is None:
            return [document.content]
        if set_.settings["source"] == "sentences":
            return title_and_sentences(document.title, document.text, set_.settings["n"])
        if set_.augmented:
            of = self._catalog.sets.all()[set_.settings["of"]]
            return [" ".join([document.content, *self._catalog.sets.queries(of, waiting.number)])]
        return waiting.queries

    def _append(self, set_id: int, vectors: Vectors) -> tuple[VectorFile, Sums]:
        """Write vectors behind those of a set; return the file as it was, and checksums."""
        file = self._catalog.vectors.files()[set_id]
        rows = stored_rows(vectors, file.dtype)
        try:
            append_rows(self._catalog.vector_file(file)[0], file.rows, rows)
        except OSError as error:
            raise cannot_write(self._catalog.folder, error) from error
        return file, row_sums(rows)

    def embed(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed texts (n,) to unit rows (n, dim); a text with nothing in it is a zero row."""
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
    """Embed lists of texts; return the rows of all that the embedder takes, one by one.

    Also returns which lists it does not take, by place, and why.
    """
    try:
        return embed([text for texts in lists for text in texts], kind), {}
    except StropError as error:
        if not _is_about_text(error):
            raise
        if len(lists) == 1:
            try:
                return embed(["word"], kind)[:0], {0: str(error)}
            except StropError:  # it does not take any text: the fault is not a document's
                raise error from None
    middle = len(lists) // 2
    first, reasons = embed_lists(embed, lists[:middle], kind)
    second, more = embed_lists(embed, lists[middle:], kind)
    reasons |= {middle + at: reason for at, reason in more.items()}
    return np.concatenate([first, second]), reasons


def _is_about_text(error: StropError) -> bool:
    """Tell whether an embedder's error is about a text, and not about itself or its service."""
    if isinstance(error, ServiceError) and not isinstance(error, TextRefused):
        return error.status in _REFUSALS
    return isinstance(error, (BadInput, TextRefused))
