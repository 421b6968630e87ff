/** The text of a preview, drawn as what it is: not yet a fact. Grows by appending. */

import { attribute, h, setText } from "./dom.js";
import { asText, inert } from "./text.js";

const PREVIEW_CHARS = 20_000;

export class PreviewView {
  #rebuilt = -1;
  #part = 0;
  #chars = 0;
  #total = 0;
  #text;
  #mark = h("p.preview-mark");

  constructor(entry, kind) {
    this.entry = entry;
    const isProse = kind === "message" || kind === "reasoning";
    this.#text = h(isProse ? "div.text" : "div.text.code", { dir: "auto" });
    this.element = h("div.preview", { "data-kind": kind }, h("div.preview-end", {}, this.#text), this.#mark);
  }

  update() {
    const { entry } = this;
    attribute(this.element, "data-fate", entry.fate);
    attribute(this.element, "data-incomplete", entry.incomplete);
    setText(this.#mark, markOf(entry));
    if (entry.rebuilt !== this.#rebuilt || this.#total > 2 * PREVIEW_CHARS) this.#rebuild();
    else this.#grow();
  }

  #rebuild() {
    const { entry } = this;
    this.#text.replaceChildren();
    this.#rebuilt = entry.rebuilt;
    this.#part = 0;
    this.#chars = 0;
    this.#total = 0;
    if (entry.value !== undefined) {
      this.#text.append(...inert(asText(entry.value).slice(0, PREVIEW_CHARS)));
      return;
    }
    this.#skipBeginning();
    this.#grow();
  }

  // What is long ago is folded away until the fact comes: only the end of a preview is news.
  #skipBeginning() {
    let skip = this.entry.chars - PREVIEW_CHARS;
    if (skip <= 0) return;
    this.#text.append(h("span.missing", {}, `${skip.toLocaleString("en")} characters above`));
    const { parts } = this.entry;
    while (skip > 0 && this.#part < parts.length) {
      const length = parts[this.#part].text?.length ?? 0;
      if (length > skip) {
        this.#chars = skip;
        return;
      }
      skip -= length;
      this.#part += 1;
    }
  }

  #grow() {
    const { parts } = this.entry;
    for (; this.#part < parts.length; this.#part += 1, this.#chars = 0) {
      const part = parts[this.#part];
      if (part.missing !== undefined) {
        this.#text.append(h("span.missing", { title: "These fragments did not get here. The fact that follows will be whole." }, omitted(part.missing)));
        continue;
      }
      const fresh = part.text.slice(this.#chars);
      if (fresh !== "") this.#text.append(...inert(fresh));
      this.#total += fresh.length;
      this.#chars = part.text.length;
      if (this.#part === parts.length - 1) return; // it may still grow
    }
  }
}

function omitted(count) {
  return `live output omitted: ${count.toLocaleString("en")} fragment${count === 1 ? "" : "s"}`;
}

function markOf(entry) {
  if (entry.fate === "abandoned") return "abandoned — never confirmed";
  const parts = ["provisional"];
  if (entry.incomplete) parts.push(entry.lost > 0 ? `incomplete, ${omitted(entry.lost)}` : "incomplete");
  return parts.join(" — ");
}
