"""The collections of the paper (BEIR, BRIGHT, MIRACL), in the layouts of their publishers.

All are in one folder, DATA:

    DATA/scifact/                   BEIR: corpus.jsonl, queries.jsonl, qrels/test.tsv
    DATA/bright/                    BRIGHT: documents/*.parquet, examples/*.parquet
    DATA/miracl/                    MIRACL: miracl-corpus-v1.0-ko/docs-0.jsonl.gz, …
                                    miracl-v1.0-ko/topics/…-dev.tsv, miracl-v1.0-ko/qrels/…-dev.tsv

Each file except Parquet may be gzipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strop.errors import BadInput
from strop.io.corpora import LocatedDocument, read_corpus_with_locations
from strop.io.datasets import read_dataset, read_qrels, read_queries
from strop.io.files import plain_or_gzip
from strop.types import Dataset

_BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
_NO_ID = "N/A"
"""BRIGHT's entry for a query that excludes no document."""


@dataclass(frozen=True)
class Collection:
    """One corpus with its test queries, by the name the tables use."""

    name: str
    family: Literal["beir", "bright", "miracl"]

    @property
    def part(self) -> str:
        """The publishers' name: for BRIGHT the subset, for MIRACL the language."""
        return self.name.removeprefix(f"{self.family}-").replace("-", "_")

    @property
    def task(self) -> str:
        """The wording of the embedder's instruction, a key of ``embed.TASKS``."""
        return "miracl" if self.family == "miracl" else self.name

    @property
    def noun(self) -> str:
        """The word for generated queries in prompts."""
        return "counter-argument passage" if self.name == "arguana" else "query"

    @property
    def ignore_same_id(self) -> bool:
        """Whether a query is itself a document, which is no answer to it."""
        return self.name == "arguana"

    def _bright(self, root: Path, kind: str) -> list[Path]:
        return sorted((root / "bright" / kind).glob(f"{self.part}-*.parquet"))

    def _passages(self, root: Path) -> list[Path]:
        folder = root / "miracl" / f"miracl-corpus-v1.0-{self.part}"
        files = [*folder.glob("docs-*.jsonl"), *folder.glob("docs-*.jsonl.gz")]
        return sorted(files, key=lambda file: int(re.sub(r"\D", "", file.name.split(".")[0]) or 0))

    def _miracl(self, root: Path, kind: str) -> str:
        name = f"{kind}.miracl-v1.0-{self.part}-dev.tsv"
        return plain_or_gzip(root / "miracl" / f"miracl-v1.0-{self.part}" / kind, name)

    def missing(self, root: Path) -> str:
        """Return which files are missing, with a command to get them; "" if none is."""
        folder, part = root / self.family, self.part
        if self.family == "beir":
            folder = root / self.name
            files = ("corpus.jsonl", "queries.jsonl", os.path.join("qrels", "test.tsv"))
            lacking = [name for name in files if not os.path.exists(plain_or_gzip(folder, name))]
            command = f"put {', '.join(lacking)} of {_BEIR}{self.name}.zip into {folder}"
            return f"dataset {self.name}: {command}" if lacking else ""
        if self.family == "bright":
            repository = "xlangai/BRIGHT"
            kinds = [kind for kind in ("documents", "examples") if not self._bright(root, kind)]
            lacking = [f"{kind}/{part}-*.parquet" for kind in kinds]
        elif not self._passages(root):
            repository = "miracl/miracl-corpus"
            lacking = [f"miracl-corpus-v1.0-{part}/docs-*.jsonl.gz"]
        else:
            kinds = [k for k in ("topics", "qrels") if not os.path.exists(self._miracl(root, k))]
            repository = "miracl/miracl"
            lacking = [f"miracl-v1.0-{part}/{kind}/*-dev.tsv" for kind in kinds]
        includes = " ".join(f"--include '{file}'" for file in lacking)
        command = f"hf download {repository} --repo-type dataset {includes} --local-dir {folder}"
        return f"dataset {self.name}: {command}" if lacking else ""

    def documents(self, root: Path) -> Iterator[LocatedDocument]:
        """Yield the documents with their locations."""
        if self.family == "beir":
            yield from read_corpus_with_locations(root / self.name)
        elif self.family == "bright":
            for file in self._bright(root, "documents"):
                yield from read_corpus_with_locations(file, id_field="id", text_field="content")
        else:
            for file in self._passages(root):
                yield from read_corpus_with_locations(file, id_field="docid")

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
        """Read BRIGHT's examples: each is a query with the documents that answer it."""
        queries, qrels, excluded = {}, {}, {}
        for file in self._bright(root, "examples"):
            for example, where in read_corpus_with_locations(
                file, id_field="id", text_field="query"
            ):
                if "gold_ids" not in example.metadata:
                    raise BadInput(f"{where}: no column 'gold_ids'; is it BRIGHT's?")
                queries[example.id] = example.text
                qrels[example.id] = dict.fromkeys(map(str, example.metadata["gold_ids"]), 1)
                out = example.metadata.get("excluded_ids") or ()
                excluded[example.id] = [str(id_) for id_ in out if id_ != _NO_ID]
        return Dataset(self.name, queries, qrels, excluded)

    def spare_queries(self, root: Path) -> list[str]:
        """Return queries without test judgements, to be shown as examples; often there are none."""
        if self.family != "beir":
            return []
        queries = read_queries(plain_or_gzip(root / self.name, "queries.jsonl"))
        tested = self.dataset(root).queries
        return [text for id_, text in queries.items() if id_ not in tested]


def collection(name: str) -> Collection:
    """Return a collection by the name the tables use."""
    for family in ("bright", "miracl"):
        if name.startswith(f"{family}-"):
            return Collection(name, family)
    return Collection(name, "beir")
