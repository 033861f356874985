"""Stores of an index's words: strop's tables in SQLite compared with FTS5, tantivy and bm25s.

    pip install tantivy bm25s
    python benchmarks/words.py DATA [--sizes 10000,100000] [--engines ours,fts5,tantivy,bm25s]

DATA is a folder of collections in BEIR layout. Quality is nDCG@10 by words alone, with each
engine's own BM25 (``ours`` is strop). For the other figures, a document is seven sentences drawn at
random from the collections and one rare word; all engines get the same terms. Times are CPU seconds
of all threads: building, opening (with the first query), adding and replacing 1,000 random
documents, then SciFact's queries for the top 200 (median and 99th percentile), and one query of
four frequent words. ``bm25s`` cannot be updated: an update is a new build. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from common import seconds

from strop.io.corpora import read_corpus
from strop.io.datasets import read_dataset
from strop.io.sentences import split_sentences
from strop.io.tokenizer import Tokenizer
from strop.search.words import WordScorer, largest_scores
from strop.storage.word_reader import load_source
from strop.storage.words import TEXT, WORD_TABLES, WordWriter
from strop.types import Document

COLLECTIONS = ("scifact", "nfcorpus", "medline", "time")
SENTENCES_FROM = ("scifact", "nfcorpus", "medline", "nq-utd", "lisa")
BATCH = 50_000
FREQUENT = ["study", "result", "use", "patient"]
Texts = Iterable[tuple[int, list[str]]]


class Engine(Protocol):
    def write(self, texts: Texts, replaced: Texts = ()) -> None: ...
    def open(self) -> None: ...
    def search(self, terms: Sequence[str], k: int) -> list[int]: ...


class Sqlite:
    schema: str

    def __init__(self, folder: Path) -> None:
        self._path = folder / "words.sqlite"
        with self.connect() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(self.schema)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)

    def write(self, texts: Texts, replaced: Texts = ()) -> None:
        connection = self.connect()
        connection.execute("BEGIN IMMEDIATE")
        self.insert(connection, texts, replaced)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def insert(self, connection: sqlite3.Connection, texts: Texts, replaced: Texts) -> None:
        raise NotImplementedError

    def open(self) -> None:
        self._connection = self.connect()


class Ours(Sqlite):
    schema = WORD_TABLES

    def insert(self, connection: sqlite3.Connection, texts: Texts, replaced: Texts) -> None:
        writer = WordWriter(connection)
        for number, terms in texts:
            writer.put(TEXT, number, terms)
        writer.flush()

    def open(self) -> None:
        super().open()
        self._scorer = WordScorer({TEXT: load_source(self._connection, TEXT)})

    def search(self, terms: Sequence[str], k: int) -> list[int]:
        scores = self._scorer.all(self._connection, terms)
        numbers: list[int] = largest_scores(scores, k).tolist()
        return numbers


class Fts5(Sqlite):
    """SQLite's FTS5, contentless: to delete a text, the old text is needed."""

    schema = "CREATE VIRTUAL TABLE f USING fts5(body, content='')"

    def insert(self, connection: sqlite3.Connection, texts: Texts, replaced: Texts) -> None:
        connection.executemany(
            "INSERT INTO f (f, rowid, body) VALUES ('delete', ?, ?)",
            ((number, _joined(terms)) for number, terms in replaced),
        )
        connection.executemany(
            "INSERT INTO f (rowid, body) VALUES (?, ?)",
            ((number, _joined(terms)) for number, terms in texts),
        )

    def search(self, terms: Sequence[str], k: int) -> list[int]:
        query = " OR ".join(f'"{term}"' for term in map(_plain, terms))
        rows = self._connection.execute(
            "SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT ?", (query, k)
        )
        return [number for (number,) in rows]


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
        hits = self._searcher.search(query.boolean_query(parts), k, count=False).hits
        return [self._searcher.doc(address)["number"][0] for _, address in hits]


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


def text_of(document: Document) -> str:
    return f"{document.title}\n{document.text}".strip()


