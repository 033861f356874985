"""Queries written by a language model: prompts, parsing, plan, cost, calls, batches, triplets.

A change of a prompt, or of what is kept of a reply, is made here. Nothing here ranks documents.
"""
