"""Parsing of replies: all formats are read, no reply raises, the time is linear."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.generate.parsing import parse_reply
from strop.generate.prompts import PromptSettings

PLAIN = PromptSettings()
PACKED = PromptSettings(packed=True)
SIMPLE = PromptSettings("simple")
SMALL = PromptSettings("simple", profile="small")
ARGUMENTS = PromptSettings(noun="counter-argument passage")


def queries(text: str, prompt: PromptSettings = PLAIN, truncated: bool = False) -> list[str]:
    return parse_reply(text, prompt, truncated).queries


# --- queries in realistic formats are parsed unchanged

_REAL = [
    "what is the effect of constant free stream vorticity on a flat plate .",
    'what does "lift" mean exactly',
    "AT&T's 5G vs 4G, which is faster?",
    "p < 0.05 meaning",
    "10. Juli 2020 Ereignisse",
    "how to use __init__ in python",
    "a ** b in python",
    "C++ vs C#",
    "scale 3:1 drawings",
    "what does [MASK] do in BERT",
    "it's the cat's whiskers - origin",
    "पैंथर्स डिफ़ेंस ने कितने अंक दिए?",
    "ทีมรับของแพนเธอร์สยอมแพ้ที่คะแนนเท่าไร",
    "東京大学はいつ設立されましたか？",
    "ምን ያህል ሰዎች ይኖራሉ?",
    "ما هي عاصمة مصر؟",
    "I cannot log in to my account",
    "sorry in Korean",
    "3D printing costs",
]
_WORD = st.text("abcdefghijklmnopqrstuvwxyzäßéñअकमกขค東京大가나абв", min_size=1, max_size=9)
_QUERY = st.one_of(
    st.sampled_from(_REAL),
    st.lists(_WORD, min_size=2, max_size=9).map(" ".join),
    st.lists(_WORD, min_size=2, max_size=9).map(lambda words: " ".join(words).capitalize() + "?"),
)
_QUERIES = st.lists(_QUERY, min_size=1, max_size=12, unique=True)


def _each(form: str, before: str = "", after: str = "", between: str = "\n") -> Callable[..., str]:
    def write(texts: list[str]) -> str:
        items = [form.format(i=i, q=q) for i, q in enumerate(texts, start=1)]
        return before + between.join(items) + after

    return write


FORMATS: dict[str, Callable[[list[str]], str]] = {
    "tags": _each("<PLAN>uses x, English</PLAN>\n<QUERY>{q}</QUERY>", between="\n\n"),
    "tags in a row": _each("<PLAN>p</PLAN><AGAINST>1</AGAINST><QUERY>{q}</QUERY>", between=""),
    "tags with the query first": _each("<QUERY>{q}</QUERY><PLAN>p</PLAN>"),
    "odd tags": _each('< query id="{i}" >\n  {q}\n</ Query >', before="Sure! Here they are:\n\n"),
    "numbered tags": _each("{i}. <QUERY_{i}>{q}</QUERY_{i}>", after="\n\nLet me know!"),
    "numbers in tags": _each("<PLAN>{i}. p</PLAN>\n<QUERY>{i}. {q}</QUERY>"),
    "tags without an end": _each("<PLAN>p\n<QUERY>{q}"),
    "tags ended by their beginning": _each("<QUERY>{q}<QUERY>"),
    "tags without a beginning": _each("<PLAN>p</PLAN>\n{q}</QUERY>"),
    "tags in a fence": _each(
        "<QUERY>{q}</QUERY>", before="```xml\n<queries>\n", after="</queries>\n```"
    ),
    "quotes in tags": _each("<PLAN>p</PLAN><QUERY>**“{q}”**</QUERY>"),
    "escaped tags": lambda texts: html.escape(_each("<QUERY>{q}</QUERY>")(texts)),
    "thought aloud": _each(
        "<QUERY>{q}</QUERY>", before="<think>\nMaybe <QUERY>no</QUERY>\n1. no\n</think>\n"
    ),
    "thought aloud, begun in the prompt": _each("{i}. {q}", before="Well, ...\n1. no</think>\n\n"),
    "harmony": _each(
        "<QUERY>{q}</QUERY>",
        before="<|channel|>analysis<|message|>1. no<|end|><|channel|>final<|message|>",
        after="<|return|>",
    ),
    "numbers": _each(
        "{i}. {q}", before="Here are some queries:\n\n", after="\n\nI hope this helps!"
    ),
    "numbers in brackets": _each("{i}) {q}"),
    "numbers and quotes": _each('{i}. "{q}"', before="Sure! Here are the queries.\n"),
    "bold numbers": _each("{i}. **{q}**", between="\n\n"),
    "bullets": _each("- {q}", before="## Queries\n\n"),
    "other bullets": _each("* “{q}”", after="\n"),
    "round bullets": _each("  • {q}"),
    "labels": _each("Plan {i}: the difference\nQuery {i}: {q}", between="\n\n"),
    "bold labels": _each(
        "{i}. **Plan:** uses y\n   **Query:** {q}", before="Here is what I found.\n"
    ),
    "headings": _each("### Query {i}\n{q}\n*Why:* it is so"),
    "headings with colon": _each("**Query {i}:**\n{q}\n"),
    "JSON": lambda texts: json.dumps(texts),
    "JSON, indented": lambda texts: json.dumps(texts, indent=2, ensure_ascii=False),
    "JSON objects": lambda texts: json.dumps([{"plan": "p", "query": q} for q in texts]),
    "JSON, query first": lambda texts: json.dumps(
        [{"query": q, "plan": "p", "language": "en", "against": [1, 2]} for q in texts], indent=1
    ),
    "JSON in a fence": lambda texts: (
        f'Here is the JSON:\n```json\n{json.dumps({"queries": texts})}\n```\nThe "best" is [1].'
    ),
    "JSON behind a colon": lambda texts: f"Output: {json.dumps(texts)} Done.",
    "JSON lines": lambda texts: "\n".join(json.dumps({"query": q}) for q in texts),
    "JSON with numbers for keys": lambda texts: json.dumps(dict(enumerate(texts))),
    "JSON, cut off": lambda texts: json.dumps({"queries": [*texts, "and one mo"]})[:-3],
    "JSON objects, cut off": lambda texts: json.dumps(
        [*({"query": q, "plan": "p"} for q in texts), {"query": "and"}]
    )[:-4],
    "JSON with a comma too many": lambda texts: json.dumps(texts)[:-1] + ",\n]",
    "a list of Python": lambda texts: "['" + "', '".join(texts) + "']",
}
# Lines without marks: a query that looks like a number or an apology is ambiguous there.
PLAIN_LINES = {
    "lines": _each("{q}", before="Here are 10 queries:\n\n"),
    "lines apart": _each("{q}", before="Sure, here are the queries:\n", between="\n\n"),
    "lines in quotes": _each('"{q}"'),
}


@settings(max_examples=40)
@given(texts=_QUERIES)
def test_queries_are_parsed_unchanged_from_every_format(texts: list[str]) -> None:
    for name, write in {**FORMATS, **PLAIN_LINES}.items():
        expected = texts
        if name in PLAIN_LINES and texts[0].startswith("I cannot"):
            expected = texts[1:]
        if name == "numbers in tags":  # a single number can be part of its query
            expected = [*texts, "one more"]
        parsed = parse_reply(write(expected), PLAIN)
        assert parsed.queries == expected, name
        assert len(parsed.against) == len(expected), name


# --- case by case


def test_references_stay_with_their_query() -> None:
    reply = """
