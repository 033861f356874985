"""Tools that know nothing of retrieval: arrays, threads, compiled functions, interrupts, secrets,
HTTP calls (``http.py``), their retries and rate limits (``retries.py``), a cache in SQLite
(``cache.py``, the only SQL here).

Every package may use them. Nothing here knows a document, a query or an index.
"""
