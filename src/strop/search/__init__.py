"""Everything that turns a query into a ranking: formula, scan, candidates, words, explanation.

A change of the score is made here: in ``formula.py`` first, then in the forms that it lists.
``searcher.py``, ``folder.py`` and ``prefilter/`` decide which documents are scored. A new database
to search in is added in ``engines/``. Nothing here loads a model, except the cross-encoder of
``reranking.py``, or writes anything, except the codes of the prefilter.
"""
