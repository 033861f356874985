"""Metadata filters: matching, conditions of the command line, refused filters."""

from __future__ import annotations

import shlex
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from strop.errors import BadInput
from strop.filters import matches, read_condition, read_filter

PAPER = {
    "year": 2021,
    "lang": "en",
    "tags": ["a", "b", 3],
    "draft": False,
    "score": 0.5,
    "published": "2021-03-04",
    "seen": "2021-03-04T10:00:00.250+02:00",
    "venue": None,
    "author": {"name": "Ng", "papers": [{"n": 1}, {"n": 5}]},
    "a.b": 7,
}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, True),
        ({"year": 2021}, True),
        ({"year": 2021.0}, True),
        ({"year": "2021"}, False),
        ({"year": True}, False),
        ({"draft": False}, True),
        ({"draft": 0}, False),
        ({"year": {"$gt": 2020, "$lt": 2022}}, True),
        ({"year": {"$gt": 2021}}, False),
        ({"year": {"$gte": 2021}}, True),
        ({"year": {"$lte": 2020.5}}, False),
        ({"year": {"$gt": "1999"}}, False),
        ({"lang": {"$ne": "de"}}, True),
        ({"lang": {"$ne": "en"}}, False),
        ({"missing": {"$ne": "en"}}, True),
        ({"lang": {"$in": ["de", "en"]}}, True),
        ({"lang": {"$in": []}}, False),
        ({"lang": {"$nin": ["de"]}}, True),
        ({"missing": {"$nin": ["de"]}}, True),
        ({"lang": {"$gt": "eM"}}, True),
        ({"tags": "a"}, True),
        ({"tags": 3}, True),
        ({"tags": {"$ne": "a"}}, False),
        ({"tags": {"$in": ["z", "b"]}}, True),
        ({"tags": {"$gt": 2}}, True),
        ({"tags": {"$gt": 3}}, False),
        ({"venue": None}, True),
        ({"missing": None}, True),
        ({"lang": None}, False),
        ({"venue": {"$exists": True}}, True),
        ({"missing": {"$exists": True}}, False),
        ({"missing": {"$exists": False}}, True),
        ({"author.name": "Ng"}, True),
        ({"author.papers.n": {"$gte": 5}}, True),
        ({"author": {"$exists": True}}, True),
        ({"a.b": 7}, True),
        ({"published": {"$gte": "2021-03-04"}}, True),
        ({"published": {"$lt": date(2021, 3, 5)}}, True),
        ({"published": {"$lt": "2021-03-03T23:00:00-02:00"}}, True),
        ({"published": date(2021, 3, 4)}, True),
        ({"published": "2021-03-04T00:00:00"}, False),
        ({"seen": {"$gt": "2021-03-04T08:00:00.249Z"}}, True),
        ({"seen": {"$gt": "2021-03-04T08:00:00.250Z"}}, False),
        ({"seen": datetime(2021, 3, 4, 8, 0, 0, 250_000)}, True),
        ({"seen": {"$gte": datetime(2021, 3, 4, 10, tzinfo=timezone(timedelta(hours=2)))}}, True),
        ({"lang": {"$gt": "2021-03-04"}}, False),  # a date compares with dates only
        ({"$and": [{"year": 2021}, {"lang": "en"}]}, True),
        ({"$or": [{"year": 1}, {"lang": "en"}]}, True),
        ({"$or": [{"year": 1}, {"lang": "de"}]}, False),
        ({"$not": {"year": 2021}}, False),
        ({"$not": {"year": 1, "lang": "en"}}, True),
        ({"year": {"$not": {"$gt": 2021}}}, True),
        ({"year": 2021, "lang": "de"}, False),
        ({"$id": "x1"}, True),
        ({"$id": {"$in": ["x2", "x1"]}}, True),
        ({"$id": {"$nin": ["x1"]}}, False),
        ({"year": {"$lt": 10**400}}, True),
    ],
)
def test_filter_matches(where: dict[str, Any], expected: bool) -> None:
    assert matches(read_filter(where), "x1", PAPER) is expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([], "a filter is a mapping"),
        ({"year": {"$near": 1}}, r"'year': '\$near' is not one of \$eq"),
        ({"year": {"from": 1}}, "'year.name'"),
        ({"year": {}}, "'year' has no condition"),
        ({"year": [1]}, r"'year': compare with a text.*use \$in"),
        ({"year": float("nan")}, "'year': nothing compares with NaN"),
        ({"year": {"$in": "abc"}}, r"'year': \$in takes a list"),
        ({"year": {"$exists": 1}}, r"'year': \$exists takes true or false"),
        ({"year": {"$gt": None}}, r"'year': \$gt takes a number"),
        ({"$or": []}, r"\$or takes a list of filters"),
        ({"$xor": []}, r"'\$xor' is not a field"),
        ({"$id": 3}, "ids are text"),
        ({"$id": {"$gt": "a"}}, r"\$id takes \$eq"),
    ],
)
def test_a_bad_filter_is_refused_with_its_field(where: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_filter(where)


def test_a_deeply_nested_filter_is_refused() -> None:
    where: dict[str, Any] = {"year": 1}
    for _ in range(100):
        where = {"$not": where}
    with pytest.raises(BadInput, match="levels"):
        read_filter(where)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("year>=2020", {"year": {"$gte": 2020}}),
        (" lang = en ", {"lang": {"$eq": "en"}}),
        ("lang!=en", {"lang": {"$ne": "en"}}),
        ('code="007"', {"code": {"$eq": "007"}}),
        ("draft=false", {"draft": {"$eq": False}}),
        ("day<2020-01-31", {"day": {"$lt": "2020-01-31"}}),
        ("name=", {"name": {"$eq": ""}}),
        ("name=[x]", {"name": {"$eq": "[x]"}}),
        ('name="=x"', {"name": {"$eq": "=x"}}),
        ('{"a": {"$in": [1, 2]}}', {"a": {"$in": [1, 2]}}),
    ],
)
def test_conditions_of_the_command_line(text: str, where: dict[str, Any]) -> None:
    assert read_condition(text) == where


@pytest.mark.parametrize("text", ["year", "=3", "{year: 1}", "", "a==b", "a=>3", "a<>3", "a= =b"])
def test_a_bad_condition_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="filter"):
        read_condition(text)


@pytest.mark.parametrize("text", ["tag==b", "it's>=<b", 'tag==a "b"'])
def test_the_suggested_quoting_works_in_a_shell(text: str) -> None:
    with pytest.raises(BadInput, match="quote it: ") as error:
        read_condition(text)
    (argument,) = shlex.split(str(error.value).partition("quote it: ")[2])
    ((value,),) = (condition.values() for condition in read_condition(argument).values())
    assert text.endswith(value)
