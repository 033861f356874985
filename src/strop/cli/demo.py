"""``strop demo``: strop, plain search, BM25 and rank fusion on this Python's documentation."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.cli.messages import echo, progress_bars
from strop.cli.verbs import Answer, option, output_option, verb
from strop.common.text import human_bytes, shorten
from strop.errors import BadInput, MissingExtra
from strop.types import Dataset, Document

if TYPE_CHECKING:  # loaded when the demo runs, so that --help is quick
    from strop.evaluation.changes import Change
    from strop.evaluation.scoring import Report
    from strop.index import Index

_MEASURES = ("nDCG@10", "Success@1", "R@50")
_TOKENS = "3.7 million input tokens and 0.3 million output tokens"
"""Input and output of the model, by the estimate of ``strop queries --dry-run``."""
_METHODS = {  # the names that the demo gives them
    "plain": "trad",
    "BM25": "bm25",
    "rank fusion": "hybrid",
    "BM25 with the queries": "bm25:sets=simple+contrastive",
    "strop, sentences only": "sharp:sets=sentences",
    "strop": "sharp",
}


@verb(
    output_option("The index folder.", "path", Path("demo.index")),
    option("--embedder", "Embedder to use.", default="wordllama"),
)
def demo(path: Path, embedder: str) -> Answer:
    """Search the Python documentation, sharpened by generated queries.

    The corpus is the documentation of the everyday modules of this Python's standard library. The
    queries come with strop; no model is called. The questions were written by hand.
    """
    from strop.evaluation.changes import largest_changes
    from strop.evaluation.scoring import evaluate
    from strop.index import Index
    from strop.io import stdlib_docs

    with progress_bars() as progress:
        documents = stdlib_docs.read_stdlib(stdlib_docs.EVERYDAY)
        existing = (path / "catalog.sqlite").exists()
        with (Index.open if existing else Index.create)(path, embedder) as index:
            _refuse_other_documents(index)
            began = time.perf_counter()
            index.sharpen("sentences")
            index.add(documents, progress)
            index.keep_only(document.id for document in documents)
            written = read_written(documents)
            for name, lists in written.items():
                index.import_queries(lists, name, progress=progress)
            seconds = time.perf_counter() - began
            questions = read_questions(documents)
            methods = [replace(index.method(spec), name=name) for name, spec in _METHODS.items()]
            report = evaluate(index, questions, methods, measures=_MEASURES)
            gained, lost = largest_changes(index, questions, report, "strop", 2)
            size = index.info()["sizes"]["total"]
    changes = [*gained, *lost[:1]]
    counts = {name: sum(map(len, lists.values())) for name, lists in written.items()}
    value = {
        "python": platform.python_version(),
        "documents": len(documents),
        "documents_with_queries": len(written["simple"]),
        "queries_written": counts,
        "indexing_seconds": seconds,
        "bytes": size,
        **report.to_json(),
        "changes": [asdict(change) for change in changes],
    }
    return Answer(value, partial(_print_demo, value, report, changes, path))


def read_written(documents: Sequence[Document]) -> dict[str, dict[str, list[str]]]:
    """Return the generated queries of exactly these texts: {set: {id: queries}}.

    Some entries have another text in other versions of Python; these have no queries.
    """
    data = resources.files("strop.cli").joinpath("demo_queries.jsonl.gz").read_bytes()
    texts = {document.id: text_hash(document.text) for document in documents}
    written: dict[str, dict[str, list[str]]] = {"simple": {}, "contrastive": {}}
    for line in gzip.decompress(data).decode("utf-8").splitlines():
        entry = json.loads(line)
        if texts.get(entry["id"]) == entry["text"]:
            simple, contrastive = entry["simple"], [query for _, query in entry["contrastive"]]
            for name, queries in (("simple", simple), ("contrastive", contrastive)):
                if queries:
                    written[name][entry["id"]] = queries
    return written


def text_hash(text: str) -> str:
    """Return a hash that distinguishes a text from those of other versions of Python."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def read_questions(documents: Sequence[Document] | None = None) -> Dataset:
    """Return the questions that these documents answer; without documents, all of them.

    Each version of Python lacks the answers to a few.
    """
    ids = None if documents is None else {document.id for document in documents}
    queries, qrels = {}, {}
    text = resources.files("strop.cli").joinpath("demo_questions.jsonl").read_text("utf-8")
    for line in text.splitlines():
        entry = json.loads(line)
        if ids is None or not ids.isdisjoint(entry["answers"]):
            queries[entry["id"]] = entry["question"]
            qrels[entry["id"]] = dict.fromkeys(entry["answers"], 1)
    return Dataset("python docs", queries, qrels)


def _refuse_other_documents(index: Index) -> None:
    """Refuse an index with documents of the user: the demo removes all that are not its own."""
    kinds = ("module", "class", "function")
    for id_ in index.ids():
        if index.get(id_).metadata.get("kind") not in kinds:
            raise BadInput(
                f"{index.path} is not an index of the demo (it contains {id_!r}): name another"
                " folder with -o"
            )


def _command() -> str:
    """Return how this strop is called from here: by name, or by the path of its script."""
    script = sys.argv[0]
    if script == shutil.which("strop"):
        return "strop"
    return script if Path(script).name == "strop" else f"{sys.executable} -m strop"


def _print_demo(
    value: Mapping[str, Any], report: Report, changes: Sequence[Change], path: Path
) -> None:
    """Print what was measured and the commands to run next."""
    from strop.cli.tables import plain, print_report, standard_output

    out = standard_output()
    counts = value["queries_written"]
    out.print(
        f"\n{value['documents']:,} documents of the Python {value['python']} standard library."
        f" A language model generated {counts['simple']:,} simple and {counts['contrastive']:,}"
        f" contrastive queries for {value['documents_with_queries']:,} of them. It had not seen the"
        f" {report.queries} questions, which were written by hand.\n"
    )
    print_report(report)
    seconds, size = value["indexing_seconds"], human_bytes(value["bytes"])
    out.print(
        f"\nIndexed in {seconds:.0f} s, {size}. Generating the queries costs about {_TOKENS}, once."
    )
    out.print("\nTwo questions that gained, and the one that lost most:")
    for change in changes:
        answer = change.moves[0]
        cause = answer if change.after > change.before else change.moves[-1]
        before, after = (str(rank or "beyond 50") for rank in (answer.before, answer.after))
        overtaken = "" if cause is answer else f", overtaken by {cause.id}"
        out.print()
        out.print(plain(f"  {change.text}", "bold"))
        out.print(plain(f"  {answer.id}: rank {before} -> {after}{overtaken}, moved by"))
        for part in cause.why[:2]:
            out.print(plain(f"    {part.moved:+.3f}  {shorten(part.text, 84)}"))
    question = changes[0].text if changes else "copy a file"
    folder = shlex.quote(str(path))
    out.print("\nSearch it yourself, or compare the rankings in a browser:\n")
    echo(f"  {_command()} search {folder} {shlex.quote(question)} --explain")
    echo(f"  {_command()} serve {folder}\n")
    if not all(map(_installed, ("starlette", "uvicorn", "httptools", "mcp", "prometheus_client"))):
        echo(f"{MissingExtra('strop serve', 'serve')}\n")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules holds None for it
        return False
