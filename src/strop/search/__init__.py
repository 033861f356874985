"""Everything that turns a query into a ranking: formula, scan, candidates, BM25, explanation.

Change the score here: in ``formula.py`` first, then in the kernels that it lists. ``ranking.py``
has the steps of every search. ``searcher.py`` decides when the prefilter is used, ``folder.py`` and
``prefilter/`` which documents are scored; ``words.py`` is BM25. A new database to search in is
added in ``engines/``. Nothing here loads a model, except the cross-encoder of ``reranking.py``, or
writes anything, except the codes of the prefilter.
"""
