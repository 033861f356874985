// Building elements. Text from the server only ever becomes text nodes and attribute values.

/** Make an element: h("p.muted", {title: "…"}, "text", child). */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const count = (number, noun) =>
  `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

export const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)}%`);

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) [size, at] = [size / 1000, at + 1];
  return `${at && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[at]}`;
}

/** A bar from 0 to 1, with its value written beside it for those who do not see it. */
export function meter(share, label, kind = "") {
  const fill = h(`span.fill${kind ? `.${kind}` : ""}`);
  fill.style.inlineSize = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span.meter", { role: "img", "aria-label": label, title: label }, fill);
}

export function table(head, rows) {
  return h("div.scroll", {},
    h("table", {},
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}
