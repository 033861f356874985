"""The web page in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import chromium
from helpers.commands import strop
from helpers.generation import command, document_of, topics_in
from helpers.scripted_server import Answer, ScriptedServer, Seen
from helpers.strop_server import KEYS, READ_KEY, RunningServer, serving
from playwright.sync_api import Browser, Page, expect

from strop import Index
from strop.lm.prices import known_prices
from strop.server.app import DESCRIBED

from .conftest import SCRIPT

QUERY = "copy a folder with all files"
PAGE = "sharp:feedback=0"  # the method of the page
VIEWS = ["#/", f"#/?q={QUERY.replace(' ', '+')}", "#/collection", "#/evaluation", "#/generation"]
Open = Callable[..., Page]
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser: Browser, running: RunningServer) -> Iterator[Open]:
    """Open the page; at the end, no script error and no request to another host."""
    problems: list[str] = []
    contexts = []

    def open_(path: str = "/", url: str = running.url, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(url) else problems.append(sent.url),
        )
        page.goto(url + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def _search(page: Page, query: str = QUERY) -> None:
    page.fill("#query", query)
    page.wait_for_selector(".right .hit")
    expect(page.locator(".status")).to_contain_text("candidate")


def _ranking(page: Page, side: str) -> list[tuple[str, float]]:
    rows = page.locator(f".{side} .hit").all()
    return [
        (row.get_attribute("data-id") or "", float(row.locator(".score").inner_text()))
        for row in rows
    ]


# -- searching ------------------------------------------------------------------------------------


def test_the_page_ranks_as_the_library(open_page: Open, opened: Index) -> None:
    page = open_page()
    _search(page)
    for side, method in (("left", "trad"), ("right", PAGE)):
        hits = opened.search(QUERY, 12, method)[0]
        shown = _ranking(page, side)
        assert [score for _, score in shown] == pytest.approx([h.score for h in hits], abs=6e-4)
        assert {id_ for id_, _ in shown[:5]} == {hit.id for hit in hits[:5]}
    assert page.locator(".moves path").count() >= 12
    assert page.url.endswith("#/?q=copy+a+folder+with+all+files")


def test_the_formula_of_the_page_equals_the_library(
    open_page: Open, opened: Index, running: RunningServer
) -> None:
    page = open_page()
    grid: list[dict[str, Any]] = [
        {"alpha": alpha, "temperature": temperature, "words": words}
        for alpha in (0, 0.5, 1, 4)
        for temperature in (0, 0.01, 0.1, 1, 10)
        for words in (0, 1.5)
    ]
    computed = page.evaluate(
        """async ([query, grid]) => {
            const { call, floats } = await import("/page/api.js");
            const { score } = await import("/page/formula.js");
            const reply = await call("/explore/candidates", { query, k: 30 });
            const all = reply.candidates.map((one) =>
                ({ ...one, s: floats(one.s), u: floats(one.u), g: floats(one.g) }));
            return grid.map((settings) =>
                Object.fromEntries(all.map((one) => [one.id, score(one, settings)])));
        }""",
        [QUERY, grid],
    )
    for settings, scores in zip(grid, computed, strict=True):
        assert len(scores) == 30
        hits = opened.search(
            QUERY, 30, PAGE, where={"$id": {"$in": [*scores]}}, exact=True, **settings
        )[0]
        assert scores == pytest.approx({hit.id: hit.score for hit in hits}, abs=2e-4), settings


def test_sliders_rank_again_without_a_request(open_page: Open) -> None:
    page = open_page()
    _search(page)
    requests: list[str] = []
    page.on("request", lambda sent: requests.append(sent.url))
    before = _ranking(page, "right")
    page.locator("#right-alpha").focus()
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.locator("#right-alpha + output").inner_text() == "2.50"
    assert _ranking(page, "right") != before
    track = page.locator("#right-words").bounding_box()
    assert track is not None
    middle = track["y"] + track["height"] / 2
    page.mouse.move(track["x"] + 4, middle)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"] * 0.7, middle, steps=5)
    page.mouse.up()
    assert float(page.locator("#right-words + output").inner_text()) > 2
    page.click(".right .presets button:has-text('Plain')")
    assert [id_ for id_, _ in _ranking(page, "right")] == [id_ for id_, _ in _ranking(page, "left")]
    assert page.locator(".move.same").count() == 12
    assert requests == []


def test_filters_apply_and_their_errors_are_shown(open_page: Open) -> None:
    page = open_page()
    _search(page, "a note about folders")
    page.fill("#where", "year>=2020")
    expect(page.locator(".status")).to_contain_text("5 candidates")
    assert all(id_.startswith("note-202") for id_, _ in _ranking(page, "right"))
    page.fill("#where", "year")
    expect(page.locator(".status")).to_contain_text("write FIELD=VALUE")
    page.fill("#where", '{"year": {"$near": 1}}')
    expect(page.locator(".status")).to_contain_text("$near")


def test_the_page_works_by_keyboard(open_page: Open) -> None:
    page = open_page()
    _search(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    second = page.locator(".right .hit").nth(1)
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_selector(".drawer .text")
    page.keyboard.press("Escape")
    expect(page.locator(".drawer")).to_be_hidden()
    expect(second).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#query")).to_be_focused()


# -- one document, the map ------------------------------------------------------------------------


def test_a_document_shows_its_explanation(open_page: Open, opened: Index) -> None:
    page = open_page()
    _search(page)
    best = opened.search(QUERY, 1, PAGE)[0][0]
    page.click(f'.right .hit[data-id="{best.id}"]')
    page.wait_for_selector(".drawer .text")
    explanation = opened.explain(QUERY, best.id)
    assert page.locator(".parts li").count() == min(12, len(explanation.queries))
    strongest = max(explanation.queries, key=lambda part: part.weight)
    assert page.locator(".parts .part").first.inner_text() == strongest.text
    terms = [float(text) for text in page.locator(".term b").all_inner_texts()]
    assert terms[-1] == pytest.approx(sum(terms[:-1]), abs=2e-3)
    parts = (part for part in explanation.queries if part.text != best.title)
    nearest = max(parts, key=lambda part: part.similarity)
    assert page.locator(".drawer mark").inner_text().split() == nearest.text.split()
    selected = opened.references_of(best.id)
    assert selected is not None
    assert page.locator(".references li").count() == len(selected.references)
    page.locator(".references .link").first.click()
    first = opened.get(selected.references[0].id)
    expect(page.locator(".drawer h2")).to_have_text(first.title or first.id)


def test_the_map_shows_query_documents_and_sentences(open_page: Open) -> None:
    page = open_page()
    _search(page)
    page.click(".map summary")
    page.wait_for_selector(".points")
    assert page.locator(".point.query").count() == 1
    assert page.locator(".point.document").count() == 30
    assert page.locator(".point.sentence").count() > 10
    page.locator(".point.document").first.dispatch_event("click")
    page.wait_for_selector(".drawer .text")


# -- the other pages ------------------------------------------------------------------------------


def test_the_collection_lists_sets_and_neighbours(open_page: Open, opened: Index) -> None:
    page = open_page("/#/collection")
    page.wait_for_selector("table")
    assert f"{len(opened)}" in page.inner_text(".facts")
    names = [row.split()[0] for row in page.locator("tbody tr").all_inner_texts()]
    assert names == [query_set.name for query_set in opened.sets]
    page.locator(".rows .link").first.click()
    page.wait_for_selector(".drawer .text")


def test_an_evaluation_lists_gains_and_opens_rankings(open_page: Open, opened: Index) -> None:
    page = open_page("/#/evaluation")
    page.fill("#labelled", "not json")
    page.click("form.form button")
    expect(page.locator("main [role=status]")).to_contain_text("line 1")
    page.fill(
        "#labelled",
        '{"query": "copy a tree of folders", "relevant": ["shutil.copytree"]}\n'
        '{"query": "is it a link", "relevant": ["os.path.islink", "os.path.lexists"]}\n',
    )
    page.fill("#methods", "bm25, sharp, trad")
    page.click("form.form button")
    page.wait_for_selector("table")
    assert page.locator("tbody tr").count() == 3
    expect(page.locator("[aria-label=Method]")).to_have_value("trad")
    page.select_option("[aria-label=Method]", "sharp")
    page.select_option("[aria-label=Measure]", "AP@50")
    expect(page.locator(".changes li")).to_have_count(2)
    page.click(".changes summary:has-text('a tree of folders')")
    for at, method in enumerate(("bm25", "sharp")):
        section = page.locator(".changes .pair section").nth(at)
        expect(section.locator("h3")).to_have_text(method)
        hits = opened.search("copy a tree of folders", 10, method)[0]
        titles = [hit.title or hit.id for hit in hits]
        expect(section.locator("li .link")).to_have_text(titles)
        assert section.locator(".relevant").count() == sum(h.id == "shutil.copytree" for h in hits)
    page.locator(".changes .pair .link").first.click()
    page.wait_for_selector(".drawer .text")
    page.keyboard.press("Escape")
    page.click(".changes a:has-text('Open in Search')")
    expect(page.locator("#query")).to_have_value("copy a tree of folders")


def test_the_generation_view_follows_a_run(
    open_page: Open, topics: Path, server: ScriptedServer
) -> None:
    """A real ``strop queries`` run: six replies, one refusal, then the model hangs."""
    model = max(known_prices(), key=lambda name: known_prices()[name].input)
    server.text = lambda prompt: f"<QUERY>about {topics_in(prompt)[0]} <b>now</b></QUERY>"

    def act(seen: Seen) -> Answer:
        number = int(document_of(seen)[1:])
        if number == 6:
            return Answer(400, {"error": {"message": "refused <i>this</i>"}})
        return Answer(hang=True) if number > 6 else server.respond(seen)

    server.act = act
    arguments = command(topics, server, "--style", "simple", lm=f"openai:{model}")
    process_command = [sys.executable, "-m", "strop", *arguments]
    with serving(topics) as strop_server:
        page = open_page("/#/generation", strop_server.url)
        expect(page.locator("main")).to_contain_text("No language model has written")
        with subprocess.Popen(
            process_command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            expect(page.locator("tbody").first).to_contain_text("6 of 12")
            expect(page.locator("main")).to_contain_text("refused <i>this</i>")
            assert process.poll() is None
            process.kill()
        assert "<b>now</b>" in page.locator(".replies pre").first.inner_text()
        server.act = server.respond
        strop(*arguments)
        # The refused document stays without queries.
        expect(page.locator("tbody").first).to_contain_text("11 of 12")
        cell = page.locator("tbody tr").first.locator("td").nth(2).inner_text()
        with Index.open(topics) as index:
            (row,) = index.catalog.replies.overview(1)["models"]
        dollars = known_prices()[model].cost(row["input_tokens"], row["output_tokens"])
        assert cell == f"${dollars:.4f}"
        page.goto("about:blank")


def test_the_page_works_with_a_published_copy(
    open_page: Open, opened: Index, copy: RunningServer
) -> None:
    page = open_page("/", copy.url)
    _search(page)
    shown, hits = _ranking(page, "right"), opened.search(QUERY, 12, PAGE)[0]
    assert [score for _, score in shown] == pytest.approx([h.score for h in hits], abs=1e-3)
    page.locator(".right .hit").first.click()
    page.wait_for_selector(".parts li")
    page.keyboard.press("Escape")
    page.click(".map summary")
    page.wait_for_selector(".points")
    page.goto(f"{copy.url}/#/collection")
    expect(page.locator("main")).to_contain_text("A published copy does not hold them")
    page.goto(f"{copy.url}/#/generation")
    expect(page.locator("[role=alert]")).to_contain_text("published copy")


def test_the_api_page_lists_every_operation_and_tries_one(open_page: Open) -> None:
    page = open_page("/docs")
    page.wait_for_selector(".operation")
    assert page.locator(".operation").count() == len(DESCRIBED)
    first = page.locator(".operation").first
    first.locator("summary").click()
    assert "Hits for each query." in first.inner_text()
    assert "[object" not in page.locator("main").inner_text()
    first.locator("button").click()
    expect(first.locator(".out")).to_contain_text("hits")


@pytest.mark.slow
def test_a_key_is_requested_and_stored_for_the_tab(open_page: Open, index: Path) -> None:
    with serving(index, keys=KEYS) as server:
        page = open_page("/", server.url)
        page.wait_for_selector("#ask[open]")
        page.fill("#key", "wrong-wrong-wrong-wrong")
        page.click("#ask button")
        page.wait_for_selector("#ask[open]")
        page.fill("#key", READ_KEY)
        page.click("#ask button")
        expect(page.locator("#about")).to_contain_text("docs")
        _search(page)
        page.reload()
        expect(page.locator("#about")).to_contain_text("docs")
        assert page.evaluate("localStorage.length") == 0
        page.goto("about:blank")


# -- hostile text, sizes, colours -----------------------------------------------------------------


def test_documents_are_not_rendered_as_markup(open_page: Open) -> None:
    page = open_page()
    _search(page, "Text with markup <script>alert(1)</script>")
    hostile = page.locator('.right .hit[data-id^="<script>"]')
    assert hostile.count() == 1
    assert "<script>" in hostile.inner_text()
    hostile.click()
    page.wait_for_selector(".drawer .text")
    assert "onerror" in page.inner_text(".drawer")
    page.keyboard.press("Escape")
    page.click(".map summary")
    page.wait_for_selector(".points")
    page.goto(page.url.split("#")[0] + "#/evaluation")
    page.fill("#labelled", json.dumps({"query": SCRIPT, "relevant": [SCRIPT, f"not {SCRIPT}"]}))
    page.click("form.form button")
    page.click(".changes summary")
    expect(page.locator(".pair section").first).to_contain_text("Not among the first")
    assert "onerror" in page.locator(".changes").inner_text()
    for view in ("", *VIEWS):  # "" is the evaluation, already open
        if view:
            page.goto(page.url.split("#")[0] + view)
        page.wait_for_load_state("networkidle")
        assert (
            page.evaluate("document.querySelectorAll('main img, main script, aside img').length")
            == 0
        )
        assert "owned" not in page.title()
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>'; return ''; } catch (e) { return e.name; } }"
    )
    assert refused == "TypeError"  # Trusted Types refuse it even for our own code


def test_the_page_is_small_and_fits_a_phone_screen(open_page: Open) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    loaded = page.evaluate(
        "performance.getEntriesByType('resource')"
        ".reduce((sum, one) => sum + one.encodedBodySize, 0)"
    )
    assert 20_000 < loaded < 300_000
    for view in VIEWS:
        page.goto(page.url.split("#")[0] + view)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view


def test_text_has_the_contrast_of_wcag_aa_in_both_themes(open_page: Open) -> None:
    theme = "document.documentElement.dataset.theme"
    assert open_page(color_scheme="dark").evaluate(theme) == "dark"
    page = open_page(color_scheme="light")
    for view in VIEWS:
        page.goto(page.url.split("#")[0] + view)
        page.wait_for_load_state("networkidle")
        if "q=" in view:
            page.wait_for_selector(".right .hit")
            page.locator(".right .hit").first.click()
            page.wait_for_selector(".drawer .text")
            page.wait_for_timeout(300)  # the drawer fades in
        for scheme in ("light", "dark"):
            assert page.evaluate(theme) == scheme
            assert page.evaluate(_TOO_FAINT) == [], (view, scheme)
            page.locator("#theme").dispatch_event("click")  # the drawer may cover it
        page.keyboard.press("Escape")


_TOO_FAINT = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((value) => value / 255)
        .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parts(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!own || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const [one, other] = [light(parts(style.color)), light(ground(element))];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (ratio < 4.5) found.push([element.className || element.tagName, ratio.toFixed(2)]);
    }
    return found;
}"""
