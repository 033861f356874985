"""Everything that turns a query into a ranking: formula, scan, candidates, BM25, explanation.

Change the score here: in ``formula.py`` first, then in the kernels that it lists. ``ranking.py``
ranks for every store: fusion, feedback. A store proposes, fetches and scores: ``folder.py`` with
``prefilter/`` for the folder (``searcher.py`` decides when), ``engines/copies.py`` for a copy.
``words.py`` is BM25, ``grouping.py`` goes from chunks to documents. Nothing here loads a model,
except the cross-encoder of ``reranking.py``, or writes anything, except the codes of the prefilter.
"""
