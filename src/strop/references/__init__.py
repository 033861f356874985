"""Contrastive references: nearest neighbours, their clusters, the choice, and its updates.

Change here which documents a document is contrasted with. Nothing here writes or scores queries,
and nothing here contains SQL: ``storage/`` stores the lists and the references.
"""
