"""The collections of the paper (BEIR, BRIGHT, MIRACL), in the layouts of their publishers.

All lie under one folder, DATA:

    DATA/scifact/                   BEIR: corpus.jsonl, queries.jsonl, qrels/test.tsv
    DATA/bright/                    BRIGHT: documents/*.parquet, examples/*.parquet
    DATA/miracl/                    MIRACL: miracl-corpus-v1.0-ko/docs-0.jsonl.gz, …
                                    miracl-v1.0-ko/topics/…-dev.tsv, miracl-v1.0-ko/qrels/…-dev.tsv

Each file may be gzipped, Parquet aside.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strop.errors import BadInput, MissingExtra, StropError
from strop.io.corpora import Sourced, read_corpus_with_places
from strop.io.datasets import read_dataset, read_qrels, read_queries
from strop.io.files import atomic_write, plain_or_gzip
from strop.types import Dataset

_NO_ID = "N/A"
"""What BRIGHT writes where a query excludes no document."""


@dataclass(frozen=True)
class Collection:
    """One corpus with its test queries, by the name the tables use."""

    name: str
    family: Literal["beir", "bright", "miracl"]

    @property
    def part(self) -> str:
        """The publishers' own name: of BRIGHT the subset, of MIRACL the language."""
        return self.name.removeprefix(f"{self.family}-").replace("-", "_")

    @property
    def task(self) -> str:
        """The wording of the embedder's instruction, a key of ``embed.TASKS``."""
        return "miracl" if self.family == "miracl" else self.name

    @property
    def noun(self) -> str:
        """What generated queries are called in prompts."""
        return "counter-argument passage" if self.name == "arguana" else "query"

    @property
    def ignore_same_id(self) -> bool:
        """Whether a query is itself a document, which is no answer to it."""
        return self.name == "arguana"

    @property
    def hub(self) -> str:
        """Its repository on the model hub."""
        if self.family == "beir":
            return f"mteb/{self.name}"
        return "xlangai/BRIGHT" if self.family == "bright" else "mteb/MIRACLRetrieval"

    # -- local folders --------------------------------------------------------------------

    def _bright(self, root: Path, kind: str) -> list[Path]:
        return sorted((root / "bright" / kind).glob(f"{self.part}-*.parquet"))

    def _passages(self, root: Path) -> list[Path]:
        folder = root / "miracl" / f"miracl-corpus-v1.0-{self.part}"
        files = [*folder.glob("docs-*.jsonl"), *folder.glob("docs-*.jsonl.gz")]
        return sorted(files, key=lambda file: int(re.sub(r"\D", "", file.name.split(".")[0]) or 0))

    def _miracl(self, root: Path, kind: str) -> str:
        name = f"{kind}.miracl-v1.0-{self.part}-dev.tsv"
        return plain_or_gzip(root / "miracl" / f"miracl-v1.0-{self.part}" / kind, name)

    def missing(self, root: Path) -> str | None:
        """Return what has to be put where, None if all is there."""
        if self.family == "beir":
            folder = root / self.name
            files = ("corpus.jsonl", "queries.jsonl", os.path.join("qrels", "test.tsv"))
            lacking = [name for name in files if not os.path.exists(plain_or_gzip(folder, name))]
            if lacking:
                return f"put {', '.join(lacking)} (BEIR's layout) into {folder}"
        elif self.family == "bright":
            lacking = [kind for kind in ("documents", "examples") if not self._bright(root, kind)]
            if lacking:
                files_ = " and ".join(f"{kind}/{self.part}-*.parquet" for kind in lacking)
                return f"put {files_} of {self.hub} into {root / 'bright'}"
        else:
            if not self._passages(root):
                wanted = f"miracl-corpus-v1.0-{self.part}/docs-*.jsonl.gz of miracl/miracl-corpus"
                return f"put {wanted} into {root / 'miracl'}"
            for kind in ("topics", "qrels"):
                path = self._miracl(root, kind)
                if not os.path.exists(path):
                    return f"put {Path(path).name} of miracl/miracl at {path}"
        return None

    def documents(self, root: Path) -> Iterator[Sourced]:
        """Yield the documents with their places."""
        if self.family == "beir":
            yield from read_corpus_with_places(root / self.name)
        elif self.family == "bright":
            for file in self._bright(root, "documents"):
                yield from read_corpus_with_places(file, id_field="id", text_field="content")
        else:
            for file in self._passages(root):
                yield from read_corpus_with_places(file, id_field="docid")

    def dataset(self, root: Path) -> Dataset:
        """Return the test queries and their judgements."""
        if self.family == "beir":
            return read_dataset(root / self.name)
        if self.family == "bright":
            return self._examples(root)
        judged = read_qrels(self._miracl(root, "qrels"))
        topics = read_queries(self._miracl(root, "topics"))
        queries = {id_: text for id_, text in topics.items() if id_ in judged}
        if not queries:
            raise BadInput(f"{self._miracl(root, 'qrels')}: none of its queries is in the topics")
        return Dataset(self.name, queries, {id_: judged[id_] for id_ in queries})

    def _examples(self, root: Path) -> Dataset:
        queries, qrels, excluded = {}, {}, {}
        for file in self._bright(root, "examples"):
            for row in _parquet_rows(file):
                id_ = str(row["id"])
                queries[id_] = row["query"]
                qrels[id_] = dict.fromkeys(map(str, row["gold_ids"]), 1)
                excluded[id_] = [str(x) for x in row.get("excluded_ids") or () if x != _NO_ID]
        return Dataset(self.name, queries, qrels, excluded)

    def spare_queries(self, root: Path) -> list[str]:
        """Return queries that no test judgement uses, to be shown as examples; often none."""
        if self.family != "beir":
            return []
        queries = read_queries(plain_or_gzip(root / self.name, "queries.jsonl"))
        tested = self.dataset(root).queries
        return [text for id_, text in queries.items() if id_ not in tested]

    # -- the hub --------------------------------------------------------------------------

    def download(self, root: Path) -> None:
        """Copy it from the hub into the folder where ``missing`` wants it."""
        if self.family == "beir":
            folder = root / self.name
            _write_records(folder / "corpus.jsonl", _from_hub(self.hub, "corpus", "corpus"))
            _write_records(folder / "queries.jsonl", _from_hub(self.hub, "queries", "queries"))
            judged = _from_hub(self.hub, "default", "test")
            _write_qrels(folder / "qrels" / "test.tsv", judged, "{}\t{}\t{}\n")
        elif self.family == "bright":
            for kind in ("documents", "examples"):
                file = root / "bright" / kind / f"{self.part}-00000-of-00001.parquet"
                file.parent.mkdir(parents=True, exist_ok=True)
                hidden = file.with_name(f".{file.name}")
                _from_hub(self.hub, kind, self.part).to_parquet(hidden)
                os.replace(hidden, file)
        else:
            corpus = _from_hub(self.hub, f"{self.part}-corpus", "dev")
            file = root / "miracl" / f"miracl-corpus-v1.0-{self.part}" / "docs-0.jsonl.gz"
            _write_records(file, corpus, id_name="docid")
            topics = _from_hub(self.hub, f"{self.part}-queries", "dev")
            path = Path(self._miracl(root, "topics"))
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as out:
                for row in topics:
                    out.write(f"{_id(row)}\t{' '.join(row['text'].split())}\n")
            judged = _from_hub(self.hub, f"{self.part}-qrels", "dev")
            _write_qrels(Path(self._miracl(root, "qrels")), judged, "{}\tQ0\t{}\t{}\n")


