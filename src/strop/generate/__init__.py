"""Queries written by a language model: prompts, parsing, filters, plan, calls, triplets.

Change prompts, the parsing of replies and the cost of a run here. parsing.py decides which replies
are dropped, filters.py which queries; ``strop queries … --show-dropped`` lists both. ``Failure`` of
``lm/base.py`` has the reason why a call has no reply. Nothing here ranks documents.
"""

from strop.generate.generation import Generation, Summary
from strop.generate.plan import Estimate, GenerationSettings
from strop.generate.prompts import PromptSettings

__all__ = ["Estimate", "Generation", "GenerationSettings", "PromptSettings", "Summary"]
