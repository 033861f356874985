"""Filters on metadata: ``{"year": {"$gte": 2020}, "lang": "en"}``; the same for every store.

A filter is parsed into a few kinds of node. Each store turns these into its own query; ``matches``
defines their meaning. The language is that of MongoDB, Chroma and Pinecone:

- ``{"field": value}`` or ``{"field": {"$eq": value}}``: equal. Several fields: all must match.
- ``$ne``, ``$in``, ``$nin``, ``$gt``, ``$gte``, ``$lt``, ``$lte``, ``$exists``.
- ``{"$and": […]}``, ``{"$or": […]}``, ``{"$not": {…}}``.
- ``$id`` as a field is the document's id.

Numbers compare with numbers, text with text. A date, or text in the form ``2020-01-31`` with or
without a time, is compared with dates in ranges; without a zone it is UTC. A list matches if one of
its values does. ``a.b`` is the field b inside a. ``$ne`` and ``$nin`` match documents without the
field too, and ``null`` matches a field that is null or missing.
"""

from __future__ import annotations

import json
import math
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, Literal

from strop.errors import BadInput

Kind = Literal["exists", "null", "bool", "number", "string", "instant"]
Value = bool | int | float | str | None
Fact = tuple[str, Kind, Value]
"""A field, the kind of one of its values, and the value."""


ID = "$id"
_MAX_DEPTH = 50
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,6})\d*)?\s?(Z|[+-]\d\d:?\d\d)?)?"
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
}  # fmt: skip
_RANGES = [f"${op}" for op in _COMPARE]
_TESTS = ["$eq", "$ne", "$in", "$nin", *_RANGES, "$exists"]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Test:
    """One of a field's values of this kind is ``in`` values, or compares with the only one."""

    field: str
    kind: Kind
    op: Literal["in", "gt", "gte", "lt", "lte"]
    values: tuple[Value, ...]

    def holds(self, value: Any) -> bool:
        """Return whether a value of this field and kind passes."""
        if self.op == "in":
            return value in self.values
        return bool(_COMPARE[self.op](value, self.values[0]))


@dataclass(frozen=True)
class Ids:
    """The document's id is one of these."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """``and``, ``or``: all parts match, or one does; ``not``: none of them does."""

    op: Literal["and", "or", "not"]
    parts: tuple[Filter, ...]


Filter = Test | Ids | Group


def read_filter(where: Any, depth: int = 0) -> Filter:
    """Read a filter; an error about a bad one names the field and the remedy."""
    if not isinstance(where, Mapping):
        raise BadInput(
            f"a filter is a mapping such as {{'year': {{'$gte': 2020}}}}, not {where!r:.80}"
        )
    if depth > _MAX_DEPTH:
        raise BadInput(f"the filter has more than {_MAX_DEPTH} levels: write it flatter")
    parts: list[Filter] = []
    for key, value in where.items():
        if key in ("$and", "$or"):
            if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence) or not value:
                raise BadInput(f"filter: {key} takes a list of filters, not {value!r:.80}")
            members = tuple(read_filter(member, depth + 1) for member in value)
            parts.append(Group("and" if key == "$and" else "or", members))
        elif key == "$not":
            parts.append(Group("not", (read_filter(value, depth + 1),)))
        elif not isinstance(key, str) or (key.startswith("$") and key != ID):
            raise BadInput(f"filter: {key!r:.80} is not a field, and not one of $and, $or, $not")
        else:
            parts.extend(_field(key, value))
    return parts[0] if len(parts) == 1 else Group("and", tuple(parts))


def _field(field: str, condition: Any) -> Iterator[Filter]:
    if not isinstance(condition, Mapping):
        yield _equal(field, (condition,))
        return
    if not condition:
        raise BadInput(f"filter: {field!r} has no condition: give a value or {{'$exists': true}}")
    for op, value in condition.items():
        if op not in _TESTS and op != "$not":
            raise BadInput(
                f"filter: {field!r}: {op!r:.80} is not one of {', '.join(_TESTS)}. A field inside"
                f" a field is written with a dot: '{field}.name'"
            )
        if op == "$not":
            yield Group("not", (Group("and", tuple(_field(field, value))),))
        elif op in ("$in", "$nin"):
            if isinstance(value, (str, Mapping)) or not isinstance(value, (Sequence, set)):
                raise BadInput(f"filter: {field!r}: {op} takes a list of values, not {value!r:.80}")
            equal = _equal(field, tuple(value))
            yield equal if op == "$in" else Group("not", (equal,))
        elif op == "$exists":
            if not isinstance(value, bool):
                raise BadInput(f"filter: {field!r}: $exists takes true or false, not {value!r:.80}")
            exists = Test(field, "exists", "in", (None,))
            yield exists if value else Group("not", (exists,))
        elif op in _RANGES:
            yield _range(field, op, value)
        else:
            equal = _equal(field, (value,))
            yield equal if op == "$eq" else Group("not", (equal,))


def _equal(field: str, values: tuple[Any, ...]) -> Filter:
    """Return a filter that matches if the field has one of these values."""
    if field == ID:
        if not all(isinstance(value, str) for value in values):
            raise BadInput(f"filter: {ID}: ids are text, not {values!r:.80}")
        return Ids(values)
    by_kind: dict[Kind, list[Value]] = {}
    for value in values:
        kind, plain = _operand(field, value)
        by_kind.setdefault(kind, []).append(plain)
    parts: list[Filter] = [Test(field, kind, "in", tuple(one)) for kind, one in by_kind.items()]
    if "null" in by_kind:
        parts.append(Group("not", (Test(field, "exists", "in", (None,)),)))
    return parts[0] if len(parts) == 1 else Group("or", tuple(parts))


def _range(field: str, op: str, value: Any) -> Filter:
    if field == ID:
        raise BadInput(f"filter: {ID} takes $eq, $ne, $in, $nin, not {op}")
    kind, plain = _operand(field, value)
    if kind == "string" and (instant := _instant(value)) is not None:
        kind, plain = "instant", instant
    if kind in ("null", "bool"):
        raise BadInput(f"filter: {field!r}: {op} takes a number, a text or a date, not {value!r}")
    return Test(field, kind, op[1:], (plain,))  # type: ignore[arg-type]


def _operand(field: str, value: Any) -> tuple[Kind, Value]:
    """Return the kind of a value that a filter compares with."""
    if isinstance(value, (date, datetime)):
        return "instant", _microseconds(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()  # a numpy number
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, float) and math.isnan(value):
            raise BadInput(f"filter: {field!r}: nothing compares with NaN")
        return _plain(value)
    raise BadInput(
        f"filter: {field!r}: compare with a text, a number, true, false, null or a date, not"
        f" {value!r:.80}; for several values use $in"
    )


def _plain(value: bool | int | float | str | None) -> tuple[Kind, Value]:
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, str):
        return "string", value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # every store can store the float
        try:
            return "number", float(value)
        except OverflowError:
            return "number", math.inf if value > 0 else -math.inf
    return "number", value


def _instant(text: str) -> int | None:
    """Return an ISO 8601 date or time as microseconds since 1970; None for other texts."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    day, time, fraction, zone = match.groups()
    time = f"{time or '00:00'}:00"[:8]
    zone = "+00:00" if zone in (None, "Z") else f"{zone[:3]}:{zone[-2:]}"
    try:
        seconds = datetime.fromisoformat(f"{day}T{time}{zone}")
    except ValueError:
        return None
    return _microseconds(seconds) + int((fraction or "").ljust(6, "0"))


