"""Query expansion: HyDE, Query2Doc, LameR and ReDE-RF refine a query before it is searched.

A new query method is added here. ``prompts.py`` has its prompts and reads the replies;
``refining.py`` says why a query was not refined. Nothing here changes documents or their vectors.
"""
