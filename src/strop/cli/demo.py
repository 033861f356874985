"""``strop demo``: plain against sharpened search on the Python documentation of this machine."""

from __future__ import annotations

import json
import operator
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strop.cli.messages import echo
from strop.cli.options import Answer, verb
from strop.cli.progress import progress_bars
from strop.common.text import shorten
from strop.errors import BadInput
from strop.types import Dataset

if TYPE_CHECKING:  # loaded when the demo runs, so that --help is quick
    from strop.evaluation.changes import Change
    from strop.evaluation.scoring import Report
    from strop.index import Index

_MEASURES = ("nDCG@10", "Success@1", "R@50")
_COMPARE = {">=": operator.ge, "<": operator.lt}


@verb(
    click.option(
        "-o",
        "--output",
        "path",
        type=Path,
        default=Path("demo.index"),
        help="The index folder.",
    ),
    click.option("--embedder", default="wordllama", help="Which embedder."),
)
def demo(path: Path, embedder: str) -> Answer:
    """Index the Python standard library's documentation; score it on questions written by hand."""
    from strop.evaluation.changes import largest_changes
    from strop.evaluation.scoring import evaluate
    from strop.io import stdlib_docs

    with progress_bars() as progress:
        if progress is not None:
            progress("reading documentation", 0, 1)
        documents = stdlib_docs.read_stdlib()
        if progress is not None:
            progress("reading documentation", 1, 1)
        with _open(path, embedder) as index:
            _refuse_other_documents(index)
            index.sharpen("sentences")
            index.add(documents, progress)
            index.keep_only(document.id for document in documents)
            questions = read_questions()
            report = evaluate(index, questions, ("trad", "sharp"), measures=_MEASURES)
            gained, lost = largest_changes(index, questions, report, "sharp", 2)
    changes = [*gained, *lost[:1]]
    value = {
        "python": platform.python_version(),
        "documents": len(documents),
        **report.to_json(),
        "changes": [asdict(change) for change in changes],
    }
    return Answer(value, partial(_print_demo, len(documents), report, changes, path))


def read_questions(version: tuple[int, int] | None = None) -> Dataset:
    """Return the questions that can be answered in a version of Python (this one)."""
    version = version or sys.version_info[:2]
    queries, qrels = {}, {}
    text = resources.files("strop.cli").joinpath("demo_questions.jsonl").read_text("utf-8")
    for line in text.splitlines():
        entry = json.loads(line)
        if admits(entry.get("versions", ""), version):
            queries[entry["id"]] = entry["question"]
            qrels[entry["id"]] = dict.fromkeys(entry["answers"], 1)
    return Dataset("python docs", queries, qrels)


def admits(versions: str, version: tuple[int, int]) -> bool:
    """Tell whether a version fits a marker such as ``>=3.11`` or ``<3.13`` ("" fits all)."""
    if not versions:
        return True
    sign, major, minor = re.fullmatch(r"(>=|<)(\d+)\.(\d+)", versions).groups()  # type: ignore[union-attr]
    return bool(_COMPARE[sign](version, (int(major), int(minor))))


def _open(path: Path, embedder: str) -> Index:
    from strop.index import Index

    if (path / "catalog.sqlite").exists():
        return Index.open(path, embedder)
    return Index.create(path, embedder)


def _refuse_other_documents(index: Index) -> None:
    """The demo removes what is not of this Python's library; that must not be somebody's."""
    kinds = ("module", "class", "function")
    for id_ in index.ids():
        if index.get(id_).metadata.get("kind") not in kinds:
            raise BadInput(
                f"{index.path} is not an index of the demo (it holds {id_!r}): name another folder "
                "with -o"
            )


def _command() -> str:
    """Return how this strop is called from here: by name, or by the path of its script."""
    script = Path(sys.argv[0])
    on_path = shutil.which("strop")
    if on_path and script.name == "strop" and Path(on_path).resolve() == script.resolve():
        return "strop"
    return os.path.relpath(script) if script.name == "strop" else f"{sys.executable} -m strop"


def _print_demo(documents: int, report: Report, changes: Sequence[Change], path: Path) -> None:
    """Print what was measured and the line to type next."""
    from strop.cli.tables import plain, print_report, standard_output

    out = standard_output()
    out.print(
        f"\n{documents:,} documents of the Python {platform.python_version()} standard library, "
        f"{report.queries} questions written by hand\n"
    )
    print_report(report)
    out.print("\nThe two answers that gained most and the one that lost most, and why:")
    for change in changes:
        answer = change.moves[0]
        cause = answer if change.after > change.before else change.moves[-1]
        before, after = (str(rank or "beyond 50") for rank in (answer.before, answer.after))
        overtaken = "" if cause is answer else f"overtaken by {cause.id}, "
        out.print()
        out.print(plain(f"  {change.text}", "bold"))
        how = f"{overtaken}moved by its own text"
        out.print(plain(f"  {answer.id}: rank {before} -> {after}, {how}"))
        for part in cause.why[:2]:
            out.print(plain(f"    {part.moved:+.3f}  {shorten(part.text, 84)}"))
    out.print("\nSearch it yourself:\n")
    question = changes[0].text if changes else "copy a file"
    words = [_command(), "search", shlex.quote(str(path)), shlex.quote(question), "--explain"]
    echo(f"  {' '.join(words)}\n")
