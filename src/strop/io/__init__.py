"""Texts: corpora, queries and judgements read from files, runs written to files; the sentences,
chunks and terms of a text.

A new file format is one more reader here. Nothing here embeds, stores or ranks. Indexes keep the
terms of their documents, so a change of what a text's terms are needs a new ``tokenizer.VERSION``.
"""
