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
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strop.cli.common import AS_JSON
from strop.cli.messages import echo, print_json
from strop.cli.progress import progress_bars
from strop.common.text import shorten
from strop.errors import BadInput
from strop.types import Dataset, Progress

if TYPE_CHECKING:  # loaded when the demo runs, so that --help is quick
    from strop.evaluation.changes import Change
    from strop.evaluation.scoring import Report
    from strop.index import Index

_MEASURES = ("nDCG@10", "Success@1", "R@50")
_COMPARE = {">=": operator.ge, "<": operator.lt}


@click.command()
@click.option(
    "-o",
    "--output",
    "path",
    type=Path,
    default=Path("demo.index"),
    show_default=True,
    help="The index folder.",
)
@click.option("--embedder", default="wordllama", show_default=True, help="Which embedder.")
@AS_JSON
def demo(path: Path, embedder: str, as_json: bool) -> None:
    """Index the Python standard library's documentation; score it on questions written by hand."""
    with progress_bars() as progress:
        result = run_demo(path, embedder, progress)
    if as_json:
        print_json(result.to_json())
        return
    _print_demo(result, path, command())


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    version: str
    documents: int
    report: Report
    changes: list[Change]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "python": self.version,
            "documents": self.documents,
            **self.report.to_json(),
            "changes": [asdict(change) for change in self.changes],
        }


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


def run_demo(path: Path, embedder: str, progress: Progress | None = None) -> DemoResult:
    """Index the standard library's documentation at ``path`` (or bring it up to date) and score."""
    from strop.evaluation.changes import largest_changes
    from strop.evaluation.scoring import evaluate
    from strop.io import stdlib_docs

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
    return DemoResult(platform.python_version(), len(documents), report, changes)


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


def command() -> str:
    """Return how this strop is called from here: by name, or by the path of its script."""
    script = Path(sys.argv[0])
    found = shutil.which("strop")
    if found and script.name == "strop" and Path(found).resolve() == script.resolve():
        return "strop"
    return os.path.relpath(script) if script.name == "strop" else f"{sys.executable} -m strop"


def _print_demo(result: DemoResult, path: Path, command: str) -> None:
    """Print what the demo found and the line to type next."""
    from strop.cli.tables import plain, print_report, standard_output

    out = standard_output()
    out.print(
        f"\n{result.documents:,} documents of the Python {result.version} standard library, "
        f"{result.report.queries} questions written by hand\n"
    )
    print_report(result.report)
    out.print("\nThe two answers that gained most and the one that lost most, and why:")
    for change in result.changes:
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
    question = result.changes[0].text if result.changes else "copy a file"
    words = [command, "search", shlex.quote(str(path)), shlex.quote(question), "--explain"]
    echo(f"  {' '.join(words)}\n")
