"""The indexing stages for corpora that one machine cannot hold, from shard files to shard files.

A stage's work on one shard is a function; local processes or Ray run it. Nothing here computes a
vector, a reference or a query: ``embed/``, ``references/`` and ``generate/`` do, as for an index
folder. Only ``runners`` imports ray.
"""
