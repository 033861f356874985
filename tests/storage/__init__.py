"""Tests of the index folder."""
