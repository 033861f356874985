"""The command line: one file for each family of verbs, and what they share: ``verbs``, ``options``,
tables, progress bars.

Add a verb or an option here; ``main.py`` lists the verbs. Nothing here computes anything that
Python users need: that belongs to the other packages.
"""
