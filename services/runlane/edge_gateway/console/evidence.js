/** What stands behind a row: arguments, results, changes, stored content, and the facts themselves. Drawn when opened. */

import { Problem } from "./api.js";
import { changeView, changedPair, diffView, isDiff } from "./diff.js";
import { copyButton, h, present } from "./dom.js";
import { parseJson, prettyJson } from "./json.js";
import { asText, block, inertString, inline } from "./text.js";

const MAX_FIELDS = 24;
const MAX_FACTS = 500;
const FIRST_BYTES = 1_000_000;
const TEXTUAL = /^(?:text\/|application\/(?:json|xml|javascript|x-ndjson|[\w.+-]*\+(?:json|xml)))/;

/** A named part: `name` above `value`; null when there is nothing. */
export function part(name, value) {
  if (value === null || value === undefined) return null;
  return h("div.field", {},
    h("div.field-head", {}, h("span.field-name", {}, name), copyButton(asText(value), name.toLowerCase())),
    valueView(value));
}

/** Any value: texts with their line breaks, changes as changes, small records by their fields, the rest as JSON. */
export function valueView(value) {
  if (typeof value === "string") return isDiff(value) ? diffView(value) : block(value, { className: "code" });
  if (value === null || typeof value !== "object" || Array.isArray(value)) return block(value, { className: "code" });
  const names = Object.keys(value);
  if (names.length === 0 || names.length > MAX_FIELDS) return block(value, { className: "code" });
  const pair = changedPair(value);
  const change = pair === null ? null : changeView(value[pair[0]], value[pair[1]]);
  const shown = change === null ? names : names.filter((name) => !pair.includes(name));
  return h("div.record", {},
    h("dl.fields-of", {}, shown.map((name) => [h("dt", {}, inline(name, 60)), h("dd", {}, fieldView(value[name]))])), change);
}

function fieldView(value) {
  if (typeof value === "string" && isDiff(value)) return diffView(value);
  const isLong = typeof value === "string" ? value.length > 90 || value.includes("\n") : false;
  if (isLong || (value !== null && typeof value === "object")) return block(value, { className: "code", first: 4000 });
  return h("span.scalar", {}, block(typeof value === "string" ? value : prettyJson(value), { className: "text" }));
}

/** Content that lies elsewhere; fetched when somebody wants it, of a large one first the beginning. */
export function storedContent(ref, context) {
  if (ref === null || ref === undefined || typeof ref !== "object") return null;
  const size = typeof ref.size === "number" ? bytes(ref.size) : "";
  const body = h("div");
  const answer = h("span.faint", { role: "status" });
  const isLarge = ref.size > FIRST_BYTES && TEXTUAL.test(ref.media_type ?? "");
  const load = h("button", { type: "button" }, isLarge ? `Load the first ${bytes(FIRST_BYTES)}` : `Load${size === "" ? "" : ` ${size}`}`);
  const all = isLarge ? h("button", { type: "button" }, `Load all ${size}`) : null;
  const fetchIt = async (first) => {
    load.disabled = true;
    answer.textContent = "Loading…";
    try {
      const found = await context.api.content(String(ref.uri ?? ""), { first });
      body.replaceChildren(await contentView(found, ref));
      answer.textContent = found.shown === "masked" ? "Secrets are taken out." : "";
      load.remove();
      if (!found.isPart) all?.remove();
    } catch (error) {
      load.disabled = false;
      answer.textContent = `Could not be loaded: ${inertString(error.message)}${error instanceof Problem ? ` (${inertString(error.code, 40)})` : ""}`;
    }
  };
  load.addEventListener("click", () => fetchIt(isLarge ? FIRST_BYTES : null));
  all?.addEventListener("click", () => fetchIt(null));
  return h("div.field", {},
    h("div.field-head", {}, h("span.field-name", {}, "Stored content"), h("span.faint", {}, inline([ref.media_type, size].filter(Boolean).join(", ")))),
    h("p", {}, h("code", {}, inline(ref.uri ?? "", 120))), h("div.buttons", {}, ...present([load, all, answer])), body);
}

async function contentView({ blob, type, isPart }, ref) {
  const name = String(ref.uri ?? "content").split(/[/:]/).at(-1).replace(/[^\w.-]/g, "_").slice(-60);
  const save = h("a", { href: URL.createObjectURL(blob), download: name || "content" }, `Save ${bytes(blob.size)}`);
  const isText = TEXTUAL.test(type || ref.media_type || "");
  if (!isText) return h("p", {}, `${inertString(type || "Unknown content", 60)} is not shown here. `, save);
  return h("div", {}, valueView(isPart ? await blob.text() : readable(await blob.text())), h("p", {}, save));
}

// Kept results are JSON: a text in it is shown as text.
function readable(text) {
  try {
    return parseJson(text);
  } catch {
    return text;
  }
}

/** `2.4 MB` */
export function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1_000_000) return `${(count / 1000).toFixed(count < 10_000 ? 1 : 0)} kB`;
  return `${(count / 1_000_000).toFixed(1)} MB`;
}

/** The facts that an item came from, as they were recorded; read when asked for. */
export function rawFacts(item, context) {
  const body = h("div");
  const isOne = item.first_sequence === item.last_sequence;
  const where = isOne ? `fact #${item.first_sequence}` : `facts #${item.first_sequence}–#${item.last_sequence}`;
  const show = h("button.link", { type: "button" }, `Show ${where}`);
  show.addEventListener("click", async () => {
    show.disabled = true;
    try {
      const facts = await context.record.facts(item.first_sequence, Math.min(item.last_sequence, item.first_sequence + MAX_FACTS));
      const own = facts.filter((fact) => belongsTo(fact, item));
      body.replaceChildren(...own.map((fact) => block(fact, { className: "code", first: 4000 })));
      show.remove();
    } catch (error) {
      body.textContent = `The facts could not be read: ${inertString(error.message)}`;
      show.disabled = false;
    }
  });
  return h("div.raw", {}, show, body);
}

function belongsTo(fact, item) {
  if (fact.sequence === item.first_sequence || fact.sequence === item.last_sequence) return true;
  if (fact.subject) return fact.subject.kind === item.kind && fact.subject.id === item.id;
  return fact.payload?.[`${item.kind === "tool" ? "tool_call" : item.kind}_id`] === item.id;
}
