"""The index folder: its SQLite catalog, its vector files, snapshots, checks, compaction.

A change of what is stored, or of its SQL, is made here. Nothing here knows how a score is made.
"""
