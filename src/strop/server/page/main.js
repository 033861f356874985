// The page: which view is shown, the theme, the keys of the keyboard.

import { call } from "./api.js";
import { count, h } from "./dom.js";
import { closeDetail } from "./detail.js";
import { collectionView } from "./collection.js";
import { docsView } from "./docs.js";
import { evaluationView } from "./evaluation.js";
import { generationView } from "./generation.js";
import { searchView } from "./search.js";
import { startTheme } from "./theme.js";

const VIEWS = {
  "": ["Search", searchView],
  collection: ["Collection", collectionView],
  evaluation: ["Evaluation", evaluationView],
  generation: ["Generation", generationView],
};
const DOCS = location.pathname === "/docs";

let leave = () => {};

function show() {
  const [path, given] = location.hash.replace(/^#\/?/, "").split("?");
  const name = path in VIEWS ? path : "";
  const [title, view] = DOCS ? ["API", docsView] : VIEWS[name];
  closeDetail();
  leave();
  for (const link of document.querySelectorAll("#nav a")) {
    const current = link.getAttribute("href") === (DOCS ? "/docs" : `/#/${name}`);
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} · strop`;
  const main = document.getElementById("main");
  main.replaceChildren();
  leave = view(main, new URLSearchParams(given || "")) || (() => {});
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "Escape") closeDetail();
  if (event.key === "/" && !typing) {
    const input = document.getElementById("query");
    if (input) {
      event.preventDefault();
      input.focus();
      input.select();
    }
  }
});

startTheme();
window.addEventListener("hashchange", (event) => {
  const pathOf = (url) => new URL(url).hash.split("?")[0];
  if (pathOf(event.oldURL) !== pathOf(event.newURL) || !history.state?.typed) show();
});
show();
call("/info").then((about) => {
  document.getElementById("about").append(
    h("b", {}, about.name), ` ${count(about.documents, "document")}`);
}).catch(() => {});
