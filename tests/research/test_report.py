"""The HTML report: self-contained, equal to the evaluations, safe with untrusted texts."""

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
    """Parses a page and checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
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
        self.text += data


@pytest.fixture(autouse=True)
def _needs_matplotlib() -> None:
    pytest.importorskip("matplotlib")


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    """An index with HTML in its texts, ids and queries."""
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
    # All grades differ, so every change of rank changes the value.
    qrels = {id_: {f"<b>{i}": 1 + (i + at) % 5 for i in range(5)} for at, id_ in enumerate(queries)}
    return path, beir(tmp_path / "<u>data", queries, qrels)


def test_the_page_equals_separate_evaluations(index: Path, dataset: Path, tmp_path: Path) -> None:
    result = strop("report", index, dataset, "-o", tmp_path / "page", "--json").json
    text = Path(result["page"]).read_text("utf-8")
    assert result["bytes"] == len(text.encode())
    page = Page(text)
    assert f"strop report {index} {dataset} -o {tmp_path / 'page'} --json" in page.text
    with Index.open(index) as opened:
        report = evaluate(opened, dataset, ["trad", "sharp", "simsharp"])
    for name, values in report.results.items():
        assert name in page.text
        for value in values.values():
            assert f"{100 * value:.2f}" in page.text
    # The conclusion is at the top, followed by that against the strongest baseline.
    with Index.open(index) as opened:
        words = f"trad:words={opened.method('sharp').words:g}"
        baselines = evaluate(opened, dataset, ["trad", "bm25", "hybrid", words, "sharp"])
    assert baselines.conclusion("sharp") in page.text
    ndcg = {name: values["nDCG@10"] for name, values in baselines.results.items()}
    rival = max(list(ndcg)[1:-1], key=ndcg.__getitem__)
    assert replace(baselines, baseline=rival).conclusion("sharp") in page.text
    assert page.text.index(baselines.conclusion("sharp")) < page.text.index("Methods")
    assert "This index uses 1 (" in page.text
    assert "This index uses 0.1 (" in page.text
    # The query that gained most is listed with its values and what moved its document.
    before, after = (report.per_query[name]["nDCG@10"] for name in ("trad", "sharp"))
    best = max(before, key=lambda query: after[query] - before[query])
    assert f"{100 * before[best]:.1f} with trad, {100 * after[best]:.1f} with sharp" in page.text
    assert "stored query" in page.text
    assert text.count('src="data:image/svg+xml;base64,') == 4


def test_the_page_loads_nothing_and_runs_no_script(
    hostile: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.research.html_report.SWEPT", ("alpha", "sets"))
    result = strop("report", *hostile, "-o", tmp_path / "page", "--method", "sharp:alpha=9:T=0.01")
    assert result.code == 0, result.stderr
    text = (tmp_path / "page" / "index.html").read_text("utf-8")
    page = Page(text)
    assert "default-src 'none'" in text
    assert not page.tags & {"script", "iframe", "object", "link", "b", "i", "u"}
    assert len(page.links) == 2
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert '<script>alert("x")</script>' in page.text  # as text
    assert "\x07" not in text


@pytest.mark.parametrize("method", ["trad:words=1", "hybrid:of=sharp"])
def test_the_page_lists_changes_by_any_method(
    method: str, index: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.research.html_report.SWEPT", ())
    out = tmp_path / "page"
    result = strop("report", index, dataset, "-o", out, "--method", method, "--methods", method)
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout == f"{out / 'index.html'}\n"
    page = Page((out / "index.html").read_text("utf-8"))
    assert f"with {method} (" in page.text


def test_an_index_without_query_sets_is_refused(
    corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    assert strop("build", corpus, "-o", tmp_path / "i", "--queries", "none").code == 0
    result = strop("report", tmp_path / "i", dataset, "-o", tmp_path / "page")
    assert result.code == 1
    assert "has no query sets" in result.stderr
    assert not (tmp_path / "page").exists()
