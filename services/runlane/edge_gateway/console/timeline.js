/**
 * The evidence: everything that happened, in order, alike neighbours folded, failures never hidden; with a filter, and
 * with what only previews know of yet at its end.
 */

import { attribute, h, setText } from "./dom.js";
import { rowsOf } from "./grouping.js";
import { isFailed } from "./item_index.js";
import { GroupView, ItemView, markView, runLine } from "./items.js";
import { argumentsLine, contentText } from "./text.js";
import { VirtualList } from "./virtual_list.js";

const FIND_PAUSE_MS = 150;
const SEARCHED_CHARS = 4000;
const PLAN = "plan:plan";

const SHOWN = {
  all: { word: "All", has: () => true },
  failures: { word: "Failures", has: (entry) => entry.type === "mark" || entry.fact?.type === "run.lease_lost" || (entry.item !== undefined && isFailed(entry.item)) },
  tools: { word: "Tools", has: (entry) => entry.item?.kind === "tool" },
  messages: { word: "Messages", has: (entry) => entry.item?.kind === "message" },
  decisions: { word: "Decisions", has: (entry) => entry.item?.kind === "approval" || entry.item?.kind === "input" },
};

export class Timeline {
  #picture;
  #context;
  #list;
  #entries = []; // by sequence: `{key, sequence, item? | mark? | fact?}`
  #known = new Map(); // key → entry
  #marks = 0;
  #opened = new Set(); // of groups and folds
  #kind = "all";
  #words = [];
  #unseen = 0;
  #findTimer = 0;
  #mark = "";
  #tabs;
  #find = h("input", { type: "search", placeholder: "Find in this run", "aria-label": "Find in this run", "aria-keyshortcuts": "f", autocomplete: "off", spellcheck: "false" });
  #count = h("span.faint", { role: "status" });
  #toEnd = h("button.to-end", { type: "button", hidden: true, onClick: () => this.follow() }, "Newest ↓");