def collection(name: str) -> Collection:
    """Return a collection by the name the tables use."""
    family = name.split("-")[0]
    if family == "bright":
        return Collection(name, "bright")
    return Collection(name, "miracl" if family == "miracl" else "beir")


def _parquet_rows(file: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("Reading Parquet", "parquet") from None
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{file}: cannot be read as Parquet: {error}; copy it again") from error
    for at, row in enumerate(rows, 1):
        for name in ("id", "query", "gold_ids"):
            if name not in row:
                raise BadInput(f"{file} row {at}: no column {name!r}; is it BRIGHT's?")
    return rows


def _from_hub(repository: str, config: str, split: str) -> Any:
    """Return one part of a dataset on the hub; a split of another name is taken if alone."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("Downloading collections", "mteb") from None
    try:
        splits = datasets.load_dataset(repository, config)
        return splits[split] if split in splits else next(iter(splits.values()))
    except Exception as error:  # the hub's client has many kinds of errors
        raise StropError(
            f"{repository} ({config}) could not be copied from the hub: {error}. Copy it by hand, "
            "or try again where there is a connection"
        ) from error


def _id(row: Mapping[str, Any]) -> str:
    return str(row["_id"] if "_id" in row else row["id"])


def _write_records(path: Path, rows: Any, id_name: str = "_id") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as out:
        for row in rows:
            record = {id_name: _id(row), "title": row.get("title") or "", "text": row["text"]}
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_qrels(path: Path, rows: Any, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as out:
        for row in rows:
            out.write(line.format(row["query-id"], row["corpus-id"], int(row["score"])))
