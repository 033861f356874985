// Search as you type: two rankings of the same candidates, scored here, and what moved between them.

import { call, floats } from "./api.js";
import { count, h } from "./dom.js";
import { openDetail } from "./detail.js";
import { rank } from "./formula.js";
import { readFilter } from "./filters.js";
import { drawMap } from "./map.js";
import { settingsPanel, specOf } from "./settings.js";
import { drawMoves } from "./moves.js";

const SHOWN = 12;
const PAUSE = 160;

export function searchView(main, given) {
  const state = { candidates: [], total: 0, query: given.get("q") ?? "", settings: null, request: null, timer: 0 };
  const query = h("input", {
    id: "query", type: "search", placeholder: "Ask the collection", autocomplete: "off",
    spellcheck: "false", "aria-label": "Query", value: state.query, oninput: later,
  });
  const where = h("input", {
    id: "where", type: "text", placeholder: "year>=2020, lang=en", autocomplete: "off",
    spellcheck: "false", "aria-label": "Filter on metadata", value: given.get("where") ?? "", oninput: later,
  });
  const status = h("p.status.muted", { role: "status" });
  const left = column("left", "Before");
  const right = column("right", "After");
  const lines = drawMoves();
  const rankings = h("section.rankings", { "aria-label": "Two rankings", hidden: true },
    left.section, lines.element, right.section);
  const plane = h("details.map", { hidden: true, ontoggle: () => plane.open && map() },
    h("summary", {}, "Map of the neighbourhood"), h("div.plane"));
  const empty = h("div.empty", {},
    h("p", {}, "Type a question. The left ranking is plain vector search; the right one is sharpened."),
    h("p.muted", {}, h("kbd", {}, "/"), " focuses the search, ", h("kbd", {}, "↑"), " ", h("kbd", {}, "↓"),
      " move between documents, ", h("kbd", {}, "Enter"), " opens one, ", h("kbd", {}, "Esc"), " closes it."));
  main.append(
    h("div.ask", {}, query, h("label.filter", {}, h("span", {}, "Filter"), where)),
    status, empty, rankings, plane);
  const resized = new ResizeObserver(() => lines.draw(left.list, right.list));
  resized.observe(rankings);
  query.focus();
  if (state.query) search();

  function column(side, name) {
    const list = h("ol.hits", { "aria-label": `${name}: ranking`, onkeydown: walk });
    const panel = h("div.panel");
    return { side, name, list, panel, section: h(`section.column.${side}`, {}, panel, list) };
  }

  function later() {
    clearTimeout(state.timer);
    state.timer = setTimeout(search, PAUSE);
  }

  async function search() {
    state.query = query.value.trim();
    const hash = new URLSearchParams(Object.entries({ q: state.query, where: where.value.trim() }).filter(([, text]) => text));
    history.replaceState({ typed: true }, "", `#/${hash.size ? `?${hash}` : ""}`);
    state.request?.abort();
    rankings.hidden = plane.hidden = !state.query;
    empty.hidden = Boolean(state.query);
    status.textContent = "";
    if (!state.query) return;
    state.request = new AbortController();
    try {
      const filter = readFilter(where.value);
      const body = { query: state.query, ...(filter ? { where: filter } : {}) };
      const began = performance.now();
      const reply = await call("/explore/candidates", body, state.request.signal);
      state.candidates = reply.candidates.map((one) => ({ ...one, s: floats(one.s), u: floats(one.u), g: floats(one.g) }));
      state.total = reply.total;
      if (!state.settings) prepare(reply.defaults);
      status.textContent = `${count(state.candidates.length, "candidate")} of ${count(state.total, "document")} in ${Math.round(performance.now() - began)} ms, ranked without feedback`;
      render();
      if (plane.open) map();
    } catch (error) {
      if (error.name === "AbortError") return;
      status.textContent = error.message;
      state.candidates = [];
      render();
    }
  }

  function prepare(defaults) {
    state.settings = {
      left: { alpha: 0, temperature: defaults.temperature, words: 0 },
      right: { ...defaults },
    };
    for (const one of [left, right]) {
      one.panel.append(settingsPanel(one.side, one.name, state.settings[one.side], state.settings.right, render));
    }
  }

  function render() {
    if (!state.settings) return;
    const before = rank(state.candidates, state.settings.left);
    const after = rank(state.candidates, state.settings.right);
    const place = (rows) => new Map(rows.map((row, at) => [row.candidate.document, at]));
    fill(left, before, place(after), false);
    fill(right, after, place(before), true);
    lines.draw(left.list, right.list);
  }

  function fill(into, rows, other, shows) {
    const focused = document.activeElement?.closest?.(".hits") === into.list ? document.activeElement.dataset.id : null;
    into.list.replaceChildren(...rows.slice(0, SHOWN).map((row, at) => hit(into.side, row, at, other.get(row.candidate.document), shows)));
    if (focused) into.list.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
    if (!rows.length) into.list.append(h("li.none.muted", {}, "No document matches."));
  }

  function hit(side, { candidate, score }, at, otherPlace, shows) {
    const by = otherPlace - at;
    const moved = !shows ? null : by === 0
      ? h("span.move.same", { title: "same rank" }, "=")
      : h(`span.move.${by > 0 ? "up" : "down"}`, { title: `was ${otherPlace + 1}` }, `${by > 0 ? "▲" : "▼"}${Math.abs(by)}`);
    const open = () => openDetail(candidate.id, state.query, specOf(state.settings[side]));
    return h("li", {},
      h("button.hit", { type: "button", "data-id": candidate.document, onclick: open },
        h("span.rank", {}, String(at + 1)),
        h("span.what", {},
          h("span.title", {}, candidate.title || candidate.id),
          h("span.snippet", {}, snippet(candidate))),
        h("span.side", {}, moved, h("span.score", {}, score.toFixed(3)))));
  }

  function snippet({ title, text }) {
    const folded = text.replace(/\s+/g, " ").trim();
    return folded.startsWith(title) ? folded.slice(title.length).trim() || folded : folded;
  }

  function walk(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const buttons = [...event.currentTarget.querySelectorAll(".hit")];
    const next = buttons[buttons.indexOf(document.activeElement) + by];
    event.preventDefault();
    if (next) next.focus();
    else if (by < 0) query.focus();
  }

  query.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      (right.list.querySelector(".hit") ?? query).focus();
    }
  });

  function map() {
    const ids = rank(state.candidates, state.settings.right).slice(0, 30).map((row) => row.candidate.id);
    if (ids.length) drawMap(plane.querySelector(".plane"), state.query, ids, (id) => openDetail(id, state.query, specOf(state.settings.right)));
  }

  return () => {
    clearTimeout(state.timer);
    state.request?.abort();
    resized.disconnect();
  };
}