  /**
   * `context`: `{commander, api, record, isOver(), pointer(item), retryControl(item)}`, and what this adds to it:
   * `overlay()`, `isOpened(key)`, `setOpened(key, isOpen)`, `toggle(key)`, `isRetried(id)`, `mark()`.
   */
  constructor(picture, context) {
    this.#picture = picture;
    this.#context = Object.assign(context, {
      overlay: () => this.#picture.overlay,
      isOpened: (key) => this.#opened.has(key),
      setOpened: (key, isOpen) => (isOpen ? this.#opened.add(key) : this.#opened.delete(key)),
      toggle: (key) => this.#toggle(key),
      isRetried: (id) => this.#picture.isRetried(id),
      mark: () => this.#mark,
    });
    this.#tabs = Object.entries(SHOWN).map(([name, { word }]) =>
      h("button.chip-button", { type: "button", "data-kind": name, "aria-pressed": String(name === "all"), onClick: () => this.#choose(name) }, word));
    this.scroller = h("div.timeline", { tabindex: 0, role: "region", "aria-label": "Timeline of the run" });
    this.#list = new VirtualList(this.scroller, { label: "Timeline", make: (row) => this.#make(row), onFollow: (is) => this.#followed(is) });
    this.scroller.append(h("div.timeline-content", {}, this.#list.element));
    this.element = h("section.timeline-frame", { "aria-label": "Evidence" },
      h("div.timeline-tools", {}, h("div.chips", { role: "group", "aria-label": "Show" }, this.#tabs), this.#find, this.#count),
      h("div.timeline-place", {}, this.scroller, this.#toEnd));
    this.#find.addEventListener("input", () => this.#finding());
    this.#find.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#find.value === "") return;
      event.stopPropagation();
      this.#find.value = "";
      this.#finding();
    });
  }

  close() {
    this.#list.close();
    clearTimeout(this.#findTimer);
  }

  /** Draw another picture: another time of the same run. */
  turnTo(picture) {
    this.#picture = picture;
    this.draw(null);
  }

  /** Draw what changed; null means everything. */
  draw(keys) {
    if (keys === null) this.#reset();
    this.#mark = `${this.#context.isOver()}/${this.#picture.isPast}`;
    const before = this.#entries.length;
    this.#extend(keys ?? this.#allKeys());
    if (!this.#list.isFollowing) this.#unseen += Math.max(0, this.#entries.length - before);
    this.#arrange();
  }

  /** Draw again what a changed way to show it asks for. */
  redraw() {
    this.#list.draw();
  }

  follow() {
    this.#list.follow();
  }

  focusFind() {
    this.#find.focus();
  }

  /** Bring one item into sight and focus it. */
  show(key) {
    if (!this.#list.rows.some((row) => row.key === key)) {
      const group = this.#list.rows.find((row) => row.type === "group" && row.items.some((item) => `${item.kind}:${item.id}` === key));
      if (group !== undefined) this.#opened.add(group.key);
      else this.#choose("all");
      this.#arrange();
    }
    this.#list.show(key)?.focus({ preventScroll: true });
  }

  /** Give the focus to a row without leaving the end, if the reader is there. */
  rest(key) {
    if (!this.#list.isFollowing) return this.show(key);
    (this.#list.elementOf(key) ?? this.scroller).focus({ preventScroll: true });
  }

  /** Focus the next row, or the one before; the last one when none has the focus. */
  step(by) {
    const { rows } = this.#list;
    const focused = document.activeElement?.closest?.(".item")?.dataset.key;
    const at = focused === undefined ? -1 : rows.findIndex((row) => row.key === focused);
    const next = at < 0 ? rows.length - 1 : Math.min(rows.length - 1, Math.max(0, at + by));
    if (rows.length > 0) this.#list.showAt(next)?.focus({ preventScroll: true });
  }

  /** Open or close what the focused row holds. */
  unfold() {
    document.activeElement?.closest?.(".item")?.querySelector("summary, .fold-head")?.click();
  }

  // --- entries ------------------------------------------------------------------------------------------------------

  #reset() {
    this.#list.reset();
    this.#known.clear();
    this.#entries = [];
    this.#marks = 0;
    this.#unseen = 0;
  }

  #allKeys() {
    const runLines = Array.from(this.#picture.runFacts.keys(), (sequence) => `run ${sequence}`);
    return [...Object.keys(this.#picture.state.items), ...runLines];
  }

  // New entries follow the known ones, as facts do; only lines that were read later than their neighbours are sorted in.
  #extend(keys) {
    const { marks } = this.#picture.state;
    const fresh = [];
    for (const key of keys) if (!this.#known.has(key)) this.#add(this.#entryOf(key), fresh);
    for (; this.#marks < marks.length; this.#marks += 1) {
      this.#add({ key: `mark ${this.#marks}`, type: "mark", sequence: marks[this.#marks].sequence, mark: marks[this.#marks] }, fresh);
    }
    if (fresh.length === 0) return;
    let last = this.#entries.at(-1)?.sequence ?? 0;
    let isInOrder = true;
    for (const entry of fresh) {
      isInOrder &&= entry.sequence >= last;
      last = entry.sequence;
      this.#entries.push(entry);
    }
    if (!isInOrder) this.#entries.sort((a, b) => a.sequence - b.sequence);
  }

  #add(entry, fresh) {
    if (entry === null) return;
    this.#known.set(entry.key, entry);
    fresh.push(entry);
  }

  #entryOf(key) {
    if (key.startsWith("run ")) {
      const sequence = Number(key.slice(4));
      return { key, type: "run", sequence, fact: this.#picture.runFacts.get(sequence) };
    }
    const item = key === PLAN ? undefined : this.#picture.state.items[key]; // each version of the plan has its own line
    return item === undefined ? null : { key, type: "item", sequence: item.first_sequence, item };
  }

  // --- rows ---------------------------------------------------------------------------------------------------------

  #arrange() {
    const isFiltered = this.#kind !== "all" || this.#words.length > 0;
    const { has } = SHOWN[this.#kind];
    const chosen = isFiltered ? this.#entries.filter((entry) => has(entry) && this.#holds(entry)) : this.#entries;
    const rows = rowsOf(chosen, this.#context.isOpened, !isFiltered);
    if (!isFiltered || this.#kind === "messages") {
      for (const key of this.#picture.overlay.provisional(this.#picture.state)) rows.push({ key, type: "item", item: undefined });
    }
    setText(this.#count, isFiltered ? `${chosen.length.toLocaleString("en")} of ${this.#entries.length.toLocaleString("en")}` : "");
    this.#list.set(rows);
    this.#drawTools();
  }

  #holds(entry) {
    if (this.#words.length === 0) return true;
    const text = searched(entry);
    return this.#words.every((word) => text.includes(word));
  }

  #make(row) {
    if (row.type === "group") return new GroupView(row.key, this.#context);
    if (row.type === "mark") return { element: markView(row.key, row.mark) };
    if (row.type === "run") return { element: runLine(row.key, row.fact, this.#context) };
    return new ItemView(row.key, this.#context);
  }

  #toggle(key) {
    if (!this.#opened.delete(key)) this.#opened.add(key);
    this.#arrange();
  }

  // --- tools --------------------------------------------------------------------------------------------------------

  #choose(name) {
    this.#kind = name;
    if (name === "all" && this.#words.length > 0) {
      this.#find.value = "";
      this.#words = [];
    }
    for (const tab of this.#tabs) attribute(tab, "aria-pressed", String(tab.dataset.kind === name));
    this.#arrange();
  }

  #finding() {
    clearTimeout(this.#findTimer);
    this.#findTimer = setTimeout(() => {
      this.#words = this.#find.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.#arrange();
    }, FIND_PAUSE_MS);
  }

  #drawTools() {
    const failed = this.#picture.index.failed.size + this.#picture.state.marks.length;
    for (const tab of this.#tabs) {
      if (tab.dataset.kind === "failures") {
        setText(tab, failed > 0 ? `Failures ${failed.toLocaleString("en")}` : "Failures");
        attribute(tab, "data-some", failed > 0);
      }
    }
    setText(this.#toEnd, this.#picture.isPast ? "End ↓" : this.#unseen > 0 ? `${this.#unseen.toLocaleString("en")} new ↓` : "Newest ↓");
  }

  #followed(isFollowing) {
    this.#toEnd.hidden = isFollowing;
    if (isFollowing) this.#unseen = 0;
    setText(this.#toEnd, "Newest ↓");
  }
}

function searched(entry) {
  if (entry.fact !== undefined) return `${entry.fact.type} ${argumentsLine(entry.fact.payload, SEARCHED_CHARS)}`.toLowerCase();
  if (entry.mark !== undefined) return argumentsLine(entry.mark, SEARCHED_CHARS).toLowerCase();
  const { item } = entry;
  const texts = [
    item.kind, item.id, item.status, item.name, item.title, item.description, item.prompt, item.error?.code, item.error?.message,
    contentText(item.content ?? item.summary).slice(0, SEARCHED_CHARS), argumentsLine(item.arguments, SEARCHED_CHARS),
    argumentsLine(item.result ?? item.value ?? item.data, SEARCHED_CHARS), item.type,
  ];
  return texts.filter((text) => typeof text === "string").join(" ").toLowerCase();
}
