"""Code search: functions are found by what they do. Sentences of their docstrings sharpen them.

    python examples/code_search.py [FOLDER OR FILE ...]

Without arguments it reads a few modules of Python's own library.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from strop import Index

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
MODULES = ["shutil", "tempfile", "glob", "heapq", "bisect", "textwrap", "fnmatch", "calendar"]
QUESTIONS = [
    "copy a whole directory tree to another place",
    "is there enough free space on the disk?",
    "merge several inputs that are sorted already",
    "remove the indentation that all lines have in common",
]


def functions(paths: list[Path]) -> Iterator[dict[str, object]]:
    """Yield each documented function: name and docstring are the text, place is metadata."""
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    for file in sorted(files):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and not node.name.startswith("_"):
                    yield {
                        "id": f"{file}:{node.lineno}", "file": file.name, "line": node.lineno,
                        "title": f"{node.name}({ast.unparse(node.args)})", "text": text,
                    }  # fmt: skip


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or [LIBRARY / f"{name}.py" for name in MODULES]
    with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/code.index") as index:
        index.sharpen()  # title and sentences of each docstring, no language model
        index.add(functions(paths))
        print(f"{len(index)} functions\n")
        for question, hits in zip(QUESTIONS, index.search(QUESTIONS, k=2), strict=True):
            print(f"? {question}")
            for hit in hits:
                print(f"  {hit.metadata['file']}:{hit.metadata['line']}  {hit.title[:60]}")
                print(f"      {hit.passage.text[:90] if hit.passage else ''}")
            print()


if __name__ == "__main__":
    main()
