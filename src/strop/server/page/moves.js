// The lines between two rankings: which document went where.

import { svg } from "./dom.js";

export function drawMoves() {
  const element = svg("svg", { class: "moves", "aria-hidden": "true" });

  function draw(left, right) {
    const box = element.getBoundingClientRect();
    if (!box.width) return;
    const places = (list) => new Map([...list.querySelectorAll(".hit")].map((button, at) => {
      const of = button.getBoundingClientRect();
      return [button.dataset.id, { at, y: of.top + of.height / 2 - box.top }];
    }));
    const [before, after] = [places(left), places(right)];
    const lines = [];
    for (const [id, { at, y }] of after) {
      const from = before.get(id);
      const kind = !from || from.at > at ? "up" : from.at < at ? "down" : "same";
      const start = from ? from.y : box.height;
      lines.push(curve(start, y, box.width, `${kind}${from ? "" : " new"}`));
    }
    for (const [id, { y }] of before) {
      if (!after.has(id)) lines.push(curve(y, box.height, box.width, "down new"));
    }
    element.replaceChildren(...lines);
  }

  function curve(y1, y2, width, kind) {
    const middle = width / 2;
    return svg("path", { d: `M0 ${y1}C${middle} ${y1} ${middle} ${y2} ${width} ${y2}`, class: kind });
  }

  return { element, draw };
}
