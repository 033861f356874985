// What language models have written so far: progress, money, failures, the newest replies.

import { call } from "./api.js";
import { count, h, table } from "./dom.js";
import { openDetail } from "./detail.js";

const EVERY = 3000;

export function generationView(main) {
  const body = h("div", {}, h("p.muted", { role: "status" }, "Reading …"));
  main.append(h("h1", {}, "Generation"), body);
  let timer = 0;
  let before = "";
  const update = async () => {
    try {
      const [about, found] = await Promise.all([call("/info"), call("/explore/generation")]);
      const now = JSON.stringify(found);
      if (now !== before) body.replaceChildren(...content(about, found));
      before = now;
    } catch (error) {
      body.replaceChildren(h("p.error", { role: "alert" }, error.message));
      before = "";
    }
    timer = setTimeout(update, EVERY);
  };
  update();
  return () => clearTimeout(timer);
}

function content(about, { models, failures, newest, waiting }) {
  if (!models.length && !failures.length) {
    return [h("p", {}, "No language model has written queries for this collection."),
      h("p.muted", {}, "Start one with strop queries INDEX --style simple --lm MODEL; this page follows it.")];
  }
  const number = (value) => value.toLocaleString("en");
  return [
    waiting ? h("p", {}, `${count(waiting, "text")} wait to be embedded.`) : null,
    h("h2", {}, "Replies"),
    table(["Model", "Replies", "Documents", "Tokens in", "Tokens out", "Cost", "Newest"], models.map((row) => [
      row.model || row.lm, number(row.replies), `${number(row.documents)} of ${number(about.documents)}`,
      number(row.input_tokens), number(row.output_tokens),
      row.dollars === null ? "unknown price" : `$${row.dollars.toFixed(row.dollars < 1 ? 4 : 2)}`,
      new Date(row.last).toLocaleString()])),
    h("h2", {}, "Failures"),
    failures.length ? table(["Message", "Times", "Newest"], failures.map((row) => [row.error, number(row.count), new Date(row.last).toLocaleString()]))
      : h("p.muted", {}, "None."),
    h("h2", {}, "Newest replies"),
    h("ul.replies", {}, newest.map((row) => h("li", {},
      h("button.link", { type: "button", onclick: () => openDetail(row.id) }, row.id), h("pre", {}, row.text)))),
  ].filter(Boolean);
}
