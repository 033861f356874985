"""The paper's figures as data, their reproduction, analyses, figures, reports.

Add an analysis here. Only ``cli/`` uses this package.
"""
