"""Three small documents and their sentences."""

from __future__ import annotations

from strop import Document

FOX = Document("fox", "The quick brown fox jumps. It clears the lazy dog.", "Foxes")
OWL = Document("owl", "The old owl sees at night. Mice fear the old owl.", "Owls")
PIG = Document("pig", "A pig digs for roots.")
ANIMALS = [FOX, OWL, PIG]
FOX_SENTENCES = ["Foxes", "The quick brown fox jumps.", "It clears the lazy dog."]
OWL_SENTENCES = ["Owls", "The old owl sees at night.", "Mice fear the old owl."]
PIG_SENTENCES = ["A pig digs for roots."]
