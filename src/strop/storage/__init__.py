"""The index folder: its SQLite catalog, its vector files, snapshots, checks, compaction.

Change here what is stored (the tables: ``schema.py``), what is embedded next (``pipeline.py``) and
whether documents are split (``chunks.py``). Damage is detected by checksums: of vectors in
``vectors.py`` and ``ledger.py``, of tables in ``seals.py``; ``check.py`` compares all of them. SQL
is allowed only here, in ``engines/`` and in ``common/cache.py``. Nothing here computes scores.

``Workspace`` (workspace.py) is the folder: ``path``, ``dim``, ``embedder``, ``pipeline``, the one
writer (``writing()``), checks and compaction. Its ``catalog`` is a ``Catalog`` (catalog.py): parts
over one database, each with its own SQL. ``with catalog.reading()`` is one consistent view
for all parts, ``with catalog.writing()`` one transaction.

    catalog.documents    Documents      add, remove, get(number), number_of(id), ids, all, count
    catalog.sets         QuerySets      all, ensure, import_lists, store_generated, queries
    catalog.vectors      VectorLedger   files, spans, checksums, changes
    catalog.waiting      WaitingList    what waits to be embedded: next, count, refused
    catalog.facets       Facets         select(filter): which documents match
    catalog.references   References     of(number), neighbour lists, selections
    catalog.replies      Replies        known(keys), failed(keys), read(key), save, totals
    catalog.batches      SentBatches    record, open_for(lm), requests(names), outstanding(keys)
    catalog.settings     Settings       get(key), put(key=value); None removes

``load_snapshot`` (snapshot.py) returns the vectors of one version, memory-mapped, for search.
"""
