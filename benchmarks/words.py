"""Where the words of an index are kept: our tables in SQLite, FTS5, tantivy and bm25s.

    pip install tantivy bm25s
    python benchmarks/words.py DATA [--sizes 10000,100000] [--engines ours,fts5,tantivy,bm25s]

DATA is a folder of collections in BEIR's layout. Quality is nDCG@10 by words alone, with each
engine's own BM25. For the rest, documents are sentences of the collections drawn at random, and
one word that few others have; all engines get the same terms. Times are processor seconds of all
threads: building, opening (and the first query), replacing 1,000 documents at random, then
queries of SciFact for the best 200: median and 99th percentile, and one of four words that most
documents have. ``bm25s`` cannot be changed: an update is a new build. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from strop.io.sentences import split_sentences
from strop.io.tokenizer import Tokenizer
from strop.search.words import WordScorer, largest_scores
from strop.storage.word_reader import load_source
from strop.storage.words import TEXT, WORD_TABLES, WordWriter

COLLECTIONS = ("scifact", "nfcorpus", "medline", "time")
DRAWN_FROM = ("scifact", "nfcorpus", "medline", "nq-utd", "lisa")
AT_A_TIME = 50_000
FREQUENT = ["study", "result", "use", "patient"]
Texts = Iterable[tuple[int, list[str]]]


class Engine(Protocol):
    def write(self, texts: Texts, replaced: Texts = ()) -> None: ...
    def open(self) -> None: ...
    def search(self, terms: Sequence[str], k: int) -> list[int]: ...


class Ours:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "words.sqlite"
        with self._connect() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(WORD_TABLES)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)

    def write(self, texts: Texts, replaced: Texts = ()) -> None:
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        writer = WordWriter(connection)
        for number, terms in texts:
            writer.put(TEXT, number, terms)
        writer.flush()
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def open(self) -> None:
        self._connection = self._connect()
        source = load_source(self._connection, TEXT)
        self._scorer = WordScorer({TEXT: source})

    def search(self, terms: Sequence[str], k: int) -> list[int]:
        scores = self._scorer.all(self._connection, terms)
        numbers: list[int] = largest_scores(scores, k).tolist()
        return numbers


class Fts5:
    """Contentless; deleting needs the old text. Without positions it does not know counts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "fts.sqlite"
        connection = self._connect()
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE VIRTUAL TABLE f USING fts5(body, content='')")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)

    def write(self, texts: Texts, replaced: Texts = ()) -> None:
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO f (f, rowid, body) VALUES ('delete', ?, ?)",
            ((number, _joined(terms)) for number, terms in replaced),
        )
        connection.executemany(
            "INSERT INTO f (rowid, body) VALUES (?, ?)",
            ((number, _joined(terms)) for number, terms in texts),
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def open(self) -> None:
        self._connection = self._connect()

    def search(self, terms: Sequence[str], k: int) -> list[int]:
        query = " OR ".join(f'"{term}"' for term in map(_plain, terms))
        found = self._connection.execute(
            "SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT ?", (query, k)
        )
        return [number for (number,) in found]


class Tantivy:
    def __init__(self, folder: Path) -> None:
        import tantivy

        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("number", stored=True, indexed=True, fast=True)
        builder.add_text_field("body", tokenizer_name="whitespace", index_option="freq")
        self._schema, self._folder, self._tantivy = builder.build(), folder / "tantivy", tantivy
        self._folder.mkdir()
        self._index = tantivy.Index(self._schema, path=str(self._folder))

    def write(self, texts: Texts, replaced: Texts = ()) -> None:
        writer = self._index.writer(256_000_000, 1)
        for number, _ in replaced:
            writer.delete_documents_by_term("number", number)
        for number, terms in texts:
            writer.add_document(self._tantivy.Document(number=number, body=_joined(terms)))
        writer.commit()
        writer.wait_merging_threads()

    def open(self) -> None:
        self._index = self._tantivy.Index.open(str(self._folder))
        self._searcher = self._index.searcher()

    def search(self, terms: Sequence[str], k: int) -> list[int]:
        kinds, query = self._tantivy.Occur, self._tantivy.Query
        parts = [
            (kinds.Should, query.term_query(self._schema, "body", _plain(term), "freq"))
            for term in terms
        ]
        found = self._searcher.search(query.boolean_query(parts), k, count=False).hits
        return [self._searcher.doc(address)["number"][0] for _, address in found]


class Bm25s:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "bm25s"
        self._texts: dict[int, list[str]] = {}

    def write(self, texts: Texts, replaced: Texts = ()) -> None:
        import bm25s

        self._texts |= dict(texts)
        model = bm25s.BM25()
        model.index(list(self._texts.values()), show_progress=False)
        model.save(self._folder)

    def open(self) -> None:
        import bm25s

        self._model = bm25s.BM25.load(self._folder, mmap=True)

    def search(self, terms: Sequence[str], k: int) -> list[int]:
        scores = self._model.get_scores(list(terms))
        best = np.argpartition(-scores, min(k, len(scores) - 1))[:k]
        numbers: list[int] = best[np.argsort(-scores[best], kind="stable")].tolist()
        return numbers


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "ours": Ours,
    "fts5": Fts5,
    "tantivy": Tantivy,
    "bm25s": Bm25s,
}


