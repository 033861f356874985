"""Files in and out: corpora, sentences, queries, judgements, TREC runs.

A new file format is one more reader here. Nothing here embeds, stores or ranks.
"""