<PLAN>scent &amp; sun;
English</PLAN> <AGAINST>2, 5</AGAINST> <QUERY>one</QUERY>
<QUERY>two</QUERY>
<PLAN>third</PLAN><QUERY>three</QUERY>
<AGAINST>REFERENCE 1-3 and 9</AGAINST><QUERY>four</QUERY>
<AGAINST>all</AGAINST><QUERY>five</QUERY>"""
    parsed = parse_reply(reply, PACKED, references=5)
    assert parsed.queries == ["one", "two", "three", "four", "five"]
    assert parsed.against == [(1, 4), None, None, (0, 1, 2), None]
    assert parsed.dropped == []
    assert parse_reply(reply, PACKED).against[3] == (0, 1, 2, 8)


def test_tags_after_a_query_belong_to_it() -> None:
    reply = "<QUERY>one</QUERY><AGAINST>1</AGAINST><QUERY>two</QUERY><AGAINST>[2, 3]</AGAINST>"
    assert parse_reply(reply, PACKED).against == [(0,), (1, 2)]
    reply = json.dumps([{"query": "one", "references": ["2"]}, {"query": "two", "against": "1,12"}])
    assert parse_reply(reply, PACKED).against == [(1,), (0, 11)]
    reply = json.dumps([{"against": [2, 11], "query": "one"}, {"query": "two"}])
    assert parse_reply(reply, PACKED).against == [(1, 10), None]
    reply = "1. one\n   Plan: p\n   Against: 2\n2. two\n   Plan: q"
    parsed = parse_reply(reply, PACKED)
    assert parsed.queries == ["one", "two"]
    assert parsed.against == [(1,), None]


@pytest.mark.parametrize(
    ("reply", "whole", "cut"),
    [
        ("<QUERY>one</QUERY><QUERY>two</QUERY><PLAN>thr", ["one", "two"], ["one", "two"]),
        ("<QUERY>one</QUERY><QUERY>two is", ["one", "two is"], ["one"]),
        ("<QUERY>one</QUERY><QUERY>two</QUE", ["one", "two"], ["one"]),
        ("<PLAN>p</PLAN>\n<QUERY>one", ["one"], []),
        ("<PLAN>one and", [], []),
        ("1. one\n2. two\n3. thr", ["one", "two", "thr"], ["one", "two"]),
        ("1. one\n2. two\n", ["one", "two"], ["one", "two"]),
        ('["one", "two", "thr', ["one", "two"], ["one", "two"]),
        ('[{"query": "one", "plan": "p"}, {"query": "tw', ["one"], ["one"]),
        ('```json\n{"queries": ["one",', ["one"], ["one"]),
        ('{"queries": [', [], []),
        ("<think>one\n1. two", [], []),
    ],
)
def test_truncated_replies_lose_incomplete_queries(
    reply: str, whole: list[str], cut: list[str]
) -> None:
    assert queries(reply) == whole
    parsed = parse_reply(reply, PLAIN, truncated=True)
    assert parsed.queries == cut
    assert ("reply cut off", reply) in parsed.dropped


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "no query found"),
        (" \n ", "no query found"),
        ("```\n```", "no query found"),
        ("<think>hm", "reasoning only"),
        ("<think>hm</think>", "reasoning only"),
        ("[]", "no query found"),
        ('{"error": "too long"}', "no query found"),
        ("I cannot help with that request.", "refusal"),
        ("I’m sorry, but I can’t assist with that.", "refusal"),
        ("I'm sorry, the documents are the same.\n\nThere is nothing to tell apart.", "refusal"),
        ("As an AI language model, I have no opinion", "refusal"),
        ("I am unable to generate queries for this.", "refusal"),
        ("<QUERY></QUERY>", "no query found"),
        ("<QUERY>...</QUERY>", "query without words"),
        ("<QUERY>N/A</QUERY>", "query without words"),
        ("<QUERY>the query</QUERY>", "query copied from the prompt"),
        (f"<QUERY>{'a' * 1001}</QUERY>", "query too long"),
        ("1. " + "word " * 300, "query too long"),
    ],
)
def test_replies_without_a_query_give_a_reason(reply: str, problem: str) -> None:
    parsed = parse_reply(reply, PLAIN)
    assert parsed.queries == []
    assert [reason for reason, _ in parsed.dropped] == [problem]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<QUERY>1. FC Köln Trainer</QUERY>", ["1. FC Köln Trainer"]),
        ("<QUERY>2. Weltkrieg</QUERY><QUERY>1. Liga</QUERY>", ["2. Weltkrieg", "1. Liga"]),
        ("<QUERY>\n1. one\n2. two\n</QUERY>", ["one", "two"]),
        ("<QUERY>one\ntwo</QUERY>", ["one two"]),
        ("<QUERY>Query: one</QUERY>", ["one"]),
        ("<QUERY>Search query 3: 'one'</QUERY>", ["one"]),
        ("<QUERY>`one`</QUERY><QUERY>«deux»</QUERY><QUERY>「三」</QUERY>", ["one", "deux", "三"]),
        ("<QUERY>'the cat's tail'</QUERY>", ["the cat's tail"]),
        ('<QUERY>"one" or "two"</QUERY>', ['"one" or "two"']),
        ("<QUERY>what is **lift** here</QUERY>", ["what is lift here"]),
        ("<QUERY>a &amp; b&nbsp;&lt;3 &#39;n&#39; AT&T &copy</QUERY>", ["a & b <3 'n' AT&T &copy"]),
        ("<QUERY>a\u00a0 b\tc\x00</QUERY>", ["a b c"]),
        ('["lone \\ud83d surrogate"]', ["lone surrogate"]),
        ('["say "hello" twice", "two"]', ['say "hello" twice', "two"]),
        ("<QUERY>one</QUERY></think>", ["one"]),
        ("<think>a</think><QUERY>one</QUERY><think>b</think><QUERY>two</QUERY>", ["one", "two"]),
        ("<QUERY>one\n\nThat is all I can think of.", ["one"]),
        ("Key differences:\n- this\n- that\n\nQueries:\n1. one\n2. two", ["one", "two"]),
        ("Sorry, only these:\n1. one\n2. two", ["one", "two"]),
        ("1. one\n- why it is good\n\n2. two\n- because", ["one", "two"]),
        ("**A**\n1. one\n2. two\n**B**\n1. three", ["one", "two", "three"]),
        ("what is a wing\nwhat is lift", ["what is a wing", "what is lift"]),
        ("The texts differ. " * 30 + "\nwhat is lift", ["what is lift"]),
        ("Query: one", ["one"]),
        ("Question 1: one\n\nQuestion 2: two", ["one", "two"]),
        ("```\none\ntwo\n```", ["one", "two"]),
        ("> one\n> two", ["one", "two"]),
        ("<s>1. one</s>", ["one"]),
    ],
)  # fmt: skip
def test_replies_of_real_models(reply: str, expected: list[str]) -> None:
    parsed = parse_reply(reply, PLAIN)
    assert parsed.queries == expected
    assert parsed.dropped == []


def test_passages_may_be_long() -> None:
    passage = "It is not so. " * 100
    assert queries(f"<QUERY>{passage}</QUERY>", ARGUMENTS) == [passage.strip()]
    assert queries(passage, ARGUMENTS) == [passage.strip()]
    assert queries(f"Counter-argument passage 1: {passage}", ARGUMENTS) == [passage.strip()]
    assert queries(f"<QUERY>{passage * 5}</QUERY>", ARGUMENTS) == []
    assert queries(f"<QUERY>{passage}</QUERY>") == []


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (" what is lift", ["what is lift"]),
        (" what is lift\n\nDocument: A wing\nRelevant query: what is a wing", ["what is lift"]),
        ("what is lift\nIt is a force.", ["what is lift"]),
        ("\nRelevant query: what is lift", ["what is lift"]),
        (' "what is lift"\nRelevant query: “what is drag”', ["what is lift", "what is drag"]),
        ("Here are some relevant queries:\n1. what is lift\n2. drag", ["what is lift", "drag"]),
        (" what is lift\ndocument 2: x\nRelevant query: y", ["what is lift"]),
        ("Document: x", []),
        ("", []),
        (" removing rust from a cast iron pan\n", []),
        ("I cannot help with that.", []),
        ("<QUERY>what is lift</QUERY>", ["what is lift"]),
    ],
)
def test_completions(reply: str, expected: list[str]) -> None:
    assert queries(reply, SMALL) == expected


def test_truncated_completions() -> None:
    assert queries(" what is", SMALL, truncated=True) == []
    assert queries(" what is lift\nDocument: A wi", SMALL, truncated=True) == ["what is lift"]


_NASTY = st.lists(
    st.sampled_from(
        """<QUERY> </QUERY> <PLAN> </PLAN> <AGAINST> </AGAINST> < > </ query <think> </think> json
        ```
        [ ] { } " ' \\ : , " "query": "queries":[ Query: 1. 2) - * ** __ # &lt; &#x; &#0; \\u d800
        I Sorry, cannot help Document: Relevant […] “ ” 1 23 ² ① \x00 \ud800 \u2028 \u200b
        <|x|>""".split()
    )
    | st.sampled_from(["\n", " ", "\n\n", "\t", "word", "ไทย", "?"]),
    max_size=60,
).map("".join)  # fmt: skip


@settings(max_examples=300)
@given(
    text=st.text(max_size=300) | _NASTY,
    prompt=st.sampled_from([PLAIN, PACKED, SIMPLE, SMALL, ARGUMENTS]),
    truncated=st.booleans(),
)
def test_random_replies_are_parsed(text: str, prompt: PromptSettings, truncated: bool) -> None:
    parsed = parse_reply(text, prompt, truncated, references=3)
    assert len(parsed.queries) == len(parsed.against)
    assert parsed.queries or parsed.dropped
    for query in parsed.queries:
        assert query == " ".join(query.split())
        assert any(letter.isalnum() for letter in query)
        assert len(query) <= 5000
        query.encode()
    for against in parsed.against:
        assert against is None or (against and set(against) <= {0, 1, 2})


# --- time

_PIECES = (
    "<think>", "</think>", "<think>a</think>b", "<QUERY>", "[", '["a", ', '"', "&lt;", "\n", " ",
    "1. ", "**", "**a ", "'a'", "<", "< ", "Query: ", "Query ", "< query", "< query ", "<query =",
    '{"query"', "word ", "[ \n", '"a" "', "(1) ", "<QUERY> ** ", "*_ ", "#", "A:", "document\n",
    "text_", "1-999,", "<AGAINST>1</AGAINST>",
)  # fmt: skip
_BEGINNINGS = ("", "<", "<query", "<query ", "Query", "Query 1", '["', '{"', "<AGAINST>", "i'm ")


def test_long_replies_are_parsed_in_linear_time() -> None:
    """Patterns that backtrack need minutes for some of these; linear ones need seconds for all."""
    began = time.process_time()
    for piece in _PIECES:
        parse_reply(piece * (60_000 // len(piece)) + "x", PLAIN)
    for beginning in _BEGINNINGS:
        for piece in (" ", "= ", "_", '"', "**", "1"):
            parse_reply(beginning + piece * (60_000 // len(piece)) + "x", PLAIN)
    assert time.process_time() - began < 60


def test_many_queries_in_one_reply() -> None:
    reply = "".join(f"<QUERY>query number {i}</QUERY>" for i in range(1000))
    parsed = parse_reply(reply, PLAIN)
    assert parsed.queries == [f"query number {i}" for i in range(200)]
    assert [reason for reason, _ in parsed.dropped] == ["after the first 200 of a reply"]
