"""Reads queries, relevance judgements and lists of generated queries; writes TREC runs."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from strop.errors import BadInput
from strop.io.files import (
    PathLike,
    atomic_write,
    checked_id,
    checked_string,
    field_name,
    json_object,
    json_records,
    nonblank_lines,
    plain_or_gzip,
    short,
    suffix,
)
from strop.types import Dataset

_FORMAT_OF = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".tsv": "tsv"}
_log = logging.getLogger(__name__)


def read_queries(path: PathLike) -> dict[str, str]:
    """Read queries by id, in the file's order, from JSON lines or ``id<TAB>text`` lines.

    JSON lines have ``_id`` or ``id``, and ``text`` or ``query``. The suffix decides the
    format; without a suffix the first character does. A blank query is an error.
    """
    format = _FORMAT_OF.get(suffix(os.fspath(path)))
    queries: dict[str, str] = {}
    places: dict[str, str] = {}
    for where, line in nonblank_lines(path):
        format = format or ("jsonl" if line.lstrip().startswith("{") else "tsv")
        if format == "jsonl":
            record = json_object(line, where)
            id = checked_id(record[field_name(record, where, ("_id", "id"))], where)
            value = record[field_name(record, where, ("text", "query"))]
            text = checked_string(value, "query", where, "write its words")
        elif "\t" not in line:
            raise BadInput(f"{where}: no tab between id and text in {short(line)}; insert one")
        else:
            cells = line.split("\t", 1)
            id, text = checked_id(cells[0].strip(), where), cells[1].strip()
        if not text.strip():
            raise BadInput(f"{where}: query {short(id)} has no text; write it or remove the line")
        if id in queries:
            raise BadInput(f"{where}: query id {short(id)} is taken by {places[id]}; rename one")
        queries[id], places[id] = text, where
    return queries


def read_qrels(path: PathLike) -> dict[str, dict[str, int]]:
    """Read judgements as ``qrels[query id][document id] = grade``.

    Either BEIR's three columns (query, document, grade; the header is optional) or TREC's four
    (query, iteration, document, grade). A pair judged twice must have the same grade.
    """
    qrels: dict[str, dict[str, int]] = {}
    columns = 0
    for where, line in nonblank_lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 3:  # BEIR separates columns by tabs only: its ids may contain spaces
            cells = line.split()
        is_first, columns = not columns, columns or len(cells)
        if is_first and columns == 3 and cells[2].lower() == "score":
            continue
        if len(cells) != columns or columns not in (3, 4):
            problem = f"{len(cells)} columns in {short(line)}"
            raise BadInput(f"{where}: {problem}; use BEIR's 3 or TREC's 4 columns on every line")
        query, document = checked_id(cells[0], where), checked_id(cells[-2], where)
        try:
            grade = int(cells[-1])
        except ValueError:
            raise BadInput(f"{where}: {short(cells[-1])} is no grade; use whole numbers") from None
        if (earlier_grade := qrels.setdefault(query, {}).setdefault(document, grade)) != grade:
            pair = f"query {short(query)} and document {short(document)}"
            grades = f"grade {grade}, but {earlier_grade} before"
            raise BadInput(f"{where}: {pair} have {grades}; keep one")
    return qrels


def read_dataset(folder: PathLike, split: str = "test") -> Dataset:
    """Read a BEIR folder's judged queries, in the order of ``queries.jsonl``, and their qrels.

    A judged query that is not in ``queries.jsonl`` cannot be searched: its judgements are left
    out, with a logged warning, and measures are means over the others. If all are missing, the
    files do not belong together, which is an error.
    """
    if not os.path.isdir(folder):
        raise BadInput(
            f"{os.fspath(folder)}: no such folder; a dataset has queries.jsonl and qrels/"
        )
    qrels_path = plain_or_gzip(folder, os.path.join("qrels", f"{split}.tsv"))
    if not os.path.exists(qrels_path):
        splits = sorted({path.name.split(".tsv")[0] for path in Path(folder).glob("qrels/*.tsv*")})
        raise BadInput(f"{qrels_path}: no such file; splits here: {', '.join(splits) or 'none'}")
    judged = read_qrels(qrels_path)
    queries_path = plain_or_gzip(folder, "queries.jsonl")
    queries = {id: text for id, text in read_queries(queries_path).items() if id in judged}
    missing = [id for id in judged if id not in queries]
    if not queries:
        problem = f"none of its {len(judged)} queries ({short(missing[:3])}) is in {queries_path}"
        raise BadInput(f"{qrels_path}: {problem}; take both from the same collection")
    if missing:
        problem = "%s: %d of %d queries are not in %s and left out, first %r"
        _log.warning(problem, qrels_path, len(missing), len(judged), queries_path, missing[0])
    return Dataset(Path(folder).resolve().name, queries, {id: judged[id] for id in queries})


def read_query_lists(path: PathLike) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (place, document id, queries) from JSON lines ``{"id": …, "queries": […]}``."""
    for where, record in json_records(path):
        id = checked_id(record[field_name(record, where, ("_id", "id"))], where)
        values = record[field_name(record, where, ("queries",))]
        if not isinstance(values, list):
            raise BadInput(f'{where}: queries is {short(values)}, not a list; write ["…", "…"]')
        queries = [
            checked_string(value, "a query", where, "write its words").strip() for value in values
        ]
        if not all(queries):
            number = queries.index("") + 1
            raise BadInput(f"{where}: query {number} of {short(id)} is blank; remove it")
        yield where, id, queries


def write_run(path: PathLike, run: Mapping[str, Iterable[tuple[str, float]]], tag: str) -> None:
    """Write (document id, score) pairs, best first, as a TREC run, with every digit.

    The file is written completely or not at all. A query without documents has no line in it.
    """
    name = os.fspath(path)
    _check_word(tag, "tag", name)
    with atomic_write(path) as file:
        for query, ranked in run.items():
            _check_word(query, "query id", name)
            seen = set()
            for rank, (document, score) in enumerate(ranked, 1):
                _check_word(document, "document id", name)
                number = float(score)
                if math.isnan(number):  # it cannot be ranked
                    raise BadInput(f"{name}: the score of {short(document)} is not a number (nan)")
                if document in seen:
                    problem = f"{short(document)} twice for query {short(query)}"
                    raise BadInput(f"{name}: {problem}; keep one")
                seen.add(document)
                file.write(f"{query} Q0 {document} {rank} {number!r} {tag}\n")


def _check_word(word: str, what: str, path: PathLike) -> str:
    # A byte order mark is invisible, and readers drop it at the start of a file.
    if word.split() != [word] or "\ufeff" in word:
        problem = f"{what} {short(word)} is empty or holds white space"
        raise BadInput(f"{os.fspath(path)}: {problem}, which TREC files cannot hold; rename it")
    return checked_string(word, what, os.fspath(path), "")
