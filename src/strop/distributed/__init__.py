"""The offline stages for corpora that one machine cannot hold, from shard files to shard files.

A stage's work on one shard is a function; local processes or Ray run it. What a shard contains is
computed by the packages above, the same code as an index folder uses. Only ``runners`` imports ray.
"""
