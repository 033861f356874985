"""Tools that know nothing of retrieval: arrays, threads, compiled functions, interrupts.

Every package may use them. Nothing here knows a document, a query or an index.
"""
