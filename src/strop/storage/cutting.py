"""How an index cuts its documents into chunks: as given, or decided by the first documents.

Long documents are a problem where the embedder reads only their beginning. With the setting
``auto``, the first documents that come are looked at: where some are much longer than that, all
are cut. What is decided stays.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from strop.embed import Embedder
from strop.embed.base import token_counter
from strop.io.chunking import Chunking, parse_chunking, split_text
from strop.storage.chunks import Split
from strop.storage.documents import AUTO
from strop.types import Document

SAMPLE = 1000
LONG = 8
"""Windows of the embedder. A shorter document has at most a hundred sentences or so, which cover
it: cut, it is ranked no better (docs/log.md). Those of a longer one are joined, not read whole."""
LONG_SHARE = 0.05
MOST_TOKENS = 400
Placed = tuple[Document, str]


def checked_chunking(chunking: str | None) -> str | None:
    """Return how an index stores its chunking: None, ``auto`` or sizes such as ``200:40``."""
    return chunking if chunking in (None, AUTO) else str(parse_chunking(chunking))


def splitter(chunking: str, embedder: Embedder) -> Split:
    """Return what cuts documents, with the tokens of an embedder."""
    sizes, count = parse_chunking(chunking), token_counter(embedder)
    return lambda document: split_text(document.text, sizes, count)


def decide(documents: Iterable[Placed], embedder: Embedder) -> tuple[str | None, Iterator[Placed]]:
    """Return the chunking that suits documents and what the embedder reads, and the documents."""
    remaining = iter(documents)
    window: int | None = getattr(embedder, "window", None)
    if window is None:
        return None, remaining
    sample = list(islice(remaining, SAMPLE))
    # A token has at least one character: most texts need not be counted.
    texts = [one.content for one, _ in sample if len(one.content) > LONG * window]
    long = sum(tokens > LONG * window for tokens in token_counter(embedder)(texts))
    both = chain(sample, remaining)
    if long <= LONG_SHARE * len(sample):
        return None, both
    size = max(10, min(window * 25 // 32, MOST_TOKENS))  # the title needs room too
    chunking = Chunking(size, size // 5)
    warnings.warn(
        f"{long:,} of the first {len(sample):,} documents are more than {LONG} times as long as the"
        f" {window:,} tokens that {embedder.name} reads: all are cut into chunks of {size} tokens,"
        f" {chunking.overlap} of them shared. To choose otherwise for a new index: --chunk none or"
        " --chunk SIZE:OVERLAP (chunking=None or chunking='SIZE:OVERLAP')",
        stacklevel=5,
    )
    return str(chunking), both
