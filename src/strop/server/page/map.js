// The neighbourhood of a query in the plane: documents, their sentences, their references.

import { call } from "./api.js";
import { h, percent, svg } from "./dom.js";

const WIDTH = 960;
const HEIGHT = 460;
const EDGE = 36;
const NAMES = { query: "query", document: "documents", sentence: "their sentences and queries", reference: "references" };

export async function drawMap(into, query, ids, open) {
  try {
    const { points, explained } = await call("/explore/map", { query, ids });
    const scale = (key, size) => {
      const values = points.map((point) => point[key]);
      const [least, most] = [Math.min(...values), Math.max(...values)];
      return (value) => EDGE + ((value - least) / (most - least || 1)) * (size - 2 * EDGE);
    };
    const [x, y] = [scale("x", WIDTH), scale("y", HEIGHT)];
    const own = new Map(points.filter((point) => point.kind === "document").map((point) => [point.id, point]));
    const links = points.filter((point) => point.kind === "sentence" && own.has(point.id)).map((point) => {
      const to = own.get(point.id);
      return svg("line", { x1: x(point.x), y1: y(point.y), x2: x(to.x), y2: y(to.y), class: "link" });
    });
    // A label is drawn where it covers no other label and no mark, right of its own or left of it.
    const boxes = points.filter((point) => point.kind !== "sentence")
      .map((point) => ({ point, left: x(point.x) - 8, top: y(point.y), width: 16 }));
    const size = matchMedia("(max-width: 46rem)").matches ? 1.85 : 1; // as in style.css
    const longest = Math.round(34 / size);
    const labels = [];
    const place = (point, text) => {
      const width = 7.5 * size * text.length + 14;
      const [at, top] = [x(point.x), y(point.y)];
      const left = [at + 9, at - 9 - width].find((start) => start > 0 && start + width < WIDTH && !boxes.some((box) =>
        box.point !== point && start < box.left + box.width && box.left < start + width && Math.abs(top - box.top) < 17 * size));
      if (left === undefined) return;
      boxes.push({ left, top, width });
      const label = svg("text", { class: point.kind, x: left < at ? at - 11 : at + 11, y: top + 4, "text-anchor": left < at ? "end" : "start" });
      label.textContent = text;
      labels.push(label);
    };
    const marks = points.map((point) => {
      const mark = svg("g", { class: `point ${point.kind}`, transform: `translate(${x(point.x)} ${y(point.y)})` });
      const title = svg("title");
      title.textContent = point.label;
      mark.append(title, point.kind === "query"
        ? svg("path", { d: "M0 -9 9 0 0 9 -9 0Z" })
        : svg("circle", { r: { document: 6, reference: 5, sentence: 2.5 }[point.kind] }));
      if (point.kind === "query" || point.kind === "document") place(point, point.label.length > longest ? `${point.label.slice(0, longest - 1)}…` : point.label);
      if (point.kind === "document" || point.kind === "reference") {
        mark.setAttribute("tabindex", "0");
        mark.setAttribute("role", "button");
        mark.setAttribute("aria-label", point.label);
        mark.addEventListener("click", () => open(point.id));
        mark.addEventListener("keydown", (event) => event.key === "Enter" && open(point.id));
      }
      return mark;
    });
    into.replaceChildren(
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "points", role: "group", "aria-label": "Map" }, ...links, ...marks, ...labels),
      h("p.legend", {}, Object.entries(NAMES).map(([kind, name]) => h(`span.key.${kind}`, {}, name)),
        h("span.muted", {}, `two principal components: ${percent(explained[0] + (explained[1] ?? 0))} of the spread`)));
  } catch (error) {
    into.replaceChildren(h("p.error", { role: "alert" }, error.message));
  }
}
