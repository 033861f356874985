"""The prefilter: short codes show which documents can be among the best k; these are scored.

``codes.py`` has the kernels, ``table.py`` the arrays and their file, ``prefilter.py`` the choice of
candidates for a query, ``cache.py`` the file in the index folder. Codes are a cache: without them
every search is exact. Nothing here may change a score, only which documents are scored.
"""