def quality(path: Path, engine: Engine) -> float:
    """Return nDCG@10 in percent of an engine on a collection."""
    import ir_measures

    tokenizer, data = Tokenizer(), read_dataset(path)
    documents = list(read_corpus(path))
    engine.write((i, tokenizer.document(text_of(one))) for i, one in enumerate(documents))
    engine.open()
    run = {
        id_: {
            documents[number].id: -float(rank)
            for rank, number in enumerate(engine.search(tokenizer.query(text), 10))
        }
        for id_, text in data.queries.items()
    }
    measure = ir_measures.parse_measure("nDCG@10")
    return 100 * float(ir_measures.calc_aggregate([measure], data.qrels, run)[measure])


def sentences(data: Path) -> list[list[str]]:
    tokenizer = Tokenizer()
    tokenized = (
        tokenizer.document(sentence)
        for name in SENTENCES_FROM
        for document in read_corpus(data / name)
        for sentence in split_sentences(text_of(document))
    )
    return [terms for terms in tokenized if 3 < len(terms) < 60]


def draw(
    pool: list[list[str]], numbers: Iterable[int], seed: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield documents of seven sentences and one rare word; a seed always gives the same ones."""
    for number in numbers:
        rng = np.random.default_rng((seed, number))
        terms = [f"x{rng.integers(10**7)}"]
        for i in rng.integers(0, len(pool), 7).tolist():
            terms += pool[i]
        yield number, terms


def measure(
    name: str, size: int, pool: list[list[str]], queries: list[list[str]], folder: Path
) -> dict[str, Any]:
    """Return CPU seconds and bytes of an engine with ``size`` documents."""
    engine: Engine = ENGINES[name](folder)

    def cpu(step: Callable[..., object], *arguments: Any) -> float:
        return seconds(partial(step, *arguments), time.process_time)

    batch = size if name == "bm25s" else BATCH
    batches = (range(start, min(size, start + batch)) for start in range(0, size, batch))
    build = sum(cpu(engine.write, list(draw(pool, numbers, 0))) for numbers in batches)
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    opening = cpu(engine.open) + cpu(engine.search, queries[0], 200)
    numbers = sorted(np.random.default_rng(1).choice(size, 1000, replace=False).tolist())
    add = update = build
    if name != "bm25s":
        add = cpu(engine.write, list(draw(pool, range(size, size + 1000), 0)))
        old, new = list(draw(pool, numbers, 0)), list(draw(pool, numbers, 1))
        update = cpu(engine.write, new, old)
        engine.open()
    engine.search(queries[0], 200)
    *times, frequent = [1000 * cpu(engine.search, query, 200) for query in [*queries, FREQUENT]]
    return {
        "engine": name, "documents": size, "build": build, "open_ms": 1000 * opening,
        "add_1000": add, "update_1000": update, "p50_ms": float(np.median(times)),
        "p99_ms": float(np.percentile(times, 99)), "frequent_ms": frequent,
        "disk_mb": disk / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--sizes", default="10000,100000", help="numbers of documents")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--skip-quality", action="store_true", help="measure no nDCG@10")
    args = parser.parse_args()
    names = args.engines.split(",")
    report: dict[str, Any] = {"quality": {}, "sizes": []}
    for name in [] if args.skip_quality else names:
        for collection in COLLECTIONS:
            with tempfile.TemporaryDirectory() as folder:
                value = quality(args.data / collection, ENGINES[name](Path(folder)))
            report["quality"].setdefault(name, {})[collection] = round(value, 2)
        print(name, report["quality"][name], flush=True)
    pool, tokenizer = sentences(args.data), Tokenizer()
    texts = list(read_dataset(args.data / "scifact").queries.values())[:200]
    queries = [tokenizer.query(text) for text in texts]
    for size in map(int, args.sizes.split(",")):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                row = measure(name, size, pool, queries, Path(folder))
            report["sizes"].append(row)
            rounded = {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}
            print(rounded, flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
