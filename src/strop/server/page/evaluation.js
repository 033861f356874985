// Methods side by side on labelled queries: means, what each query gained or lost, both rankings.

import { call } from "./api.js";
import { openDetail } from "./detail.js";
import { count, h, table } from "./dom.js";

const EXAMPLE = `{"query": "copy a folder", "relevant": ["shutil.copytree"]}`;
const SHOWN = 50;
const DEPTH = 10;

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
      status.textContent = count(report.queries, "query").replace("querys", "queries");
      out.replaceChildren(...means(report, names));
      if (names.length > 1) out.append(...byQuery(report, queries, qrels, names));
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

function means(report, names) {
  const measures = Object.keys(report.results[names[0]]);
  const rows = names.map((name) => [name, ...measures.map((measure) => {
    const p = report.p_values[name]?.[measure];
    return h("span", { title: p === undefined ? "baseline" : `p ${p.toFixed(3)}` },
      (100 * report.results[name][measure]).toFixed(1), p !== undefined && p < 0.05 ? "*" : "");
  })]);
  return [h("h2", {}, "Means"), table(["Method", ...measures], rows),
    h("p.note.muted", {}, "* differs from the baseline (paired t-test with Holm's correction, p < 0.05).")];
}

/** Gains and losses by query of one method against the baseline; a query opens its two rankings. */
function byQuery(report, queries, qrels, names) {
  const [first, ...others] = names;
  const choice = (label, values) => h("select", { "aria-label": label, onchange: draw },
    values.map((value) => h("option", { value }, value)));
  const method = choice("Method", others);
  const measure = choice("Measure", Object.keys(report.results[first]));
  const tally = h("p.muted");
  const list = h("ul.rows.changes");
  method.value = others.at(-1);
  draw();
  return [h("h2", {}, "By query"), h("p.choices", {}, method, ` against ${first}, `, measure), tally, list];

  function draw() {
    const of = (name, id) => report.per_query[name][measure.value][id];
    const changes = Object.keys(queries).map((id) => ({ id, by: of(method.value, id) - of(first, id), now: of(method.value, id) }))
      .sort((a, b) => b.by - a.by);
    const better = changes.filter((one) => one.by > 0).length;
    const worse = changes.filter((one) => one.by < 0).length;
    tally.textContent = `${better} better, ${worse} worse, ${changes.length - better - worse} equal. A query opens both rankings.`;
    const shown = changes.length <= 2 * SHOWN ? changes : [...changes.slice(0, SHOWN), ...changes.slice(-SHOWN)];
    list.replaceChildren(...shown.map((one) => h("li", {}, row(one, method.value))));
  }

  function row({ id, by, now }, name) {
    const rankings = h("div.pair");
    const open = async (event) => {
      if (!event.currentTarget.open || rankings.childElementCount) return;
      const query = queries[id];
      try {
        const found = await Promise.all([first, name].map((one) => call("/search",
          { query, method: one, k: DEPTH, exact: true, fields: ["id", "title", "score"] })));
        rankings.append(...found.map(({ hits }, at) => ranking([first, name][at], hits, query, qrels[id])),
          h("p", {}, h("a", { href: `/#/?${new URLSearchParams({ q: query })}` }, "Open in Search")));
      } catch (error) {
        rankings.append(h("p.error", { role: "alert" }, error.message));
      }
    };
    const sign = by > 0 ? "up" : by < 0 ? "down" : "same";
    return h("details", { ontoggle: open },
      h("summary", {}, bar(by), h("span.query", {}, queries[id]),
        h(`span.number.${sign}`, { title: `now ${(100 * now).toFixed(1)}` },
          `${{ up: "+", down: "−", same: "±" }[sign]}${Math.abs(100 * by).toFixed(1)}`)),
      rankings);
  }
}

function ranking(name, hits, query, relevant) {
  const missed = Object.keys(relevant).filter((id) => !hits.some((hit) => hit.id === id));
  return h("section", {}, h("h3", {}, name),
    h("ol", {}, hits.map((hit) => h(`li${relevant[hit.id] ? ".relevant" : ""}`, {},
      h("button.link", { type: "button", onclick: () => openDetail(hit.id, query, name) }, hit.title || hit.id),
      relevant[hit.id] ? h("span.tag", {}, "relevant") : null))),
    missed.length ? h("p.muted", {}, `Not among the first ${DEPTH}: ${missed.join(", ")}`) : null);
}

function bar(by) {
  const fill = h(`span.fill.${by > 0 ? "up" : "down"}`);
  fill.style.inlineSize = `${Math.abs(by) * 50}%`;
  fill.style.insetInlineStart = by > 0 ? "50%" : `${50 - Math.abs(by) * 50}%`;
  return h("span.meter.both", { "aria-hidden": "true" }, fill);
}
