"""The documentation is up to date with the program."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from strop.cli.main import main
from strop.embed import PRESETS

ROOT = Path(__file__).parent.parent


def load_script(path: str) -> Any:
    """Load a script as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_page_is_up_to_date() -> None:
    module = load_script("docs/generate_cli.py")
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert page == module.render(), "run: make docs"


def test_the_readme_shows_the_measured_quality() -> None:
    module = load_script("benchmarks/render_quality.py")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    table = module.render(json.loads(module.RESULTS.read_text(encoding="utf-8")))
    assert table.count("\n") > 5
    assert table in page, "run: python benchmarks/render_quality.py"
    assert module.fill(page, table) == page


def test_the_costs_of_a_reproduction_are_up_to_date() -> None:
    module = load_script("benchmarks/reproduce_costs.py")
    page = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    tables = module.render(module.estimate())
    assert tables in page, "run: python benchmarks/reproduce_costs.py"
    assert module.fill(page, tables) == page


def test_the_examples_of_the_python_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), namespace)


def test_every_preset_is_listed() -> None:
    page = (ROOT / "docs/embedders.md").read_text(encoding="utf-8")
    for preset in PRESETS.values():
        assert f"| `{preset.name}` | {preset.model} |" in page


def test_the_architecture_page_names_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for path in (ROOT / "src/strop").iterdir():
        name = path.name.removesuffix(".py")
        if not name.startswith("__") and path.suffix in ("", ".py"):
            assert re.search(rf"`{name}/?`", page), f"docs/architecture.md does not name {name}"


def test_files_named_on_the_architecture_page_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", page)
    assert len(names) > 10
    for name in names:
        assert (ROOT / "src/strop" / name).exists() or (ROOT / name).exists(), name


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_links_and_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
    for verb in re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?strop ([a-z]+)", text, re.MULTILINE):
        assert verb in main.commands, verb
