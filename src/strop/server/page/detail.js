// One document: its text with the passage marked, what its queries weigh, its references.

import { call } from "./api.js";
import { h, meter } from "./dom.js";

const SHOWN = 12;
let opener = null;

export async function openDetail(id, query, method) {
  const drawer = document.getElementById("drawer");
  if (drawer.hidden) opener = document.activeElement;
  const body = h("div.body", {}, h("p.muted", {}, "Loading …"));
  const close = h("button.quiet.close", { type: "button", onclick: closeDetail, "aria-label": "Close" }, "Close");
  drawer.replaceChildren(close, body);
  drawer.hidden = false;
  close.focus();
  try {
    const found = await call("/explore/document", { id, ...(query ? { query, method } : {}) });
    body.replaceChildren(...content(found, query, method));
  } catch (error) {
    body.replaceChildren(h("p.error", { role: "alert" }, error.message));
  }
}

export function closeDetail() {
  const drawer = document.getElementById("drawer");
  if (!drawer || drawer.hidden) return;
  drawer.hidden = true;
  drawer.replaceChildren();
  if (opener?.isConnected) opener.focus();
}

function content({ document: one, explanation, queries, references }, query, method) {
  const parts = [
    h("h2", {}, one.title || one.id),
    one.title && one.title !== one.id ? h("p.id.muted", {}, one.id) : null,
    ...metadata(one.metadata),
  ].filter(Boolean);
  // A title says what a document is about; the passage is what answers.
  const matched = (explanation?.queries ?? []).filter((part) => part.text !== one.title);
  const best = matched.reduce((most, part) => (!most || part.similarity > most.similarity ? part : most), null);
  if (explanation) parts.push(...scores(explanation));
  parts.push(h("h3", {}, "Text"), h("div.text", {}, marked(one.text, best?.text)));
  if (!explanation) parts.push(...stored(queries));
  if (references.length) {
    parts.push(h("h3", {}, "References"),
      h("p.muted", {}, "Similar documents, and the stored query that best tells this one from each."),
      h("ul.references", {}, references.map((other) => h("li", {},
        h("button.link", { type: "button", onclick: () => openDetail(other.id, query, method) }, other.title),
        h("span.number", { title: "cosine to this document" }, other.similarity.toFixed(3)),
        other.query ? h("q", {}, other.query) : null))));
  }
  return parts;
}

function metadata(values) {
  const rows = Object.entries(values);
  if (!rows.length) return [];
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return [h("dl.metadata", {}, rows.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, shown(value))]))];
}

function scores({ plain, score, words, queries }) {
  const moved = queries.reduce((total, part) => total + part.moved, 0);
  const most = Math.max(...queries.map((part) => part.weight), 1e-9);
  return [
    h("h3", {}, "Score"),
    h("p.sum", {}, term("plain", plain), "+", term("queries", moved), "+", term("words", words), "=", term("score", score)),
    h("h3", {}, "What it is matched by"),
    h("ol.parts", {}, [...queries].sort((a, b) => b.weight - a.weight).slice(0, SHOWN).map((part) => h("li", {},
      h("span.part", {}, part.text),
      h("span.numbers", {},
        meter(part.weight / most, `weight ${part.weight.toFixed(3)}`),
        h("span.number", {}, percentOf(part.weight)),
        h(`span.number.${Math.abs(part.moved) < 0.0005 ? "same" : part.moved < 0 ? "down" : "up"}`, { title: "change of the score" }, signed(part.moved)),
        h("span.set", {}, part.set))))),
    queries.length > SHOWN ? h("p.muted", {}, `and ${queries.length - SHOWN} more`) : null,
  ].filter(Boolean);
}

const term = (name, value) => h("span.term", {}, h("b", {}, value.toFixed(3)), h("small", {}, name));
const percentOf = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
const signed = (value) => `${Math.abs(value) < 0.0005 ? "" : value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

function stored(queries) {
  return Object.entries(queries).filter(([, texts]) => texts.length).flatMap(([name, texts]) => [
    h("h3", {}, name), h("ul.stored", {}, texts.slice(0, 40).map((text) => h("li", {}, text)))]);
}

/** The text, with the passage marked where it stands; white space may differ. */
function marked(text, passage) {
  if (!passage) return [text];
  const words = passage.trim().split(/\s+/).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const match = new RegExp(words.join("\\s+")).exec(text);
  if (!match) return [text];
  const end = match.index + match[0].length;
  return [text.slice(0, match.index), h("mark", {}, match[0]), text.slice(end)];
}
