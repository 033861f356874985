"""The catalog: one SQLite file with everything that an index stores except its vectors.

It is the source of truth. A change is one transaction, so a process that is stopped at any moment
leaves the catalog as it was before or after the change. Vector files (vectors.py) are written and
synced before the transaction that refers to them.

Texts are stored first and embedded afterwards, in batches, each in a separate transaction. The
catalog records what still waits, so interrupted work continues where it stopped: the table
``waiting`` names each document whose vector (set 0) or list is missing or outdated. If the texts
were given and not derived, it stores them too. Until the new vectors are stored, the old ones are
used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from strop.storage.database import Database
from strop.storage.documents import Documents
from strop.storage.facets import Facets
from strop.storage.intake import CATALOG, checked_record
from strop.storage.ledger import VectorFile, VectorLedger
from strop.storage.manifest import Manifest
from strop.storage.query_sets import QuerySets
from strop.storage.references import References
from strop.storage.replies import Replies, SentBatches
from strop.storage.settings import Settings
from strop.storage.vectors import row_type
from strop.storage.waiting import WaitingList
from strop.storage.word_index import WordIndex


class Catalog:
    """The parts of one catalog; safe to use from several threads.

    Each part has its own SQL over the one ``database``. What several parts do within ``writing()``
    is one transaction; within ``reading()`` they all see the same state. ``embedder`` is the stored
    record of the embedder (``intake.about_embedder``), ``dim`` the length of its vectors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / CATALOG
        self.database = Database(self.path)
        self.reading, self.writing = self.database.reading, self.database.writing
        self.settings = Settings(self.database)
        self.vectors = VectorLedger(self.database, self.settings)
        self.waiting = WaitingList(self.database)
        parts = self.database, self.settings, self.vectors, self.waiting
        self.sets = QuerySets(*parts)
        self.documents = Documents(*parts, self.sets)
        self.words = WordIndex(self.database, self.settings)
        self.facets = Facets(self.database)
        self.manifest = Manifest(self.database)
        self.references = References(self.database, self.settings, self.documents)
        self.replies = Replies(self.database)
        self.batches = SentBatches(self.database, self.settings)
        self.embedder = checked_record(folder, self.settings.get("embedder"))
        self.dim: int = self.embedder["dim"]

    def vector_file(self, file: VectorFile) -> tuple[Path, np.dtype[Any]]:
        """Return the path of a vector file and the numpy type of its rows."""
        return self.folder / "vectors" / file.name, row_type(file.dtype, self.dim)
