"""Measuring: methods side by side, significance, grids, tuning with labels or without.

A new measure or a new way to choose settings is added here. Nothing here ranks documents itself.
"""
