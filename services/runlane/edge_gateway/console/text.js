/**
 * Other people's text, shown and inert: whitespace is kept, nothing is interpreted, and what would act on the
 * reader unseen (bidirectional overrides, terminal escapes, invisible characters) is drawn as a mark.
 */

import { h } from "./dom.js";
import { oneLine, prettyJson } from "./json.js";

// C0 and C1 controls but tab and newline; bidirectional controls; zero-width and other invisible characters;
// tag characters and supplementary variation selectors, which can carry hidden text; and all but the first few of
// marks that are piled on one letter. ZWJ, ZWNJ and the emoji selectors stay: languages need them.
const HIDDEN =
  /(?<=\p{M}{4})\p{M}+|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}\u{e0100}-\u{e01ef}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

const NAMES = new Map([
  [0x1b, "ESC"], [0x0d, "CR"], [0x00, "NUL"], [0x07, "BEL"], [0x08, "BS"], [0x7f, "DEL"], [0xad, "SHY"],
  [0x061c, "ALM"], [0x200b, "ZWSP"], [0x200e, "LRM"], [0x200f, "RLM"], [0x2028, "LSEP"], [0x2029, "PSEP"],
  [0x202a, "LRE"], [0x202b, "RLE"], [0x202c, "PDF"], [0x202d, "LRO"], [0x202e, "RLO"], [0x2060, "WJ"],
  [0x2066, "LRI"], [0x2067, "RLI"], [0x2068, "FSI"], [0x2069, "PDI"], [0xfeff, "BOM"],
]);

const INLINE_CHARS = 160;
const FIRST_CHARS = 6000;
const MORE_CHARS = 60000;

/** Pieces of `text`: plain strings, and `{mark, title}` where it holds hidden characters. */
export function pieces(text) {
  const out = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) out.push(text.slice(from, found.index));
    const code = found[0].codePointAt(0);
    if (/^\p{M}/u.test(found[0]) && code < 0xe0000) {
      out.push({ mark: "MARKS", count: found[0].length });
      from = found.index + found[0].length;
      continue;
    }
    const mark = NAMES.get(code) ?? (code >= 0xe0000 ? "TAG" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`);
    const last = out.at(-1);
    if (found.index === from && last?.mark === mark) last.count += 1;
    else out.push({ mark, count: 1 });
    from = found.index + found[0].length;
  }
  if (from < text.length) out.push(text.slice(from));
  return out;
}

/** Nodes for `text`, hidden characters drawn as marks. */
export function inert(text) {
  return pieces(text).map((piece) =>
    typeof piece === "string"
      ? document.createTextNode(piece)
      : h("span.hidden-char", { title: "a hidden character" }, piece.count > 1 ? `${piece.mark}×${piece.count}` : piece.mark),
  );
}

/** The same as a plain string, for attributes and titles. */
export function inertString(text, limit = INLINE_CHARS) {
  return pieces(clip(flat(text), limit))
    .map((piece) => (typeof piece === "string" ? piece : `[${piece.mark}]`))
    .join("");
}

/** A short name, id or label on one line; isolated, so that its direction stays its own. */
export function inline(value, limit = INLINE_CHARS) {
  const text = flat(asText(value));
  return h("bdi", text.length > limit ? { title: inertString(text, 600) } : {}, inert(clip(text, limit)));
}

/** `text` cut to `limit`, never through a character, with an ellipsis. */
export function clip(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, wholeChars(text, limit))}…`;
}

function flat(text) {
  return text.replace(/\s*\n\s*/g, " ⏎ ");
}

function wholeChars(text, end) {
  const code = text.charCodeAt(end - 1);
  return code >= 0xd800 && code <= 0xdbff ? end - 1 : end;
}

/** What a value says: a string is itself, anything else is JSON. */
export function asText(value) {
  return typeof value === "string" ? value : prettyJson(value);
}

/** A value as one short line of JSON, for the closed head of a fold. */
export function digestLine(value, room = 110) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return clip(flat(value.slice(0, 4 * room)), room);
  return oneLine(value, room) ?? clip(flat(asText(sample(value))), room);
}

// Enough of a large value for one line; the rest is not worth printing.
function sample(value) {
  if (typeof value === "string") return value.slice(0, 400);
  if (Array.isArray(value)) return value.slice(0, 8).map(sample);
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).slice(0, 8).map(([key, one]) => [key, sample(one)]));
  }
  return value;
}

/** The arguments of a call as one line: a single text is itself, else `name=value` by name. */
export function argumentsLine(value, room = 160) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return digestLine(value, room);
  const entries = Object.entries(value).slice(0, 8);
  if (entries.length === 0) return "";
  if (entries.length === 1 && typeof entries[0][1] === "string") return digestLine(entries[0][1], room);
  const parts = entries.map(([name, one]) => `${clip(flat(name), 40)}=${digestLine(one, 60)}`);
  return clip(parts.join("  "), room);
}

/** A block of text with its whitespace; long ones open by and by. */
export function block(value, { className = "text", first = FIRST_CHARS } = {}) {
  const text = asText(value);
  const body = h(`div.${className}`, { dir: "auto" });
  let shown = wholeChars(text, Math.min(first, text.length));
  body.append(...inert(text.slice(0, shown)));
  if (shown >= text.length) return body;
  const more = h("button.link.more", {
    type: "button",
    onClick: () => {
      const next = wholeChars(text, Math.min(shown + MORE_CHARS, text.length));
      body.append(...inert(text.slice(shown, next)));
      shown = next;
      label();
    },
  });
  const label = () => {
    if (shown >= text.length) more.remove();
    else more.textContent = `Show more — ${(text.length - shown).toLocaleString("en")} of ${text.length.toLocaleString("en")} characters are folded`;
  };
  label();
  return h("div.long", {}, body, more);
}

/** The text, where a value is nothing but one: a string, or a record of a single string; else null. */
export function onlyText(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
  const [first, ...more] = Object.values(value);
  return more.length === 0 && typeof first === "string" ? first : null;
}

/** What a message holds, as people read it: text, the texts of its parts, or JSON. */
export function contentText(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map(partText).join("\n");
  return partText(content);
}

function partText(part) {
  if (typeof part === "string") return part;
  if (part !== null && typeof part === "object" && typeof part.text === "string") return part.text;
  return prettyJson(part);
}
