"""The documentation of the adapters: its examples run. tests/test_docs.py checks its links."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/adapters").glob("*.md"))
MODULES = {
    "langchain": "langchain_core",
    "haystack": "haystack",
    "llamaindex": "llama_index.core",
    "pyterrier": "pyterrier",
    "sentence-transformers": "numpy",
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # PyTerrier's, of pandas
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(MODULES[page.stem])
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("name", ["langchain", "haystack", "llamaindex", "pyterrier"])
def test_annotations_of_constructors_can_be_read(name: str) -> None:
    """Frameworks read them to check the arguments of a component."""
    pytest.importorskip(MODULES[name])
    module = importlib.import_module(f"strop.adapters.{name}")
    classes = [class_ for class_ in vars(module).values() if inspect.isclass(class_)]
    own = [class_ for class_ in classes if class_.__module__ == module.__name__]
    assert own
    for class_ in own:
        typing.get_type_hints(class_.__init__)
