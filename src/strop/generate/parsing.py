"""How replies are read: tags, JSON, lists or labelled lines, whole or cut off; which are dropped.

Every step takes time in proportion to the length of a reply. No pattern here has two neighbouring
repetitions that can match the same text.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from strop.generate.prompts import FEW_SHOT_EXAMPLES, PromptSettings
from strop.generate.templates import single_line

MAX_QUERIES = 200
"""The largest number of queries that are read from one reply."""
_SHOWN_CHARS = 500  # how much of a dropped text is kept for reports

_REASONING = re.compile(r"(?i)[<\[](/?)(?:think|thinking|thought|reasoning)[>\]]")
_NOISE = re.compile(r"(?i)<\|[^<>|]{1,40}\|>|</?(?:s|queries|answers?|output|response)>")
_BRACKETS = re.compile(r"<([^<>]{1,200})>")
_TAG = re.compile(r"(?i)(/?)\s*(plan|query|against)[\s_#]*\d{0,3}")
_JSON = re.compile(r"""(?m)^(?:[A-Z][^\n"'\[{<]{0,99}:)?[ \t]*([\[{](?:\s|[\[{]){0,99}["'])""")
# A quote ends a string only if JSON could continue after it: models forget to escape quotes.
_STRING = r"""(["'])((?:[^"'\\]|\\.|(?!\1)["']|\1(?!\s*(?:[,:\]}]|$)))*)\1"""
_TOKENS = re.compile(rf"""(?s){_STRING}|[\[\]{{}}"']|\d+""")
_KEY = re.compile(
    r"(?i)(?P<query>\d+|.*(?:quer(?:y|ies)|questions?|passages?|text)[\s_]*\d*)"
    r"|(?P<plan>plan|reason(?:ing)?|.*difference|explanation)|(?P<against>against|references?)"
)
_MAX_KEY_CHARS = 100
_MARKER = re.compile(r"\s*(?:[-*+•‣▪◦·–—]|\(?(\d{1,3})[.):])[ \t]+")
# Matches in texts with single spaces.
_LABEL = (
    r"(?i)[ *_]*(?:(?:relevant|search|contrastive|negative|example) )?(%s)"
    r"(?: ?#?\d+ ?[*_]* ?(?:[-–—:：.)]|$)| ?[*_]* ?[:：])[ *_]*"
)
_CHATTER = re.compile(
    r"(?i).*[:：]$|(?:sure|certainly|of course|okay)[,.!]|let me know|(?:i )?hope this|[<\[{}\]]|"
    r"(?:here (?:are|is)|here's|below (?:are|is)|the following|these)\b.*(?:quer|question|passage)"
)
_REFUSAL = re.compile(
    r"(?i)\W*(?:i(?:['’]m| am)(?: \w+)? sorry|sorry,|i apologi[sz]e|as an ai\b|unfortunately,? i\b|"
    r"i(?:['’]m| am) (?:unable|not able) to|i (?:cannot|can['’]t|won['’]t|will not|must)\b"
    r".{0,40}\b(?:help|assist|provide|generate|create|comply|fulfil|write|produce|answer|decline))"
)
_ENTITY = re.compile(r"(?i)&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]\w{1,30});")
_QUOTES = ('""', "''", "“”", "‘’", "„“", "„”", "«»", "‹›", "「」", "『』", "``", "****", "**")
_Fields = list[tuple[str, str]]
"""("query", "plan" or "against", its text), in the order of the reply."""


class ParsedReply(NamedTuple):
    """The queries of a reply, and the texts of it that were dropped."""

    queries: list[str]
    against: list[tuple[int, ...] | None]
    """For each query the positions of the references it was written against; None if unknown."""
    dropped: list[tuple[str, str]]
    """(reason, text); the reasons are a few fixed phrases that can be counted."""


def parse_reply(
    text: str, settings: PromptSettings, truncated: bool = False, references: int | None = None
) -> ParsedReply:
    """Read the queries of a reply of any form. Never raises.

    ``truncated``: the reply was cut off for its length, so an incomplete last query is dropped.
    ``references`` is the number of references in the prompt; larger positions are ignored.
    """
    parsed = ParsedReply([], [], [("reply cut off", text[-_SHOWN_CHARS:])] if truncated else [])
    body = without_reasoning(text)
    fields = _from_tags(body, truncated) or _from_json(body)
    raw_queries = _queries_with_references(fields or _from_lines(body, settings, truncated))
    if not raw_queries:
        empty = "reasoning only" if text.strip() and not body.strip() else "no query found"
        parsed.dropped.append(("refusal" if is_refusal(body) else empty, text[:_SHOWN_CHARS]))
    if len(raw_queries) > MAX_QUERIES:
        parsed.dropped.append((f"after the first {MAX_QUERIES} of a reply", text[-_SHOWN_CHARS:]))
        del raw_queries[MAX_QUERIES:]
    max_chars = 1000 if settings.noun == "query" else 5000
    copies = {f"the {settings.noun}", *(FEW_SHOT_EXAMPLES if settings.profile == "small" else ())}
    for raw, against in _without_numbers(raw_queries):
        query = clean_query(raw[: 2 * max_chars], settings.noun)
        if not any(map(str.isalnum, query)) or query.lower() in ("none", "n/a", "null"):
            parsed.dropped.append(("query without words", query))
        elif len(query) > max_chars:
            parsed.dropped.append(("query too long", query[:_SHOWN_CHARS]))
        elif query.lower() in copies:
            parsed.dropped.append(("query copied from the prompt", query))
        else:
            parsed.queries.append(query)
            parsed.against.append(_positions(against, references))
    return parsed


def is_refusal(text: str) -> bool:
    """Return whether a text begins with a phrase by which models decline."""
    return _REFUSAL.match(text) is not None


def without_reasoning(text: str) -> str:
    """Drop the model's reasoning; a closing tag alone ends reasoning that began in the prompt."""
    pieces: list[str] = []
    begin, thinking, text_end = 0, False, len(text.rstrip())
    for tag in _REASONING.finditer(text):
        if not thinking:
            if tag[1] and tag.end() < text_end:
                pieces.clear()
            else:
                pieces.append(text[begin : tag.start()])
        thinking, begin = not tag[1], tag.end()
    if not thinking:
        pieces.append(text[begin:])
    body = "".join(pieces).rpartition("<|channel|>final<|message|>")[2]
    body = _NOISE.sub("\n", body)
    if next(_tags(body), None) is None:
        body = body.replace("&lt;", "<").replace("&gt;", ">")
    return body


def _queries_with_references(fields: _Fields) -> list[tuple[str, str]]:
    """Return each query with the numbers of references written before or after it."""
    names = [name for name, _ in fields]
    numbers_follow = "against" in names and "query" in names[: names.index("against")]
    queries: list[tuple[str, list[str]]] = []
    pending_numbers: list[str] = []
    for name, text in fields:
        if name == "query":
            queries.append((text, pending_numbers))
            pending_numbers = []
        elif name == "against":
            (queries[-1][1] if numbers_follow else pending_numbers).append(text)
    return [(text, " ".join(numbers)) for text, numbers in queries]


def _without_numbers(queries: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Remove the numbers of queries numbered 1, 2, 3 …; other queries may begin with a number."""
    marks = [_MARKER.match(text) for text, _ in queries]
    numbered = len(marks) > 1 and all(m and m[1] == str(at) for at, m in enumerate(marks, start=1))
    for mark, (text, against) in zip(marks, queries, strict=True):
        yield text[mark.end() if mark and numbered else 0 :], against


def _tags(body: str) -> Iterator[tuple[re.Match[str], bool, str]]:
    """Yield our tags: the match, whether it is a closing one, its name."""
    for brackets in _BRACKETS.finditer(body):
        inside = brackets[1].strip()
        tag = _TAG.match(inside)
        if tag is None:
            continue
        tail = inside[tag.end() :]
        has_attributes = "=" in tail and any(
            map(str.isspace, inside[tag.end() - 1 : tag.end() + 1])
        )
        if not tail or has_attributes:
            yield brackets, bool(tag[1]), tag[2].lower()


def _from_tags(body: str, truncated: bool) -> _Fields:
    """Read tagged text; if a closing tag is missing, the next tag or an empty line is the end."""
    fields: _Fields = []
    opened, begin = "", 0
    for tag, closing, tag_name in _tags(body):
        text, name = body[begin : tag.start()], opened or (tag_name if closing else "")
        lines = [line for line in text.splitlines() if line.strip()]
        if name == "query" and len(lines) > 1 and all(map(_MARKER.match, lines)):
            fields += [(name, _MARKER.sub("", line, count=1)) for line in lines]
        elif name and lines:
            fields.append((name, text))
        opened, begin = "" if closing else tag_name, tag.end()
    if opened == "query" and not truncated and body[begin:].strip():
        fields.append((opened, re.sub(r"</?\w*$", "", body[begin:].strip()).split("\n\n")[0]))
    return fields


def _from_json(body: str) -> _Fields:
    """Read strings and their keys from JSON, including JSON that is cut off or slightly wrong."""
    fields: _Fields = []
    depth, key, begin = 0, "query", _JSON.search(body)
    for token in _TOKENS.finditer(body, begin.start(1)) if begin else ():
        word, following = token[0], body[token.end() : token.end() + 20].lstrip(" \t\r\n,`")
        if token[1]:
            value = token[2]
            with suppress(ValueError):
                value = json.loads(word, strict=False)
            if following.startswith(":"):
                key_match = _KEY.fullmatch(value[:_MAX_KEY_CHARS].strip())
                key = (key_match and key_match.lastgroup) or ""
            elif key:
                fields.append((key, value))
        elif word.isdigit():
            fields += [(key, word)] if key == "against" else []
        else:
            depth += (word in "[{") - (word in "]}")
            if word in "\"'" or (depth == 0 and not following.startswith(("[", "{"))):
                break  # a string without an end, or the end of the JSON
    return fields


def _labelled_lines(
    body: str, settings: PromptSettings, truncated: bool
) -> Iterator[tuple[int, str, str]]:
    """Yield the rank, name and text of lines. Rank: 3 label, 2 number, 1 bullet, 0 none."""
    label = re.compile(_LABEL % f"plan|against|query|question|{re.escape(settings.noun)}")
    last_number = 0
    for line in body.split("\n")[: -1 if truncated else None]:
        text = re.sub(r"^ ?(?:#{1,6} |>|```.*|[-=_*]{3,}$) ?", "", single_line(line))
        mark = _MARKER.match(text)
        number = int(mark[1] or 0) if mark else 0
        if number > 1 and not last_number < number <= last_number + 3:
            mark = None  # the query itself begins with a number
        last_number = number if mark and number else last_number
        text = text[mark.end() :] if mark else text
        labelled = label.match(text)
        rank = 3 if labelled else 0 if not mark else 2 if number else 1
        name = labelled[1].lower() if labelled else "query"
        name = name if name in ("plan", "against") else "query"
        yield rank, name, text[labelled.end() :] if labelled else text


def _from_lines(body: str, settings: PromptSettings, truncated: bool) -> _Fields:
    """Read the lines of the best kind: labelled, numbered, bullets, else all without chatter."""
    if small := settings.profile == "small":
        body = re.split(r"(?im)^[ \t]*(?:document|passage)\s*\d*:", body)[0]
    lines = list(_labelled_lines(body, settings, truncated))
    best = max((rank for rank, name, _ in lines if name == "query"), default=0)
    if not best and is_refusal(body):
        return []
    fields: _Fields = []
    for rank, name, text in lines:
        prose = not text or _CHATTER.match(text) or (settings.noun == "query" and len(text) > 300)
        plain_line_counts = (rank or not fields) if small else not best
        if fields and text and not fields[-1][1]:  # after a heading such as "Query 1:"
            fields[-1] = (fields[-1][0], text)
        elif name != "query" or (rank and rank == best) or (plain_line_counts and not prose):
            fields.append((name, text))
    return fields


def clean_query(text: str, noun: str) -> str:
    """Remove labels, quotes, emphasis, entities and white space around a query."""
    text = single_line(_ENTITY.sub(lambda entity: html.unescape(entity[0]), text))
    for _ in range(3):
        label = re.match(_LABEL % f"query|question|{re.escape(noun)}", text)
        text = text[label.end() :] if label else text
        for pair in _QUOTES:
            half = len(pair) // 2
            if text[:half] + text[-half:] == pair and len(text) > 2 * half:
                inner = text[half:-half]
                mark = re.search(f"[{pair}]", re.sub(r"(?<=\w)['’](?=\w)", "_", inner))
                if not mark or inner[: mark.start()][-1:].isspace():  # an opening quote
                    text = inner.strip()
        text = re.sub(r"(?<!\w)\*\*(\S(?:[^*]*\S)?)\*\*(?!\w)", r"\1", text)
    return text


def _positions(text: str, references: int | None) -> tuple[int, ...] | None:
    """Return the positions named by a text such as "1, 3-5", or None."""
    pairs = re.findall(r"(\d{1,3})(?:\s*[-–]\s*(\d{1,3}))?", text[:1000])
    positions = {at for first, last in pairs for at in range(int(first) - 1, int(last or first))}
    return tuple(sorted(positions & set(range(1000 if references is None else references)))) or None
