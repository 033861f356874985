"""Contrastive references: nearest neighbours, clusters, the choice, keeping it up to date.

A change of which documents are contrasted is made here. Nothing here writes or scores queries.
"""
