"""Tools that know nothing of retrieval: arrays, threads, compiled functions, interrupts,
HTTP calls with their retries (``http.py``, ``retries.py``), secrets, caches.

Every package may use them. Nothing here knows a document, a query or an index.
"""
