"""Tools of all prompts: their parts, templates of labelled lines, escaping of inserted texts.

The wording of prompts is in prompts.py, that of query expansion in ``expand/prompts.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Profile = Literal["instruct", "small"]
"""``small``: a text to complete, for models that do not follow instructions."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one call; the shared parts come first, so that services can cache them."""

    system: str  # the same for the whole corpus; empty for small models
    shared: str  # the same for all calls of one document
    rest: str

    @property
    def user(self) -> str:
        """The message of the user, or the text that a small model is to complete."""
        return self.shared + self.rest


def chosen_lines(template: str, labels: Iterable[str]) -> str:
    """Return the lines of a template whose label is empty or among ``labels``.

    A line is written ``label | text``.
    """
    used_labels = {"", *labels}
    lines = (line.partition("|") for line in template.split("\n"))
    return "\n".join(text[1:] for label, _, text in lines if label.strip() in used_labels)


def version_of(prompts: Iterable[Prompt]) -> str:
    """Return a hash of prompts; it is stored with each reply and identifies the wording."""
    text = json.dumps([asdict(prompt) for prompt in prompts])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# The tags of our prompts, and the turn markers of chat templates, which servers interpret in any
# text.
_MARKS = re.compile(
    r"(?i)[<＜](?=\s*/?\s*(?:document|reference|example|plan|query|against|(?:start|end)_of_turn)"
    r"(?![a-z])|\||/?s>)"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def safe_text(text: str, limit: int | None = None) -> str:
    """Escape tags, so that a text cannot end its block; cut it after a word if it has spaces."""
    if limit is not None and len(text) > limit:
        space = max(text.rfind(" ", 0, limit + 1), text.rfind("\n", 0, limit + 1))
        text = text[: space if space > limit // 2 else limit].rstrip() + " […]"
    return _MARKS.sub("‹", _CONTROLS.sub(" ", text))


def single_line(text: str) -> str:
    """Return a text on one line with single spaces and without control characters."""
    return " ".join(_CONTROLS.sub(" ", text).split())
