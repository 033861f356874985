// What language models have written so far: progress, money, failures, the newest replies.

import { call } from "./api.js";
import { count, h, meter, percent, table } from "./dom.js";
import { openDetail } from "./detail.js";

const EVERY = 2000;

export function generationView(main) {
  const body = h("div", {}, h("p.muted", { role: "status" }, "Reading …"));
  main.append(h("h1", {}, "Generation"), body);
  let timer = 0;
  let before = "";
  let polls = [];
  const update = async () => {
    try {
      const [about, found] = await Promise.all([call("/info"), call("/explore/generation")]);
      polls = [...polls.slice(-15), { at: performance.now(), replies: found.models.reduce((sum, row) => sum + row.replies, 0) }];
      const now = JSON.stringify([found, speed(polls)]);
      if (now !== before) body.replaceChildren(...content(about, found, speed(polls)));
      before = now;
    } catch (error) {
      body.replaceChildren(h("p.error", { role: "alert" }, error.message));
      before = "";
      if (error.status === 404) return; // a published copy has none, now or later
    }
    timer = setTimeout(update, EVERY);
  };
  update();
  return () => clearTimeout(timer);
}

/** Replies a minute since this page looks, of the last half minute. */
function speed(polls) {
  const [first, last] = [polls[0], polls.at(-1)];
  return last.at > first.at ? Math.round(60000 * (last.replies - first.replies) / (last.at - first.at)) : 0;
}

function content(about, { models, failures, newest, waiting }, perMinute) {
  if (!models.length && !failures.length) {
    return [h("p", {}, "No language model has written queries for this collection."),
      h("p.muted", {}, "Start one with strop queries INDEX --style simple --lm MODEL; this page follows it.")];
  }
  const number = (value) => value.toLocaleString("en");
  const time = (value) => new Date(value).toLocaleString();
  const share = (row) => row.documents / Math.max(about.documents, 1);
  return [
    h("p", { role: "status" }, perMinute ? `A run is under way: ${number(perMinute)} replies a minute.` : "No run is under way.",
      waiting ? ` ${count(waiting, "text")} wait to be embedded.` : ""),
    h("h2", {}, "Replies"),
    table(["Model", "Documents", "Cost", "Replies", "Tokens in", "Tokens out", "Newest"], models.map((row) => [
      row.model || row.lm,
      h("span.cell", {}, meter(share(row), percent(share(row))), `${number(row.documents)} of ${number(about.documents)}`),
      row.dollars === null ? "price unknown" : `$${row.dollars.toFixed(row.dollars < 1 ? 4 : 2)}`,
      number(row.replies), number(row.input_tokens), number(row.output_tokens), time(row.last)])),
    h("h2", {}, "Failures"),
    failures.length ? table(["Message", "Times", "Newest"], failures.map((row) => [row.error, number(row.count), time(row.last)]))
      : h("p.muted", {}, "None."),
    h("h2", {}, "Newest replies"),
    h("ul.replies", {}, newest.map((row) => h("li", {},
      h("button.link", { type: "button", onclick: () => openDetail(row.id) }, row.id), h("pre", {}, row.text)))),
  ];
}
