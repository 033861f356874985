"""Texts of files that are not plain text: HTML, PDF, DOCX and notebooks, as Markdown.

Headings become Markdown headings, so that chunks know them. The libraries come with the extra
``files``; a notebook is JSON and needs none.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from collections.abc import Callable

from strop.common.secrets import one_line
from strop.errors import BadInput, MissingExtra
from strop.io.files import too_long
from strop.io.markdown import first_heading


def can_convert(suffix: str) -> bool:
    """Return whether the libraries for this kind of file are installed."""
    return all(importlib.util.find_spec(name) is not None for name in _READERS[suffix][1])


def convert(data: bytes, suffix: str, path: str, max_bytes: int) -> tuple[str, str]:
    """Return the text and the title of a file; the title is "" if the file has none.

    A file that cannot be read is refused with its name and a remedy.
    """
    if not can_convert(suffix):
        raise MissingExtra(f"Reading {path}", "files")
    try:
        text, title = _READERS[suffix][0](data, path, max_bytes)
    except BadInput:
        raise
    except Exception as error:  # damaged files make these libraries raise anything
        raise BadInput(
            f"{path}: cannot be read as {suffix[1:].upper()} ({type(error).__name__}:"
            f" {one_line(error)}); open it to see whether it is damaged, or leave it out with"
            " --exclude"
        ) from error
    if len(text) > max_bytes:
        raise too_long(path, "its text", max_bytes)
    return text, title


def _html(data: bytes, path: str, max_bytes: int) -> tuple[str, str]:
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(data, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for element in soup(["head", "script", "style", "template", "noscript", "svg"]):
        element.decompose()
    converter = MarkdownConverter(
        heading_style="ATX", strip=["img", "a"], escape_asterisks=False, escape_underscores=False
    )
    text = converter.convert_soup(soup).strip() + "\n"
    return text, title or first_heading(text)


def _docx(data: bytes, path: str, max_bytes: int) -> tuple[str, str]:
    import mammoth

    # A few kilobytes can unpack to gigabytes.
    members = zipfile.ZipFile(io.BytesIO(data)).infolist()
    if sum(member.file_size for member in members) > 4 * max_bytes:
        raise too_long(path, "its unpacked content", 4 * max_bytes)
    no_images = mammoth.images.img_element(lambda _: {"src": ""})
    html = mammoth.convert_to_html(io.BytesIO(data), convert_image=no_images).value
    return _html(html.encode("utf-8", "replace"), path, max_bytes)


def _pdf(data: bytes, path: str, max_bytes: int) -> tuple[str, str]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    pages, size = [], 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        size += len(pages[-1])
        if size > max_bytes:
            raise too_long(path, "its text", max_bytes)
    title = reader.metadata.title if reader.metadata else None
    return "\n\n".join(pages), str(title or "").strip()


def _notebook(data: bytes, path: str, max_bytes: int) -> tuple[str, str]:
    # The source of a cell is a string or a list of lines.
    cells = [(one, "".join(one["source"]).strip("\n")) for one in json.loads(data)["cells"]]
    parts = [f"```\n{x}\n```" if one["cell_type"] == "code" else x for one, x in cells if x]
    text = "\n\n".join(parts) + "\n"
    return text, first_heading(text)


_HTML = ("bs4", "markdownify")
_Reader = Callable[[bytes, str, int], tuple[str, str]]
_READERS: dict[str, tuple[_Reader, tuple[str, ...]]] = {
    ".html": (_html, _HTML),
    ".htm": (_html, _HTML),
    ".docx": (_docx, ("mammoth", *_HTML)),
    ".pdf": (_pdf, ("pypdf",)),
    ".ipynb": (_notebook, ()),
}
"""The function that reads a kind of file, and the packages that it needs, by suffix."""
CONVERTED = tuple(_READERS)