def _plain(term: str) -> str:
    """Return a term as letters and digits only, so that no engine splits it."""
    return re.sub(r"\W|_", lambda sign: f"z{ord(sign.group()):x}z", term)


def _joined(terms: Sequence[str]) -> str:
    return " ".join(map(_plain, terms))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _text(record: dict[str, Any]) -> str:
    return f"{record.get('title', '')}\n{record['text']}".strip()


def quality(data: Path, name: str, engine: Engine) -> float:
    """Return nDCG@10 in percent of an engine on a collection."""
    tokenizer = Tokenizer()
    documents = {one["_id"]: _text(one) for one in _records(data / name / "corpus.jsonl")}
    queries = {one["_id"]: one["text"] for one in _records(data / name / "queries.jsonl")}
    judged: dict[str, dict[str, int]] = {}
    for line in (data / name / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        judged.setdefault(query, {})[document] = int(grade)
    ids = list(documents)
    engine.write((at, tokenizer.document(documents[id_])) for at, id_ in enumerate(ids))
    engine.open()
    values = []
    for query, grades in judged.items():
        ranked = [ids[at] for at in engine.search(tokenizer.query(queries[query]), 10)]
        best = sorted(grades.values(), reverse=True)[:10]
        if any(best):
            values.append(_gain([grades.get(id_, 0) for id_ in ranked]) / _gain(best))
    return 100 * float(np.mean(values))


def _gain(grades: Sequence[int]) -> float:
    return float(sum(grade / np.log2(at + 2) for at, grade in enumerate(grades)))


def sentences(data: Path) -> list[list[str]]:
    tokenizer = Tokenizer()
    found = (
        tokenizer.document(sentence)
        for name in DRAWN_FROM
        for record in _records(data / name / "corpus.jsonl")
        for sentence in split_sentences(_text(record))
    )
    return [terms for terms in found if 3 < len(terms) < 60]


def drawn(
    pool: list[list[str]], numbers: Iterable[int], seed: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield documents of seven sentences and a word of their own, the same for the same seed."""
    for number in numbers:
        rng = np.random.default_rng((seed, number))
        terms = [f"x{rng.integers(10**7)}"]
        for at in rng.integers(0, len(pool), 7).tolist():
            terms += pool[at]
        yield number, terms


def measured(
    name: str, size: int, pool: list[list[str]], queries: list[list[str]], folder: Path
) -> dict[str, Any]:
    engine: Engine = ENGINES[name](folder)
    rng, clock = np.random.default_rng(1), time.process_time
    together = size if name == "bm25s" else AT_A_TIME
    build = 0.0
    for start in range(0, size, together):
        texts = list(drawn(pool, range(start, min(size, start + together)), 0))
        began = clock()
        engine.write(texts)
        build += clock() - began
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    began = clock()
    engine.open()
    engine.search(queries[0], 200)
    opening = clock() - began
    numbers = sorted(rng.choice(size, 1000, replace=False).tolist())
    old, new = list(drawn(pool, numbers, 0)), list(drawn(pool, numbers, 1))
    more = list(drawn(pool, range(size, size + 1000), 0))
    adding = update = build
    if name != "bm25s":
        began = clock()
        engine.write(more)
        adding = clock() - began
        began = clock()
        engine.write(new, old)
        update = clock() - began
        engine.open()
    engine.search(queries[0], 200)
    times = []
    for query in [*queries, FREQUENT]:
        began = clock()
        engine.search(query, 200)
        times.append(1000 * (clock() - began))
    return {
        "engine": name, "documents": size, "build": build, "open_ms": 1000 * opening,
        "add_1000": adding, "update_1000": update, "p50_ms": float(np.median(times[:-1])),
        "p99_ms": float(np.percentile(times[:-1], 99)), "frequent_ms": times[-1],
        "disk_mb": disk / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--skip-quality", action="store_true")
    given = parser.parse_args()
    names = given.engines.split(",")
    results: dict[str, Any] = {"quality": {}, "sizes": []}
    for name in [] if given.skip_quality else names:
        for collection in COLLECTIONS:
            folder = Path(tempfile.mkdtemp())
            value = quality(given.data, collection, ENGINES[name](folder))
            results["quality"].setdefault(name, {})[collection] = round(value, 2)
            shutil.rmtree(folder)
        print(name, results["quality"][name], flush=True)
    pool, tokenizer = sentences(given.data), Tokenizer()
    queries = [
        tokenizer.query(one["text"]) for one in _records(given.data / "scifact" / "queries.jsonl")
    ][:200]
    for size in map(int, given.sizes.split(",")):
        for name in names:
            folder = Path(tempfile.mkdtemp())
            row = measured(name, size, pool, queries, folder)
            results["sizes"].append(row)
            shutil.rmtree(folder)
            print(
                {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()},
                flush=True,
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
