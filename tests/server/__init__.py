"""Tests of the index as a whole."""
