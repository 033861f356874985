"""Words of texts in any language: what counts as a word, stop words, stems.

Text goes in, terms come out; nothing here knows of an index or a score. A change of what a text's
terms are needs a new ``VERSION`` (tokenizer.py), since indexes keep the terms of their documents.
"""
