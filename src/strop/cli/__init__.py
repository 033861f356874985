"""The command line: one file for each family of verbs, tables, progress bars.

A new verb or option is made here, thin; main.py lists the verbs. Nothing here computes what a
Python user would miss.
"""
