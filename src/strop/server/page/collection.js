// What the collection holds: sets and their coverage, hubs, near-duplicates, documents left out.

import { call } from "./api.js";
import { bytes, count, h, meter, percent, table } from "./dom.js";
import { openDetail } from "./detail.js";

const COPY = "A published copy does not hold them: serve its index folder.";

export function collectionView(main) {
  const body = h("div", {}, h("p.muted", { role: "status" }, "Reading the collection …"));
  main.append(h("h1", {}, "Collection"), body);
  Promise.all([call("/info"), call("/explore/collection")])
    .then(([about, found]) => body.replaceChildren(...content(about, found)))
    .catch((error) => body.replaceChildren(h("p.error", { role: "alert" }, error.message)));
}

const open = (id) => h("button.link", { type: "button", onclick: () => openDetail(id) }, id);

function content(about, found) {
  const { documents } = found;
  return [
    h("dl.facts", {},
      fact("Documents", documents.toLocaleString("en")),
      fact("Embedder", `${about.embedder?.name ?? "–"}, ${about.dim} dimensions`),
      fact("Default method", about.default_method.replaceAll(":", ", ").replaceAll("=", " ")),
      fact("On disk", about.sizes ? bytes(about.sizes.total) : "–"),
      fact("Waiting for vectors", (about.waiting ?? 0).toLocaleString("en"))),
    h("h2", {}, "Query sets"),
    found.sets.length ? table(
      ["Set", "Source", "Queries", "Coverage", "Without queries", "Contrast rate", "Vectors"],
      found.sets.map((set) => [
        set.name, set.source, set.queries.toLocaleString("en"),
        h("span.cell", {}, meter(set.documents / Math.max(documents, 1), "share of documents with queries"),
          percent(set.documents / Math.max(documents, 1))),
        (documents - set.documents).toLocaleString("en"), percent(set.contrast ?? null), set.bytes === undefined ? "–" : bytes(set.bytes)]))
      : h("p.muted", {}, "None: searches are plain. Make one with strop queries INDEX --style sentences."),
    h("p.note.muted", {}, "Contrast rate: the share of queries that are nearer to their own document than to all its references."),
    h("h2", {}, "Hubs"),
    h("p.muted", {}, `Documents that are among the ten nearest of many others, of ${count(found.looked_at, "document")} with neighbours.`),
    list(found.hubs.map((hub) => h("li", {}, open(hub.id), h("span.number", {}, `near ${hub.neighbor_of}`))), about.writable ? "No neighbours are stored: strop references INDEX computes them." : COPY),
    h("h2", {}, "Near-duplicates"),
    list(found.alike.map((pair) => h("li", {}, open(pair.id), " and ", open(pair.other), h("span.number", {}, pair.similarity.toFixed(3)))), about.writable ? "No two documents have a cosine of 0.98 or more." : COPY),
    h("h2", {}, "On their own"),
    h("p.muted", {}, "Documents whose nearest neighbour is farthest away."),
    list(found.isolated.map((id) => h("li", {}, open(id))), about.writable ? "–" : COPY),
    h("h2", {}, "Metadata fields"),
    found.fields.length ? h("p.tags", {}, found.fields.map((name) => h("code", {}, name))) : h("p.muted", {}, "None."),
  ];
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
const list = (items, none) => (items.length ? h("ul.rows", {}, items) : h("p.muted", {}, none));
