/** Changes as people read them: lines that went, lines that came, and a little of what stayed. */

import { h } from "./dom.js";
import { inert } from "./text.js";

const MAX_LINES = 1200;
const MAX_SHOWN = 600;
const CONTEXT = 3;
const UNIFIED = /^(?:diff --git .*|--- .*\n\+\+\+ .*|@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)/m;
const PAIRS = [["old_string", "new_string"], ["old_str", "new_str"], ["old_text", "new_text"], ["before", "after"], ["old", "new"]];

/** Whether a text is a unified diff. */
export function isDiff(text) {
  return UNIFIED.test(text.slice(0, 4000));
}

/** The names of two fields that hold a text before and after, or null. */
export function changedPair(value) {
  return PAIRS.find(([from, to]) => typeof value[from] === "string" && typeof value[to] === "string") ?? null;
}

/** `[{sign: " " | "-" | "+", text}]` from one text to another; null when they are too long to compare. */
export function lineDiff(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail += 1;
  const left = a.slice(head, a.length - tail);
  const right = b.slice(head, b.length - tail);
  if (left.length > MAX_LINES || right.length > MAX_LINES) return null;
  const same = (text) => ({ sign: " ", text });
  return [...a.slice(0, head).map(same), ...changed(left, right), ...a.slice(a.length - tail).map(same)];
}

// Longest common subsequence, by the table: small enough after head and tail are taken off.
function changed(a, b) {
  const width = b.length + 1;
  const length = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      length[i * width + j] = a[i] === b[j]
        ? length[(i + 1) * width + j + 1] + 1
        : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const out = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      out.push({ sign: " ", text: a[i] });
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && length[(i + 1) * width + j] >= length[i * width + j + 1])) {
      out.push({ sign: "-", text: a[i] });
      i += 1;
    } else {
      out.push({ sign: "+", text: b[j] });
      j += 1;
    }
  }
  return out;
}

/** The change from one text to another; null when there is none, or it is too large to show as one. */
export function changeView(before, after) {
  const lines = lineDiff(before, after);
  if (lines === null || lines.every((line) => line.sign === " ")) return null;
  return linesView(nearChanges(lines));
}

/** A unified diff, coloured. */
export function diffView(text) {
  const lines = text.split("\n", MAX_SHOWN + 1).map((line) => {
    const isHead = /^(?:@@|diff --git|---|\+\+\+|index )/.test(line);
    return isHead ? { sign: "@", text: line } : { sign: /^[+-]/.test(line) ? line[0] : " ", text: line.replace(/^[ +-]/, "") };
  });
  return linesView(lines);
}

function nearChanges(lines) {
  const near = lines.map((_, at) => lines.slice(Math.max(0, at - CONTEXT), at + CONTEXT + 1).some((line) => line.sign !== " "));
  const out = [];
  let left = 0;
  lines.forEach((line, at) => {
    if (near[at]) {
      if (left > 0) out.push({ sign: "@", text: `${left} unchanged` });
      left = 0;
      out.push(line);
    } else left += 1;
  });
  if (left > 0) out.push({ sign: "@", text: `${left} unchanged` });
  return out;
}

const WORDS = { "+": "added: ", "-": "removed: " };
const KINDS = { "+": "added", "-": "removed", "@": "place", " ": "same" };

function linesView(lines) {
  const shown = lines.slice(0, MAX_SHOWN).map(({ sign, text }) =>
    h("div.diff-line", { "data-kind": KINDS[sign] },
      h("span.diff-sign", { "aria-hidden": "true" }, sign === "@" ? "" : sign),
      sign in WORDS ? h("span.visually-hidden", {}, WORDS[sign]) : null,
      h("span.diff-text", {}, ...inert(text.slice(0, 2000)))));
  const rest = lines.length - shown.length;
  return h("div.diff", { role: "group", "aria-label": "Changes" }, shown, rest > 0 ? h("p.faint", {}, "more lines are left out") : null);
}
