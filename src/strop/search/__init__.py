"""Everything that turns a query into a ranking: formula, scan, candidates, words, explanation.

A change of the score is made here, in ``formula.py`` first; a new database to search in is made in
``engines/``. Nothing here calls a model, and nothing is written but the codes of the prefilter.
"""
