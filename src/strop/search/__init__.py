"""Everything that turns a query into a ranking: formula, scan, candidates, words, explanation.

A change of the score is made here; a database that serves searches implements ``Store``
(scoring.py). Nothing here calls a model, and nothing is written but the codes of the prefilter.
"""
