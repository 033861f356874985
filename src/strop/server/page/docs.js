// The API, read from the OpenAPI document of this server; requests can be tried.

import { h } from "./dom.js";

let schemas = {};

export function docsView(main) {
  main.append(h("h1", {}, "API"),
    h("p", {}, "Requests and replies are JSON. Where the server wants a key, send it as ",
      h("code", {}, "Authorization: Bearer KEY"), ". The same as a document for programs: ",
      h("a", { href: "/openapi.json" }, "openapi.json"), "."));
  fetch("/openapi.json").then((reply) => reply.json()).then((described) => {
    schemas = described.components.schemas;
    const groups = new Map();
    for (const [path, methods] of Object.entries(described.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        const [tag] = operation.tags;
        groups.set(tag, [...(groups.get(tag) ?? []), { path, method: method.toUpperCase(), operation }]);
      }
    }
    for (const [tag, operations] of groups) main.append(h("h2", {}, tag), ...operations.map(section));
  });
}

function section({ path, method, operation }) {
  const body = operation.requestBody?.content["application/json"].schema;
  const reply = operation.responses["200"].content?.["application/json"]?.schema;
  const errors = Object.entries(operation.responses).filter(([status]) => status >= "400");
  return h("details.operation", {},
    h("summary", {}, h(`code.method.${method.toLowerCase()}`, {}, method), h("code.path", {}, path),
      h("span", {}, operation.summary),
      operation["x-access"] === "read" ? null : h("span.access", {}, operation["x-access"] === "write" ? "write key" : "no key")),
    body ? [h("h3", {}, "Request"), fields(body)] : null,
    reply ? [h("h3", {}, "Reply"), fields(reply)] : null,
    h("h3", {}, "Errors"),
    h("ul.errors", {}, errors.map(([status, { description }]) => h("li", {}, h("code", {}, status), ` ${description}`))),
    tryIt(path, method, body));
}

function resolve(schema) {
  return schema.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
}

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.type ?? "any";
}

function fields(schema) {
  const { properties = {}, required = [], description } = resolve(schema);
  return [description ? h("p.muted", {}, description) : null,
    h("dl.fields", {}, Object.entries(properties).flatMap(([name, of]) => [
      h("dt", {}, h("code", {}, name), required.includes(name) ? h("small", {}, " required") : null),
      h("dd", {}, h("span.type", {}, typeOf(of)), limits(of), of.description ? ` ${of.description}` : null)]))];
}

function limits(schema) {
  const parts = [["minimum", "from"], ["maximum", "to"], ["maxItems", "at most"]].filter(([key]) => schema[key] !== undefined).map(([key, word]) => `${word} ${schema[key].toLocaleString("en")}`);
  return parts.length ? h("small.muted", {}, ` ${parts.join(" ")}`) : null;
}

function example(schema) {
  const { properties = {}, required = [] } = resolve(schema);
  const chosen = Object.entries(properties).filter(([name, of]) => required.includes(name) || name === "query" || of.examples);
  return Object.fromEntries(chosen.filter(([name]) => name !== "where").map(([name, of]) => [name, of.examples?.[0] ?? sample(of)]));
}

function sample(schema) {
  const of = schema.anyOf ? schema.anyOf[0] : resolve(schema);
  if (of.type === "array") return [of.items?.$ref ? example(of.items) : "text"];
  return { integer: 1, number: 1, object: {}, boolean: false }[of.type] ?? "text";
}

function tryIt(path, method, body) {
  const address = h("input", { type: "text", value: path, "aria-label": "Path", spellcheck: "false" });
  const text = body ? h("textarea", { rows: 6, "aria-label": "Body", spellcheck: "false" }) : null;
  if (text) text.value = JSON.stringify(example(body), null, 2);
  const out = h("pre.out", { role: "status" });
  const send = async () => {
    const key = sessionStorage.getItem("strop-key");
    try {
      const reply = await fetch(address.value, {
        method, body: text?.value,
        headers: { ...(text ? { "content-type": "application/json" } : {}), ...(key ? { authorization: `Bearer ${key}` } : {}) },
      });
      const found = await reply.text();
      let shown = found;
      try {
        shown = JSON.stringify(JSON.parse(found), null, 2);
      } catch { /* metrics are text */ }
      out.textContent = `${reply.status}\n${shown.slice(0, 20000)}`;
    } catch (error) {
      out.textContent = error.message;
    }
  };
  return h("div.try", {}, h("h3", {}, "Try it"), address, text, h("button", { type: "button", onclick: send }, "Send"), out);
}
