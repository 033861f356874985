"""The paper's figures as data, their reproduction, analyses, figures, reports.

A new analysis is made here. Nothing else in strop depends on this package.
"""
