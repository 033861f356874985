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
    const boxes = [];
    const isFree = (left, top, width) => {
      const hit = boxes.some((box) => left < box.left + box.width && box.left < left + width && Math.abs(top - box.top) < 17);
      if (!hit) boxes.push({ left, top, width });
      return !hit;
    };
    const marks = points.map((point) => {
      const mark = svg("g", { class: `point ${point.kind}`, transform: `translate(${x(point.x)} ${y(point.y)})` });
      const title = svg("title");
      title.textContent = point.label;
      mark.append(title, point.kind === "query"
        ? svg("path", { d: "M0 -9 9 0 0 9 -9 0Z" })
        : svg("circle", { r: { document: 6, reference: 5, sentence: 2.5 }[point.kind] }));
      const text = point.label.length > 34 ? `${point.label.slice(0, 33)}…` : point.label;
      const width = 7.5 * text.length + 14;
      const flipped = x(point.x) > WIDTH * 0.75;
      const named = point.kind === "query" || point.kind === "document";
      if (named && isFree(x(point.x) - (flipped ? width : 0), y(point.y), width)) {
        const label = svg("text", { x: flipped ? -11 : 11, y: 4, "text-anchor": flipped ? "end" : "start" });
        label.textContent = text;
        mark.append(label);
      }
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
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "points", role: "group", "aria-label": "Map" }, ...links, ...marks),
      h("p.legend", {}, Object.entries(NAMES).map(([kind, name]) => h(`span.key.${kind}`, {}, name)),
        h("span.muted", {}, `two principal components: ${percent(explained[0] + (explained[1] ?? 0))} of the spread`)));
  } catch (error) {
    into.replaceChildren(h("p.error", { role: "alert" }, error.message));
  }
}
