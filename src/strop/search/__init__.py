"""Everything that turns a query into a ranking: formula, scan, candidates, words, explanation.

A change of the score is made here. Nothing here writes to the index or calls a model.
"""
