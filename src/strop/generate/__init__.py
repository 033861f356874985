"""Queries written by a language model: prompts, parsing, filters, plan, calls, triplets.

A change of a prompt, of what is kept of a reply, or of what a run costs is made here. Why a reply
was dropped: parsing.py; why a query was: filters.py; ``strop queries … --show-dropped`` lists both.
Why there was no reply: ``Failure`` of ``lm/base.py``. Nothing here ranks documents.
"""

from strop.generate.generation import Generation, Summary
from strop.generate.plan import Estimate, GenerationSettings
from strop.generate.prompts import PromptSettings

__all__ = ["Estimate", "Generation", "GenerationSettings", "PromptSettings", "Summary"]
