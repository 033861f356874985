"""Query expansion: HyDE, Query2Doc, LameR and ReDE-RF refine a query before it is searched.

A new query method is added here; its prompts are in prompts.py. Nothing here changes documents or
their vectors.
"""
