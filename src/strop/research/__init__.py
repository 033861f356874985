"""The paper's figures as data, their reproduction, analyses, figures, reports.

A new analysis is made here. Only ``cli/`` uses this package.
"""
