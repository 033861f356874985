"""The first heading and the YAML front matter of a Markdown file."""

from __future__ import annotations

import logging
import re
from typing import Any

from strop.common.secrets import one_line

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#*)?[ \t]*$")
"""A heading line: group 1 has the hashes, whose number is the level, group 2 the text."""
_FRONT_MATTER = re.compile(
    r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_MAX_CHARACTERS = 100_000
_log = logging.getLogger(__name__)


def split_front_matter(text: str, path: str) -> tuple[dict[str, Any], str]:
    """Return the YAML front matter of a Markdown text, {} if it has none, and the rest.

    Front matter is between ``---`` on the first line and ``---`` or ``...`` on a later one. If it
    is not a mapping (a rule, a table), it is text. Invalid YAML is text too, with a warning: one
    such file must not stop the import of a folder.
    """
    block = _FRONT_MATTER.match(text)
    if block is None or len(block[1]) > _MAX_CHARACTERS:
        return {}, text
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(block[1])):
            raise yaml.YAMLError("aliases are not supported")  # a few can stand for gigabytes
        fields = yaml.safe_load(block[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = 2 + (mark.line if mark else 0)
        reason = getattr(error, "problem", None) or one_line(error)
        _log.warning(
            "%s line %d: front matter is not valid YAML (%s); kept as text", path, line, reason
        )
        return {}, text
    return (fields, text[block.end() :]) if isinstance(fields, dict) else ({}, text)


def first_heading(markdown: str) -> str:
    """Return the text of the first heading outside code blocks, "" if there is none."""
    fenced = False
    for line in markdown.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced  # a comment in a code block looks like a heading
        elif not fenced and (heading := HEADING.match(line)) and heading[2]:
            return heading[2]
    return ""
