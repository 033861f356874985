"""The command line: one file for each family of verbs; ``verbs``, ``options``, tables
and progress bars are what they share.

A new verb or option is made here, thin; main.py lists the verbs. Nothing here computes what a
Python user would miss.
"""
