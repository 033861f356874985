"""The house plan: which package may import which, where SQL may stand, what importing costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "strop"

# A package, or a module beside them, imports only what stands above it.
ORDER = """
    errors types methods common io embed lm storage references generate search expand index
    evaluation research adapters cli __main__
""".split()


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import from strop, at any depth, those for typing aside."""
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "strop":
            for name in node.names:
                yield node.module or "", name.name
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("strop."):
                    yield name.name, ""


def _package(module: str, name: str) -> str:
    parts = [*module.split("."), name]
    return parts[1]


def _sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_packages_import_only_what_stands_above_them() -> None:
    level = {name: at for at, name in enumerate(ORDER)}
    for path in _sources():
        relative = path.relative_to(SOURCE)
        own = relative.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in level, f"say where {own} stands in the plan"
        for module, name in _imports(path):
            other = _package(module, name)
            if other == own or other.startswith("__"):
                continue
            assert level[other] < level[own], f"{relative} must not import {module} ({name})"


def test_every_package_says_what_lives_there() -> None:
    for package in SOURCE.iterdir():
        if (package / "__init__.py").exists():
            text = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")))
            assert text, package
            assert len(text.splitlines()) >= 3, f"{package}: what lives here, what may change it"
    assert sum(not path.name.startswith("__pycache__") for path in SOURCE.iterdir()) <= 24


def test_importing_strop_loads_nothing_heavy() -> None:
    heavy = {"torch", "numba", "scipy", "sentence_transformers", "httpx", "pyarrow", "ir_measures"}
    code = "import sys, strop, strop.cli.main, strop.embed; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(out.stdout.split())


def test_public_names_are_there() -> None:
    import strop

    for name in strop.__all__:
        assert getattr(strop, name) is not None


def test_a_test_imports_no_other_test_file() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.findall(
            r"^\s*(?:from|import) (test_\w+|conftest)\b", path.read_text("utf-8"), re.M
        )
        assert not found, f"{path} imports {found[0]}: move what they share to tests/helpers"
