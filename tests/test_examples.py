"""The examples run, in seconds, without a key, and print what they promise."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
PAGE = FOLDER.parent / "docs/examples.md"
PRINTED = {
    "agent_memory": "After a correction:     ['Ana moved to Lyon.']",
    "code_search": "copytree(src, dst,",
    "faq_search": "because somebody asked: I am locked out of my account",
    "support_tickets": "Of these, since April\n  T-102",
}


def test_every_example_is_tested_and_on_the_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(PRINTED)
    page = PAGE.read_text("utf-8")
    for path in FOLDER.iterdir():
        if path.suffix in (".py", ".ipynb"):
            assert f"(../examples/{path.name})" in page


@pytest.mark.parametrize("name", PRINTED)
def test_a_program(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FOLDER / f"{name}.py"
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert PRINTED[name] in printed
    if name != "code_search":  # its page is of one version of Python
        assert printed.strip() in PAGE.read_text("utf-8")
    assert len(path.read_text("utf-8").splitlines()) < 60


def test_the_notebook_prints_what_it_shows() -> None:
    notebook = json.loads((FOLDER / "tour.ipynb").read_text("utf-8"))
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for cell in cells:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), names)
        assert out.getvalue() == "".join("".join(one["text"]) for one in cell["outputs"])
