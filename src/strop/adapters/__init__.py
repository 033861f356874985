"""strop inside other programs, one file for each; each needs the package of that program.

A new framework is one more file here, over the public names of strop. No logic of its own.
"""
