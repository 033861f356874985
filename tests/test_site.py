"""The documentation site: it builds, its links work, it loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree import ElementTree

import pytest
from helpers.browser import chromium

ROOT = Path(__file__).parent.parent
_LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "srcset")}
_LINKS_THAT_LOAD = {"stylesheet", "icon", "preconnect", "preload", "prefetch", "modulepreload"}


class _Page(HTMLParser):
    """The resources, links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors = {""}
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.loads += [value for name, value in values.items() if (tag, name) in _LOADED]
        if tag == "link" and set(values.get("rel", "").split()) & _LINKS_THAT_LOAD:
            self.loads.append(values["href"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.classes |= set(values.get("class", "").split())


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, _Page]:
    """The pages by their path on the site."""
    return {
        "/" + path.relative_to(site).as_posix().removesuffix("index.html"): _Page(
            path.read_text("utf-8")
        )
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


@pytest.fixture(scope="module")
def site_url(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_every_page_of_docs_is_on_the_site(pages: dict[str, _Page]) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert f"/{name}/" in pages
    assert "Index.search" in " ".join(pages["/api/"].anchors)


def test_links_work(site: Path, pages: dict[str, _Page]) -> None:
    for page_path, page in pages.items():
        for link in page.links + page.loads:
            target = urlsplit(urljoin(f"http://site{page_path}", link))
            if target.netloc != "site" or target.scheme != "http":
                continue
            place = unquote(target.path)
            if place in pages:
                assert target.fragment in pages[place].anchors, f"{page_path}: {link}"
            else:
                assert (site / place.removeprefix("/")).is_file(), f"{page_path}: {link}"


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[str, _Page]) -> None:
    for page_path, page in pages.items():
        assert not [link for link in page.loads if urlsplit(link).netloc], page_path
        assert "mermaid" not in page.classes  # the theme would fetch its program for these
    for path in site.rglob("*.css"):
        text = path.read_text("utf-8")
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text), path.name
    for path in site.rglob("*.svg"):
        text = path.read_text("utf-8")
        assert "href" not in text
        assert "<script" not in text


def test_pictures_can_be_drawn_and_show_the_effect(tmp_path: Path) -> None:
    """Other versions of Python can give other texts; the effect must be the same."""
    names: dict[str, object] = {"__name__": "pictures", "__file__": str(tmp_path / "make.py")}
    source = (ROOT / "docs/pictures/make.py").read_text("utf-8")
    exec(compile(source, "docs/pictures/make.py", "exec"), names)
    moved = names["measure"]()  # type: ignore[operator]
    right, wrong = moved.values()
    assert right.before[0] < wrong.before[0]
    assert right.after[0] > wrong.after[0]
    for drawn, name in ((names["sharpening"](moved), "sharpening"), (names["flow"](), "flow")):  # type: ignore[operator]
        ElementTree.fromstring(drawn)
        committed = (ROOT / f"docs/pictures/{name}.svg").read_text("utf-8")
        assert len(committed) == pytest.approx(len(drawn), rel=0.3)


def test_pages_fit_a_phone_and_search_works(site_url: str, pages: dict[str, _Page]) -> None:
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 390, "height": 800})
        requested: list[str] = []
        context.on("request", lambda request: requested.append(request.url))
        tab = context.new_page()
        for path in ("/", "/quickstart/", "/concepts/", "/api/", "/reproduce/", "/scaling/"):
            tab.goto(site_url + path)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path
        tab.locator("label[for=__search]").first.click()
        # The site reacts to single key presses, not to a value set by a script.
        tab.locator("input.md-search__input").press_sequentially("temperature")
        tab.locator(".md-search-result__item").first.wait_for()
        context.close()
    assert requested
    assert not [url for url in requested if not url.startswith((site_url, "data:", "blob:"))]
