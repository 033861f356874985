"""The house plan: which module may import which, and what importing strop costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "strop"

# A module may import those above it. Names within a line do not import each other,
# except within the embed family.
LAYERS = [
    line.split()
    for line in """
    errors types
    compiled threads interrupts files sentences methods batches database sidecar
    packed
    vectors
    kernels clustering data datasets ledger embed stdlib_docs lm prompts query_filters
    codes cells document_catalog intake upgrade expand_prompts
    catalog neighbors
    snapshot pipeline
    references maintenance leaks whitening
    reference_store reply_store
    search asking batch_store folder
    generate explain refining candidates words
    candidate_cache contrast batch_generation triplets expand
    index
    scoring
    perplexity paper benchmark_data adapters grid tune
    analyse reproduce_plan
    figures reproduce
    html_report
    demo
    display
    cli_common
    cli_generate cli_research
    cli_expand
    cli
    __main__
    """.split("\n")
    if line.split()
]


def _imported(path: Path) -> set[str]:
    """Return the strop modules a file imports, at any depth, those for typing alone aside."""
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "strop":
                found |= {parts[1]} if len(parts) > 1 else {name.name for name in node.names}
        elif isinstance(node, ast.Import):
            assert not any(name.name.startswith("strop.") for name in node.names)
    return {name for name in found if not name.startswith("__")}


def test_modules_import_only_what_stands_above_them() -> None:
    level = {name: at for at, names in enumerate(LAYERS) for name in names}
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        name = relative.parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        assert name in level, f"say where {name} stands in the plan"
        for other in _imported(path):
            inside = other == name and len(relative.parts) > 1
            assert inside or level[other] < level[name], f"{relative} must not import {other}"


def test_importing_strop_loads_nothing_heavy() -> None:
    heavy = {"torch", "numba", "scipy", "sentence_transformers", "httpx", "pyarrow", "ir_measures"}
    code = "import sys, strop, strop.cli, strop.embed; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(out.stdout.split())


def test_public_names_are_there() -> None:
    import strop

    for name in strop.__all__:
        assert getattr(strop, name) is not None
