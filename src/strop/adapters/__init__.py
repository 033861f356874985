"""strop inside other programs, one file for each; each needs the package of that program.

To add a framework, add a file that uses the public names of strop and has no retrieval logic.
"""
