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


def _imports(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (module, name, local name) of each import from strop that is not for typing only."""
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


def test_packages_import_only_what_stands_above_them() -> None:
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

# Files that still use private names; nothing may be added.
STILL_PRIVATE = {
    *(
        f"benchmarks/{name}.py"
        for name in "ann_libraries ideas rankings scoring search words".split()
    ),
    *(
        f"tests/search/test_{name}.py"
        for name in "candidate_cache candidates kernels words".split()
    ),
    "tests/cli/test_demo.py",
    "tests/embed/test_embed.py",
    "tests/embed/test_embed_st.py",
    "tests/evaluation/test_tune.py",
    "tests/expand/test_expand.py",
    "tests/generate/test_generate.py",
    "tests/generate/test_prompts.py",
    "tests/io/test_bad_input.py",
    "tests/research/test_analyse.py",
    "tests/storage/test_durability.py",
    "tests/storage/test_maintenance.py",
    "tests/index/test_index_documents.py",
}
# Private by name, public by documentation.
PUBLIC = {("os", "_exit"), ("sys", "_getframe")}
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


def _private_uses(path: Path) -> Iterator[str]:
    """Yield uses of another package's underscore names: imports, attributes, patched names.

    Outside src also attributes of any object but ``self``, such as ``index.catalog``.
    """
    own = path.relative_to(SOURCE).parts[0] if path.is_relative_to(SOURCE) else ""
    names: dict[str, str] = {}
    for module, name, local in _imports(path):
        if _package(module, name) != own:
            names[local] = f"{module}.{name}"
            if _is_private(name):
                yield f"{module}.{name}"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            ours = owner in ("self", "cls") or (owner, node.attr) in PUBLIC
            if owner in names or not (own or ours or node.attr in OF_NAMED_TUPLES):
                yield f"{names.get(owner, owner)}.{node.attr}"
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
            patched = [str(part.value) for part in node.args[:2] if isinstance(part, ast.Constant)]
            if any(_is_private(name) for part in patched for name in part.split(".")):
                yield ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_nobody_uses_private_names_of_another_package() -> None:
    places = [SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "docs"]
    found = {
        str(path.relative_to(ROOT)): sorted(uses)
        for place in places
        for path in place.rglob("*.py")
        if (uses := set(_private_uses(path)))
    }
    assert {file: found[file] for file in sorted(found.keys() - STILL_PRIVATE)} == {}


# -- where things may stand ---------------------------------------------------------------------

LONGEST = 450
STILL_LONG = {"cli/generate.py", "index.py", "search/candidates.py", "search/kernels.py"}
SQL = re.compile(r"""["'](?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA)\s""")
MAY_HAVE_SQL = {"storage", "common/cache.py"}  # the second is a cache file of its own, no index
MAY_COMPILE = {"search", "references", "common/compiled.py", "common/arrays.py"}


def _outside(allowed: set[str], pattern: re.Pattern[str]) -> list[str]:
    """Return the source files with the pattern that are not in the allowed packages or files."""
    named = {str(path.relative_to(SOURCE)): path for path in _sources()}
    return [
        name
        for name, path in named.items()
        if not {name, name.split("/")[0]} & allowed and pattern.search(path.read_text("utf-8"))
    ]


def test_no_source_file_is_too_long() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text("utf-8").splitlines())
        for path in _sources()
    }
    too_long = {name for name, lines in lengths.items() if lines > LONGEST}
    assert too_long <= STILL_LONG


def test_sql_stands_in_storage_only() -> None:
    assert _outside(MAY_HAVE_SQL, SQL) == []


def test_kernels_stand_in_search_and_references_only() -> None:
    pattern = re.compile(r"^\s*(?:from|import) (?:numba|llvmlite|strop\.common\.compiled)\b", re.M)
    assert _outside(MAY_COMPILE, pattern) == []


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


def test_sql_stands_only_in_storage() -> None:
    allowed = {"storage", "common/cache.py"}
    sql = re.compile(
        r"\b(SELECT\s.*\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|DELETE\s+FROM|UPDATE\s+\w+\s+SET"
        r"|CREATE\s+(TEMP\s+)?(TABLE|INDEX)|PRAGMA\s)"
    )
    for path in _sources():
        relative = path.relative_to(SOURCE)
        if {relative.parts[0], relative.as_posix()} & allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not sql.search(node.value), f"{relative}:{node.lineno}: SQL outside storage"
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("execute", "executemany"), f"{relative}:{node.lineno}"


def test_only_search_and_references_are_compiled() -> None:
    for path in _sources():
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in ("search", "references") or relative.name == "compiled.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                modules = [name.name for name in node.names]
            for module in modules:
                compiled = module.split(".")[0] == "numba" or module == "strop.common.compiled"
                assert not compiled, f"{relative} must not import {module}"
