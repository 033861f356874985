"""Fuzzing of everything that parses bytes from files and services."""
