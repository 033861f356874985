"""The page: complete in itself, true to the figures, and safe with strangers' texts."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.commands import beir, strop

from strop import Index, evaluate

VOID = {"meta", "br", "link", "img", "input", "hr", "path", "use", "image"}
HOSTILE = '<script>alert("x")</script> & <img src=http://example.com/x onerror=y> \x07 end'


class Page(HTMLParser):
    """Reads a page; every element must be closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.said = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("href", "xlink:href", "src"):
                self.links.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


@pytest.fixture(autouse=True)
def _drawn() -> None:
    pytest.importorskip("matplotlib")


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    """An index whose texts, ids and queries would break a careless page."""
    path = tmp_path / "hostile.index"
    with Index.create(path) as index:
        index.sharpen("sentences")
        words = ["harbour", "violin", "engine", "forest", "glacier"]
        index.add(
            {"id": f"<b>{i}", "title": HOSTILE,
             "text": f"{word}. {HOSTILE}. The {words[i - 1]} was sold. An old {words[i - 2]}."}
            for i, word in enumerate(words)
        )  # fmt: skip
    queries = {f"<i>{i}": f"old {word} {HOSTILE[:20]}" for i, word in enumerate(words)}
    # Grades that all differ: whatever changes its place changes the value.
    qrels = {id_: {f"<b>{i}": 1 + (i + at) % 5 for i in range(5)} for at, id_ in enumerate(queries)}
    return path, beir(tmp_path / "<u>data", queries, qrels)


def test_the_page_says_what_evaluate_says(index: Path, dataset: Path, tmp_path: Path) -> None:
    told = strop("report", index, dataset, "-o", tmp_path / "page", "--json").json
    text = Path(told["page"]).read_text("utf-8")
    assert told["bytes"] == len(text.encode())
    page = Page(text)
    assert f"strop report {index} {dataset} -o {tmp_path / 'page'} --json" in page.said
    with Index.open(index) as opened:
        report = evaluate(opened, dataset, ["trad", "sharp", "simsharp"])
    for name, values in report.results.items():
        assert name in page.said
        for value in values.values():
            assert f"{100 * value:.2f}" in page.said
    # What it comes to stands on top, then the same beside the strongest baseline.
    with Index.open(index) as opened:
        words = f"trad:words={opened.method('sharp').words:g}"
        baselines = evaluate(opened, dataset, ["trad", "bm25", "hybrid", words, "sharp"])
    assert baselines.conclusion("sharp") in page.said
    ndcg = {name: of["nDCG@10"] for name, of in baselines.results.items()}
    rival = max(list(ndcg)[1:-1], key=ndcg.__getitem__)
    assert replace(baselines, baseline=rival).conclusion("sharp") in page.said
    assert page.said.index(baselines.conclusion("sharp")) < page.said.index("Methods")
    assert "This index uses 1 (" in page.said
    assert "This index uses 0.1 (" in page.said
    # The query that gained most stands there with its figures and what moved its document.
    before, after = (report.per_query[name]["nDCG@10"] for name in ("trad", "sharp"))
    best = max(before, key=lambda query: after[query] - before[query])
    assert f"{100 * before[best]:.1f} with trad, {100 * after[best]:.1f} with sharp" in page.said
    assert "stored query" in page.said
    assert text.count('src="data:image/svg+xml;base64,') == 4


def test_the_page_asks_for_nothing_and_runs_nothing(
    hostile: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.research.html_report.SWEPT", ("alpha", "sets"))
    ran = strop("report", *hostile, "-o", tmp_path / "page", "--method", "sharp:alpha=9:T=0.01")
    assert ran.code == 0, ran.stderr
    text = (tmp_path / "page" / "index.html").read_text("utf-8")
    page = Page(text)
    assert "default-src 'none'" in text
    assert not page.tags & {"script", "iframe", "object", "link", "b", "i", "u"}
    assert len(page.links) == 2
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert '<script>alert("x")</script>' in page.said  # as words
    assert "\x07" not in text


@pytest.mark.parametrize("method", ["trad:words=1", "hybrid:of=sharp"])
def test_changes_by_any_method_are_shown(
    method: str, index: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.research.html_report.SWEPT", ())
    out = tmp_path / "page"
    ran = strop("report", index, dataset, "-o", out, "--method", method, "--methods", method)
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout == f"{out / 'index.html'}\n"
    page = Page((out / "index.html").read_text("utf-8"))
    assert f"with {method} (" in page.said


def test_an_index_without_queries_has_nothing_to_report(
    corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    assert strop("build", corpus, "-o", tmp_path / "i", "--queries", "none").code == 0
    ran = strop("report", tmp_path / "i", dataset, "-o", tmp_path / "page")
    assert ran.code == 1
    assert "has no query sets" in ran.stderr
    assert not (tmp_path / "page").exists()