def _microseconds(value: date) -> int:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    return (value - _EPOCH) // timedelta(microseconds=1)


def facts(metadata: Mapping[str, Any]) -> set[Fact]:
    """Return every value of a document's metadata that a filter can test."""
    values: set[Fact] = set()
    stack: list[tuple[str, Any]] = [(str(key), value) for key, value in metadata.items()]
    while stack:
        field, value = stack.pop()
        values.add((field, "exists", None))
        if isinstance(value, Mapping):
            stack += [(f"{field}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            stack += [(field, inner) for inner in value]
        else:
            values.add((field, *_plain(value)))
            if isinstance(value, str) and (instant := _instant(value)) is not None:
                values.add((field, "instant", instant))
    return values


def matches(filter_: Filter, id_: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether a document matches: the meaning of a filter; stores are tested against it."""
    return _matches(filter_, id_, facts(metadata))


def _matches(node: Filter, id_: str, document_facts: set[Fact]) -> bool:
    if isinstance(node, Ids):
        return id_ in node.ids
    if isinstance(node, Group):
        results = (_matches(part, id_, document_facts) for part in node.parts)
        return all(results) if node.op == "and" else any(results) is (node.op == "or")
    return any(
        node.holds(value)
        for field, kind, value in document_facts
        if field == node.field and kind == node.kind
    )


_NAMES: dict[Kind, str] = {
    "bool": "true or false", "number": "numbers", "string": "text", "instant": "dates",
}  # fmt: skip


def kind_names(kinds: Iterable[Kind]) -> str:
    """Return the names of kinds of values, for messages."""
    return " and ".join(_NAMES[kind] for kind in kinds if kind in _NAMES)


def fields_of(filter_: Filter) -> dict[str, set[Kind]]:
    """Return the fields that a filter tests, with the kinds of the values it compares."""
    if isinstance(filter_, Test):
        return {filter_.field: {filter_.kind}}
    fields: dict[str, set[Kind]] = {}
    for part in getattr(filter_, "parts", ()):
        for field, kinds in fields_of(part).items():
            fields.setdefault(field, set()).update(kinds)
    return fields


_SHORT = re.compile(r"\s*([^\s=!<>]+)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*")
_OPS = {"=": "$eq", "!=": "$ne", ">=": "$gte", "<=": "$lte", ">": "$gt", "<": "$lt"}


def read_condition(text: str) -> dict[str, Any]:
    """Read a filter of the command line: a JSON object, or ``year>=2020``, ``lang=en``.

    The value of the short form is a number, ``true``, ``false``, ``null``, or otherwise a text; in
    double quotes it is always a text.
    """
    if text.lstrip().startswith("{"):
        try:
            where: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"filter {text!r:.120} is not JSON: {error}") from None
        return where
    match = _SHORT.fullmatch(text)
    if match is None:
        raise BadInput(
            f"filter {text!r:.120}: write FIELD=VALUE, with one of {', '.join(_OPS)}, or JSON such"
            ' as \'{"year": {"$gte": 2020}}\''
        )
    field, op, value_text = match.groups()
    if value_text[:1] in tuple("=!<>"):  # topic==coffee would look for the text "=coffee"
        raise BadInput(
            f"filter {text!r:.120}: after {op} comes a value, not another operator. If the value"
            f" begins with {value_text[0]}, quote it:"
            f" {shlex.quote(f'{field}{op}{json.dumps(value_text)}')}"
        )
    try:
        value = json.loads(value_text)
    except (ValueError, RecursionError):
        value = value_text
    return {field: {_OPS[op]: value_text if isinstance(value, (list, dict)) else value}}
