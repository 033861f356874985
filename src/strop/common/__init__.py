"""Tools that are independent of retrieval: arrays, threads, compiled functions, interrupts,
secrets, HTTP calls (``http.py``), their retries and rate limits (``retries.py``), a cache in SQLite
(``cache.py``, the only SQL here).

Every package may use them. Nothing here depends on documents, queries or indexes.
"""
