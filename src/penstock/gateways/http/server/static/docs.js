// Draws the OpenAPI document. Text goes in as text, never as markup.
"use strict";

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

let api;

// What stands beside a reference says more about what it refers to.
function resolve(schema) {
  if (!schema || !schema.$ref) return schema || {};
  const { $ref, ...more } = schema;
  const whole = api.components.schemas[$ref.split("/").pop()];
  const properties = whole.properties && { ...whole.properties };
  for (const [name, part] of Object.entries(more.properties || {})) properties[name] = { ...part, examples: examplesOf(whole.properties[name]) };
  return { ...whole, ...more, properties };
}

const examplesOf = (schema) => schema.examples || (schema.anyOf || []).map((option) => option.examples).find(Boolean);

const named = (schema) => (schema && schema.$ref ? schema.$ref.split("/").pop() : null);

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return named(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const options = schema.anyOf || schema.oneOf;
  if (options) return options.map(typeOf).join(" | ");
  if (schema.type === "array") return `[${typeOf(schema.items) || "..."}]`;
  if (schema.type === "object" && schema.additionalProperties) return `{name: ${typeOf(schema.additionalProperties)}}`;
  return schema.format ? `${schema.type} (${schema.format})` : schema.type || "any";
}

function limits(schema) {
  const words = [];
  if (schema.minimum !== undefined) words.push(`at least ${schema.minimum}`);
  if (schema.maximum !== undefined) words.push(`at most ${schema.maximum}`);
  if (schema.maxLength !== undefined) words.push(`at most ${schema.maxLength} characters`);
  return words.join(", ");
}

function fields(schema) {
  const whole = resolve(schema);
  if (!whole.properties) return make("p", {}, make("code", { textContent: typeOf(schema) }));
  const rows = Object.entries(whole.properties).map(([name, part]) =>
    make("tr", {},
      make("td", { textContent: name + ((whole.required || []).includes(name) ? " *" : "") }),
      make("td", {}, make("code", { textContent: typeOf(part) })),
      make("td", { textContent: [part.description, limits(part)].filter(Boolean).join("; ") })));
  return make("div", {}, whole.description ? make("p", { textContent: whole.description }) : null,
    make("table", {}, make("tbody", {}, ...rows)));
}

function contents(content) {
  return Object.entries(content || {}).map(([type, { schema, "x-item-schema": item }]) => {
    const shown = item || schema;
    const options = (shown && (shown.anyOf || shown.oneOf)) || [shown];
    return make("div", {}, make("p", {}, make("code", { textContent: type }), item ? ", each piece:" : ""),
      ...options.map((option) => make("div", {}, named(option) ? make("strong", { textContent: named(option) }) : null, fields(option))));
  });
}

function example(schema, depth = 0) {
  const whole = resolve(schema);
  if (depth > 4) return null;
  if (whole.examples) return whole.examples[0];
  if (whole.const !== undefined) return whole.const;
  if (whole.enum) return whole.enum[0];
  const options = whole.anyOf || whole.oneOf;
  if (options) return example(options[0], depth + 1);
  if (whole.properties) {
    const wanted = (whole.required || []).length ? whole.required : Object.keys(whole.properties).slice(0, 2);
    return Object.fromEntries(wanted.map((name) => [name, example(whole.properties[name], depth + 1)]));
  }
  if (whole.type === "array") return [example(whole.items, depth + 1)];
  return { string: "text", integer: Math.max(0, whole.minimum || 0), number: 0, boolean: true, object: {} }[whole.type] ?? null;
}

