/**
 * JSON, exactly: what the platform hashes must be what the page hashes.
 *
 * `JSON.parse` rounds integers beyond 2^53; `parseJson` keeps them as BigInt. `canonicalJson` is the twin of
 * `runlane_contracts/canonical.py`: keys sorted by code point, no spaces, numbers as ECMAScript writes them.
 */

const MAY_HOLD_BIG_INTEGER = /(?:^|[\s:,[])-?\d{16,}(?=[\s,\]}]|$)/;

/** Parse a JSON text; an integer that a double cannot hold becomes a BigInt. */
export function parseJson(text) {
  if (!MAY_HOLD_BIG_INTEGER.test(text)) return JSON.parse(text);
  const mark = `\u0000int:${Math.random()}`;
  const marked = markBigIntegers(text, mark);
  return JSON.parse(marked, (_key, value) =>
    value !== null && typeof value === "object" && Object.hasOwn(value, mark) ? BigInt(value[mark]) : value,
  );
}

function markBigIntegers(text, mark) {
  const integer = /-?\d+(?![\d.eE])/y;
  const other = /[^"\d-]+|-?\d+[\d.eE+-]*|-/y;
  const key = JSON.stringify(mark);
  let out = "";
  let at = 0;
  while (at < text.length) {
    const from = at;
    if (text[at] === '"') {
      at = endOfString(text, at);
      out += text.slice(from, at);
      continue;
    }
    integer.lastIndex = at;
    const found = integer.exec(text);
    if (found !== null) {
      at = integer.lastIndex;
      out += Number.isSafeInteger(Number(found[0])) ? found[0] : `{${key}:"${found[0]}"}`;
      continue;
    }
    other.lastIndex = at;
    other.exec(text);
    at = Math.max(other.lastIndex, from + 1);
    out += text.slice(from, at);
  }
  return out;
}

function endOfString(text, start) {
  let at = start + 1;
  for (;;) {
    const quote = text.indexOf('"', at);
    if (quote < 0) return text.length;
    let slashes = 0;
    while (text[quote - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return quote + 1;
    at = quote + 1;
  }
}

/** The one spelling of a JSON value that is hashed. */
export function canonicalJson(value) {
  const out = [];
  writeCanonical(value, out);
  return out.join("");
}

function writeCanonical(value, out) {
  switch (typeof value) {
    case "string":
      out.push(JSON.stringify(value));
      return;
    case "number":
      out.push(String(value)); // -0 is "0"
      return;
    case "bigint":
      out.push(value.toString());
      return;
    case "boolean":
      out.push(value ? "true" : "false");
      return;
    default:
  }
  if (value === null || value === undefined) out.push("null");
  else if (Array.isArray(value)) writeArray(value, out);
  else writeObject(value, out);
}

function writeArray(value, out) {
  out.push("[");
  for (let i = 0; i < value.length; i += 1) {
    if (i > 0) out.push(",");
    writeCanonical(value[i], out);
  }
  out.push("]");
}

function writeObject(value, out) {
  out.push("{");
  let first = true;
  for (const key of sortedKeys(value)) {
    out.push(first ? "" : ",", JSON.stringify(key), ":");
    writeCanonical(value[key], out);
    first = false;
  }
  out.push("}");
}

const SURROGATE = /[\ud800-\udfff]/;

/** The keys of a record by code point, as the platform sorts them. */
export function sortedKeys(value) {
  const keys = Object.keys(value);
  return keys.some((key) => SURROGATE.test(key)) ? keys.sort(byCodePoint) : keys.sort();
}

function byCodePoint(a, b) {
  const left = Array.from(a, (char) => char.codePointAt(0));
  const right = Array.from(b, (char) => char.codePointAt(0));
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    if (left[i] !== right[i]) return left[i] - right[i];
  }
  return left.length - right.length;
}

/** JSON for people: two spaces, but what fits a line stays on one. Any value that `parseJson` gives can be written. */
export function prettyJson(value, width = 96) {
  return pretty(value, "", width);
}

function pretty(value, indent, width) {
  if (value === null || typeof value !== "object") return scalar(value);
  const short = oneLine(value, width - indent.length);
  if (short !== null) return short;
  const deeper = `${indent}  `;
  if (Array.isArray(value)) {
    return `[\n${value.map((one) => deeper + pretty(one, deeper, width)).join(",\n")}\n${indent}]`;
  }
  const rows = Object.keys(value).map((key) => `${deeper}${JSON.stringify(key)}: ${pretty(value[key], deeper, width)}`);
  return `{\n${rows.join(",\n")}\n${indent}}`;
}

function scalar(value) {
  if (typeof value === "string") return JSON.stringify(value);
  return value === undefined ? "null" : String(value);
}

/** The value on one line, or null when it is longer than `room` characters. */
export function oneLine(value, room) {
  if (room < 2) return null;
  if (value === null || typeof value !== "object") {
    if (typeof value === "string" && value.length > room) return null;
    const text = scalar(value);
    return text.length <= room ? text : null;
  }
  const isArray = Array.isArray(value);
  const keys = isArray ? value : Object.keys(value);
  if (keys.length === 0) return isArray ? "[]" : "{}";
  const parts = [];
  let left = room - 2;
  for (const key of keys) {
    const label = isArray ? "" : `${JSON.stringify(key)}: `;
    const text = oneLine(isArray ? key : value[key], left - label.length);
    if (text === null) return null;
    parts.push(label + text);
    left -= label.length + text.length + 2;
  }
  const line = isArray ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
  return line.length <= room ? line : null;
}
