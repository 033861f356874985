"""The architecture: which package may import which, where SQL is allowed, what importing loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from strop import Index

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "strop"

# A package, or a top-level module, imports only packages above it in this list.
ORDER = """
    errors types filters methods common io embed lm storage references generate search expand
    engines index opening
    distributed evaluation research adapters server cli __main__
""".split()


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def _imports(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (module, name, local name) of each import from strop that is not for typing only."""
    typing_only = {
        id(child)
        for node in _nodes(path)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in _nodes(path):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "strop":
            for name in node.names:
                yield node.module or "", name.name, name.asname or name.name
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("strop."):
                    yield name.name, "", name.asname or name.name


def _package(module: str, name: str) -> str:
    parts = [*module.split("."), name]
    return parts[1]


def _sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_the_architecture_page_lists_packages_in_import_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("| package | contents |")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)/?`", " ".join(first)) == ORDER[:-1]


def test_packages_import_only_packages_above_them() -> None:
    level = {name: at for at, name in enumerate(ORDER)}
    for path in _sources():
        relative = path.relative_to(SOURCE)
        own = relative.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in level, f"say where {own} stands in the plan"
        for module, name, _ in _imports(path):
            other = _package(module, name)
            if other == own or other.startswith("__"):
                continue
            assert level[other] < level[own], f"{relative} must not import {module} ({name})"


# -- private names ------------------------------------------------------------------------------

# Private by name, public by documentation.
PUBLIC = {("os", "_exit"), ("sys", "_getframe")}
CALLS_WITH_NAMES = {"setattr", "getattr", "hasattr", "delattr", "patch", "object", "attrgetter"}
NAMED_TUPLE_METHODS = {"_replace", "_asdict", "_fields", "_make"}


def _private_uses(path: Path) -> Iterator[str]:
    """Yield uses of another package's underscore names: imports, attributes, patched names.

    Attributes of ``self`` are allowed; in src also names that the package defines.
    """
    own = path.relative_to(SOURCE).parts[0] if path.is_relative_to(SOURCE) else ""
    defined = _private_names(own) if own else set()
    names: dict[str, str] = {}
    for module, name, local in _imports(path):
        if _package(module, name) != own:
            names[local] = f"{module}.{name}"
            if _is_private(name):
                yield f"{module}.{name}"
    for node in _nodes(path):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            is_own = owner in ("self", "cls") or (owner, node.attr) in PUBLIC
            is_own |= node.attr in defined | NAMED_TUPLE_METHODS
            if owner in names or not is_own:
                yield f"{names.get(owner, owner)}.{node.attr}"
        elif isinstance(node, ast.Call) and _called(node) in CALLS_WITH_NAMES:
            texts = [str(part.value) for part in node.args[:2] if isinstance(part, ast.Constant)]
            parts = {name for text in texts for name in text.split(".")}
            if any(_is_private(name) for name in parts - defined):
                yield ast.unparse(node)


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def _private_names(package: str) -> set[str]:
    """Return the underscore names that the files of a package define."""
    names = set()
    for path in _sources():
        if path.relative_to(SOURCE).parts[0] == package:
            for node in _nodes(path):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    names.add(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    own = isinstance(node.value, ast.Name) and node.value.id == "self"
                    names |= {node.attr} if own else set()
    return {name for name in names if _is_private(name)}


def test_private_names_are_used_only_in_their_package() -> None:
    places = [SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "docs"]
    found = {
        str(path.relative_to(ROOT)): sorted(uses)
        for place in places
        for path in place.rglob("*.py")
        if (uses := set(_private_uses(path)))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from strop.search.layout import _FEW",
        "from strop.search import layout; layout._FEW",
        "index._workspace",
        "open_index(path)._workspace.catalog",
        "getattr(index, '_workspace')",
        "monkeypatch.setattr(layout, '_FEW', 1)",
        "monkeypatch.setattr('strop.search.layout._FEW', 1)",
        "mock.patch.object(layout, '_FEW')",
    ],
)
def test_a_private_use_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "test_it.py").write_text(line + "\n", "utf-8")
    assert list(_private_uses(tmp_path / "test_it.py"))


# -- what is allowed where ----------------------------------------------------------------------

MAX_LINES = 450
MAX_FACADE_LINES = 400
# The last is a cache file, not part of an index.
SQL_ALLOWED = {"storage", "engines", "common/cache.py"}
SQL = re.compile(
    r"\b(SELECT\s.*\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|DELETE\s+FROM|UPDATE\s+\w+\s+SET"
    r"|(CREATE|ALTER|DROP)\s+(TEMP\s+)?(TABLE|INDEX)|PRAGMA\s)"
)
COMPILED_ALLOWED = {"search", "references", "common/compiled.py"}


def _nodes_outside(allowed: set[str]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (file and line, node) of the source files that are not allowed."""
    for path in _sources():
        relative = path.relative_to(SOURCE)
        if not {relative.parts[0], relative.as_posix()} & allowed:
            for node in _nodes(path):
                yield f"{relative}:{getattr(node, 'lineno', 0)}", node


def test_no_source_file_is_too_long() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text("utf-8").splitlines())
        for path in _sources()
    }
    too_long = {name for name, lines in lengths.items() if lines > MAX_LINES}
    assert too_long == set()


def test_the_index_is_a_facade() -> None:
    text = (SOURCE / "index.py").read_text("utf-8")
    assert len(text.splitlines()) < MAX_FACADE_LINES
    tree = ast.parse(text)
    (index,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert not index.bases
    imported = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import)]
    assert not [line for line in imported if "numpy" in line]


def test_sql_is_only_in_storage_and_engines() -> None:
    for place, node in _nodes_outside(SQL_ALLOWED):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not SQL.search(node.value), f"{place}: SQL outside storage and engines"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("execute", "executemany"), place


def test_kernels_are_only_in_search_and_references() -> None:
    for place, node in _nodes_outside(COMPILED_ALLOWED):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        for module in modules:
            compiled = module.split(".")[0] in ("numba", "llvmlite")
            compiled |= module == "strop.common.compiled"
            assert not compiled, f"{place} must not import {module}"


def test_ray_is_imported_in_one_file() -> None:
    for place, node in _nodes_outside({"distributed/runners.py"}):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        assert not [name for name in modules if name.split(".")[0] == "ray"], place


def test_every_package_has_a_docstring() -> None:
    for package in SOURCE.iterdir():
        if (package / "__init__.py").exists():
            text = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")))
            assert text, package
            assert len(text.splitlines()) >= 3, f"{package}: what lives here, what may change it"
    assert sum(not path.name.startswith("__pycache__") for path in SOURCE.iterdir()) <= 25


def test_importing_strop_loads_nothing_heavy() -> None:
    heavy = {"torch", "numba", "scipy", "sentence_transformers", "httpx", "pyarrow", "ir_measures"}
    heavy |= {"mteb", "langchain_core", "haystack", "llama_index", "pyterrier", "ray"}
    code = "import sys, strop, strop.cli.main, strop.embed, strop.adapters; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(out.stdout.split())


@pytest.mark.parametrize(
    ("adapter", "package"),
    [
        ("langchain", "langchain_core"),
        ("haystack", "haystack"),
        ("llamaindex", "llama_index"),
        ("pyterrier", "pyterrier"),
        ("mteb", "mteb"),
    ],
)
def test_an_adapter_without_its_extra_names_the_command(adapter: str, package: str) -> None:
    code = (
        f"import sys, strop.errors; sys.modules[{package!r}] = None\n"
        f"try: import strop.adapters.{adapter}\n"
        "except strop.errors.MissingExtra as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'strop[{adapter}]'" in out.stdout


def test_a_search_loads_only_the_needed_modules(tmp_path: Path) -> None:
    code = (
        "import sys; from strop import Index; path = sys.argv[1]\n"
        "with Index.open(path) as index: index.search('two words')\n"
        "print(*sys.modules)"
    )
    with Index.create(tmp_path / "index") as index:
        index.add([{"id": str(n), "text": f"text number {n}"} for n in range(50)])
        index.sharpen()
    command = [sys.executable, "-c", code, str(tmp_path / "index")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "strop.embed.wordllama" in loaded
    unused = {
        "numba",
        "scipy",
        "httpx",
        "torch",
        "strop.expand",
        "strop.generate",
        "strop.lm.service",
    }
    assert not unused & set(loaded)


def test_opening_an_index_loads_no_compiled_code() -> None:
    code = "import sys, strop.index; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numba", "torch", "scipy", "pyarrow", "ir_measures"} & set(out.stdout.split())


def test_public_names_exist() -> None:
    import strop

    for name in strop.__all__:
        assert getattr(strop, name) is not None


def test_test_files_do_not_import_each_other() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.findall(
            r"^\s*(?:from|import) (test_\w+|conftest)\b", path.read_text("utf-8"), re.M
        )
        assert not found, f"{path} imports {found[0]}: move what they share to tests/helpers"
