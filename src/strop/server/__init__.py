"""An index over HTTP: the API, the forms that other clients speak, MCP for agents, the page.

A new endpoint is a line in ``routes.py`` with its typed models. Nothing here ranks documents, and
nothing here but ``documents.py`` writes to an index.
"""
