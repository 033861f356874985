// Methods side by side on labelled queries: means, and what each query gained or lost.

import { call } from "./api.js";
import { h, table } from "./dom.js";

const EXAMPLE = `{"query": "copy a folder", "relevant": ["shutil.copytree"]}`;

export function evaluationView(main) {
  const labelled = h("textarea", { id: "labelled", rows: 8, spellcheck: "false", placeholder: EXAMPLE });
  const methods = h("input", { id: "methods", type: "text", value: "trad, sharp", spellcheck: "false" });
  const status = h("p.muted", { role: "status" });
  const out = h("div");
  const run = h("button", { type: "submit" }, "Evaluate");
  main.append(h("h1", {}, "Evaluation"),
    h("form.form", { onsubmit: evaluate },
      h("label", { for: "labelled" }, "Labelled queries, one JSON object a line"),
      labelled,
      h("label", { for: "methods" }, "Methods; the first is the baseline"),
      methods, run),
    status, out);

  async function evaluate(event) {
    event.preventDefault();
    run.disabled = true;
    status.textContent = "Scoring …";
    out.replaceChildren();
    try {
      const { queries, qrels } = read(labelled.value);
      const names = methods.value.split(",").map((name) => name.trim()).filter(Boolean);
      const report = await call("/eval", { queries, qrels, methods: names, per_query: true });
      status.textContent = `${report.queries} queries`;
      out.replaceChildren(...content(report, queries, names));
    } catch (error) {
      status.textContent = error.message;
    } finally {
      run.disabled = false;
    }
  }
}

function read(text) {
  const queries = {};
  const qrels = {};
  text.split("\n").filter((line) => line.trim()).forEach((line, at) => {
    let one;
    try {
      one = JSON.parse(line);
    } catch {
      throw new Error(`line ${at + 1} is not JSON: write ${EXAMPLE}`);
    }
    if (typeof one.query !== "string" || !Array.isArray(one.relevant)) throw new Error(`line ${at + 1}: write ${EXAMPLE}`);
    queries[String(at + 1)] = one.query;
    qrels[String(at + 1)] = Object.fromEntries(one.relevant.map((id) => [id, 1]));
  });
  return { queries, qrels };
}

function content(report, queries, names) {
  const measures = Object.keys(report.results[names[0]]);
  const rows = names.map((name) => [name, ...measures.map((measure) => {
    const p = report.p_values[name]?.[measure];
    return h("span", { title: p === undefined ? "baseline" : `p ${p.toFixed(3)}` },
      (100 * report.results[name][measure]).toFixed(1), p !== undefined && p < 0.05 ? "*" : "");
  })]);
  const parts = [h("h2", {}, "Means"), table(["Method", ...measures], rows),
    h("p.note.muted", {}, "* differs from the baseline (paired t-test with Holm's correction, p < 0.05).")];
  if (names.length > 1) {
    const [measure] = measures;
    const [first, last] = [names[0], names[names.length - 1]];
    const changes = Object.keys(queries).map((id) => ({
      query: queries[id], by: report.per_query[last][measure][id] - report.per_query[first][measure][id],
    })).sort((a, b) => b.by - a.by);
    const [up, down] = [changes.filter((one) => one.by > 0), changes.filter((one) => one.by < 0).reverse()];
    parts.push(h("h2", {}, `${last} against ${first}, ${measure} by query`),
      h("p.muted", {}, `${up.length} better, ${down.length} worse, ${changes.length - up.length - down.length} equal`),
      h("ul.rows.changes", {}, [...up.slice(0, 20), ...down.slice(0, 20)].map((one) => h("li", {},
        bar(one.by), h("a", { href: `#/?${new URLSearchParams({ q: one.query })}` }, one.query),
        h(`span.number.${one.by > 0 ? "up" : "down"}`, {}, `${one.by > 0 ? "+" : "−"}${Math.abs(100 * one.by).toFixed(1)}`)))));
  }
  return parts;
}

function bar(by) {
  const fill = h(`span.fill.${by > 0 ? "up" : "down"}`);
  fill.style.inlineSize = `${Math.abs(by) * 50}%`;
  fill.style.insetInlineStart = by > 0 ? "50%" : `${50 - Math.abs(by) * 50}%`;
  return h("span.meter.both", { "aria-hidden": "true" }, fill);
}