function tryIt(method, path, operation) {
  const inputs = (operation.parameters || []).filter((parameter) => parameter.in !== "header").map((parameter) => {
    const input = make("input", { name: parameter.name, required: parameter.required });
    return { parameter, input, label: make("label", {}, `${parameter.name}${parameter.required ? " *" : ""}`, input) };
  });
  const json = operation.requestBody && operation.requestBody.content["application/json"];
  const body = json ? make("textarea", { spellcheck: false, value: JSON.stringify(example(json.schema), null, 2) }) : null;
  const output = make("pre", { hidden: true });
  const stop = make("button", { type: "button", textContent: "Stop", hidden: true });
  const form = make("form", {}, ...inputs.map(({ label }) => label),
    body ? make("label", {}, "body", body) : null,
    make("button", { textContent: "Send" }), stop, output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    let target = path;
    for (const { parameter, input } of inputs) {
      if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    if ([...query].length) target += `?${query}`;
    const controller = new AbortController();
    stop.hidden = output.hidden = false;
    stop.onclick = () => controller.abort();
    output.textContent = `${method.toUpperCase()} ${target}\n`;
    try {
      const headers = body ? { "Content-Type": "application/json" } : {};
      const answer = await fetch(target, { method: method.toUpperCase(), headers, body: body ? body.value : undefined, signal: controller.signal });
      output.textContent += `${answer.status} ${answer.statusText}, request ${answer.headers.get("x-request-id")}\n\n`;
      const reader = answer.body ? answer.body.pipeThrough(new TextDecoderStream()).getReader() : null;
      let text = "";
      for (let piece; reader && !(piece = await reader.read()).done;) {
        text += piece.value;
        output.append(piece.value);
      }
      if (text.startsWith("{") && !text.trim().includes("\n")) {
        output.textContent = output.textContent.replace(text, JSON.stringify(JSON.parse(text), null, 2));
      }
    } catch (error) {
      output.append(error.name === "AbortError" ? "\n(stopped)" : `\n${error}`);
    } finally {
      stop.hidden = true;
    }
  });
  return make("details", {}, make("summary", { textContent: "Try it" }), make("div", {}, form));
}

function call(method, path, operation) {
  const parameters = (operation.parameters || []).map((parameter) => make("tr", {},
    make("td", { textContent: parameter.name + (parameter.required ? " *" : "") }),
    make("td", {}, make("code", { textContent: typeOf(parameter.schema) })),
    make("td", { textContent: [`in the ${parameter.in}`, parameter.description, limits(parameter.schema)].filter(Boolean).join("; ") })));
  const answers = Object.entries(operation.responses).map(([status, answer]) =>
    make("details", {}, make("summary", {}, make("strong", { textContent: status }), make("span", { className: "what", textContent: answer.description })),
      make("div", {}, ...contents(answer.content))));
  const details = make("details", { id: operation.operationId },
    make("summary", {},
      make("span", { className: `method ${method}`, textContent: method.toUpperCase() }),
      make("span", { className: "path", textContent: path }),
      make("span", { className: "what", textContent: operation.summary })),
    make("div", {},
      operation.description ? make("p", { textContent: operation.description }) : null,
      parameters.length ? make("h4", { textContent: "Parameters" }) : null,
      parameters.length ? make("table", {}, make("tbody", {}, ...parameters)) : null,
      operation.requestBody ? make("h4", { textContent: "Body" }) : null,
      ...contents(operation.requestBody && operation.requestBody.content),
      make("h4", { textContent: "Answers" }), ...answers,
      tryIt(method, path, operation)));
  details.dataset.text = `${method} ${path} ${operation.summary}`.toLowerCase();
  return details;
}

async function draw() {
  api = await (await fetch("/openapi.json")).json();
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("about").textContent = api.info.description;
  const main = document.getElementById("calls");
  for (const { name } of api.tags) {
    const section = make("section", { id: `tag-${name}` }, make("h2", { textContent: name }));
    for (const [path, item] of Object.entries(api.paths)) {
      for (const [method, operation] of Object.entries(item)) {
        if (operation.tags.includes(name)) section.append(call(method, path, operation));
      }
    }
    main.append(section);
    document.getElementById("tags").append(make("a", { href: `#tag-${name}`, textContent: name }));
  }
  const search = document.getElementById("search");
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const section of main.querySelectorAll("section")) {
      let any = false;
      for (const details of section.querySelectorAll(":scope > details")) {
        details.hidden = !details.dataset.text.includes(wanted);
        any = any || !details.hidden;
      }
      section.hidden = !any;
    }
  });
  const chosen = document.getElementById(location.hash.slice(1));
  if (chosen && chosen.tagName === "DETAILS") chosen.open = true;
}

draw().catch((error) => document.getElementById("calls").append(`The document could not be read: ${error}`));
