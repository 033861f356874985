"""An index over HTTP: the API, the forms that other clients speak, MCP for agents, the page.

A new endpoint is a line in ``OPERATIONS`` of ``api.py`` with its typed models. Nothing here ranks
documents, and only the operations on documents write to an index.
"""
