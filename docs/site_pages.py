"""A hook of mkdocs: files outside docs/ are pages of the site too, and links to them work there.

In the repository README.md is the home page; on the site it is index.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md"} | {
    name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
}
"""Files of the repository and their places on the site, beside those in docs/ and examples/."""


def on_files(files: Files, config: Any) -> Files:
    """Add the files."""
    programs = [path for path in sorted((ROOT / "examples").glob("*.*")) if path.is_file()]
    places = {ROOT / name: place for name, place in PAGES.items()}
    places |= {path: f"examples/{path.name}" for path in programs}
    for path, place in places.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the places on the site."""
    if page.file.src_uri in PAGES.values():  # from the root of the repository
        return re.sub(r"(\]\(|src=\"|srcset=\")docs/", r"\1", markdown)
    if "/" in page.file.src_uri:
        return markdown
    return re.sub(r"\]\(\.\./([A-Z]+(?:\.md)?|examples/[^)]*)([)#])", _inside, markdown)


def _inside(link: re.Match[str]) -> str:
    return f"]({PAGES.get(link[1], link[1])}{link[2]}"
