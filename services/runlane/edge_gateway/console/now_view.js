/** What is happening now: what needs a person, first; then what runs, since when; and how it ended, once it has. */

import { cardFor } from "./decisions.js";
import { arrange, attribute, h, present, setText } from "./dom.js";
import { valueView } from "./evidence.js";
import { usage } from "./items.js";
import { argumentsLine, asText, block, inert, inertString, inline, onlyText } from "./text.js";

const MAX_RUNNING = 12;
const MAX_CARDS = 20;

export class NowView {
  #context;
  #cards = new Map(); // key and version of what waits → card
  #running = new Map(); // item key → row
  #needs = h("div.cards");
  #rows = h("ul.running");
  #quiet = h("p.faint.quiet");
  #outcome = h("div.outcome", { hidden: true });
  #outcomeMark = "";

  /** `context`: `{commander, runId, item(key), show(key), rest(key)}`. */
  constructor(context) {
    this.#context = context;
    this.element = h("section.now", { "aria-labelledby": "now-title" },
      h("h2", { id: "now-title" }, "Now"), this.#outcome, this.#needs, this.#rows, this.#quiet);
  }

  /** How many things need a person. */
  get count() {
    return this.#cards.size;
  }

  draw(picture) {
    this.#drawOutcome(picture.state.run);
    this.#drawCards(picture);
    this.#drawRunning(picture);
    const isIdle = this.#cards.size === 0 && this.#running.size === 0 && !picture.isOver;
    setText(this.#quiet, isIdle && !picture.isEmpty ? "Nothing is running just now, and nothing waits for you." : "");
  }

  /** What became of a command has changed. */
  refresh(place) {
    for (const card of this.#cards.values()) if (card.place === place) card.refresh();
  }

  /** Focus the card of an item, or the next one after where the focus is. */
  focus(key) {
    const cards = Array.from(this.#cards.values());
    const at = cards.findIndex((card) => card.element.contains(document.activeElement));
    const card = key === undefined ? cards[(at + 1) % cards.length] : cards.find((one) => one.key === key);
    if (card === undefined) return false;
    card.element.scrollIntoView({ block: "nearest" });
    (card.form.querySelector("button:not([disabled]), input, textarea, select") ?? card.element).focus({ preventScroll: true });
    return true;
  }

  // --- what needs a person ------------------------------------------------------------------------------------------

  #drawCards(picture) {
    const wanted = needsOf(picture).slice(0, MAX_CARDS);
    const names = new Set(wanted.map(([name]) => name));
    let lost = null;
    for (const [name, card] of this.#cards) {
      if (names.has(name)) continue;
      if (card.element.contains(document.activeElement)) lost = card.key;
      card.element.remove();
      this.#cards.delete(name);
    }
    for (const [name, key, item] of wanted) {
      const card = this.#cards.get(name);
      if (card === undefined) this.#cards.set(name, cardFor(key, item, this.#context, picture.isPast));
      else if (card.shownAt !== item.last_sequence) {
        card.update(item);
        card.moved();
      }
      this.#cards.get(name).shownAt = item.last_sequence;
    }
    arrange(this.#needs, wanted.map(([name]) => this.#cards.get(name).element));
    if (lost !== null && !this.focus()) this.#context.rest(lost);
  }

  // --- what runs ----------------------------------------------------------------------------------------------------

  #drawRunning(picture) {
    const { items } = picture.state;
    const held = new Set(Array.from(picture.index.asked, (key) => (items[key].status === "waiting" ? `tool:${items[key].tool_call_id}` : "")));
    const keys = Array.from(picture.index.open).filter((key) => isAtWork(items[key]) && !held.has(key)).slice(-MAX_RUNNING);
    for (const key of picture.overlay.provisional(picture.state)) keys.push(key);
    const wanted = new Set(keys);
    for (const key of this.#running.keys()) if (!wanted.has(key)) this.#running.delete(key);
    for (const key of keys) {
      if (!this.#running.has(key)) this.#running.set(key, new RunningRow(key, this.#context));
      this.#running.get(key).update(items[key], picture.overlay.get(key));
    }
    arrange(this.#rows, keys.map((key) => this.#running.get(key).element));
    this.#rows.hidden = keys.length === 0;
  }

  // --- how it ended -------------------------------------------------------------------------------------------------

  #drawOutcome(run) {
    const mark = run.ended_at ?? "";
    if (this.#outcomeMark === mark) return;
    this.#outcomeMark = mark;
    this.#outcome.hidden = mark === "";
    attribute(this.#outcome, "data-status", run.status);
    this.#outcome.replaceChildren(...(mark === "" ? [] : present(outcomeOf(run))));
  }
}

/** What needs a person: `[name, key, item]`, the longest waiting first. `name` tells versions of a question apart. */
export function needsOf(picture) {
  if (picture.isOver) return [];
  const { items } = picture.state;
  return Array.from(picture.index.open)
    .map((key) => [`${key}@${items[key].version ?? ""}`, key, items[key]])
    .filter(([, , item]) => isNeed(item))
    .sort(([, , a], [, , b]) => a.first_sequence - b.first_sequence);
}

function isNeed(item) {
  return (item.status === "waiting" && (item.kind === "approval" || item.kind === "input")) || (item.kind === "tool" && item.status === "outcome_unknown");
}

function isAtWork(item) {
  return !isNeed(item) && ["tool", "message", "reasoning", "task", "artifact"].includes(item.kind);
}

const DOES = { message: "Writing", reasoning: "Thinking", task: "Task", artifact: "Artifact" };

class RunningRow {
  #since = h("time.stopwatch");
  #what = h("span.what");
  #tail = h("span.tail");
  #drawn = null;

  constructor(key, context) {
    this.element = h("li.running-row", {},
      h("button.row-button", { type: "button", onClick: () => context.show(key) }, h("span.pulse", { "aria-hidden": "true" }), this.#what, this.#since, this.#tail));
  }

  update(item, preview) {
    const mark = `${item?.last_sequence} ${item?.status}`;
    if (mark !== this.#drawn) {
      this.#drawn = mark;
      attribute(this.#since, "data-since", item?.started_at);
      this.#what.replaceChildren(...present(whatOf(item, preview)));
      attribute(this.element, "data-status", item?.status ?? "provisional");
    }
    setText(this.#tail, preview === undefined ? "" : tailOf(preview));
    this.#tail.hidden = preview === undefined;
  }
}

function whatOf(item, preview) {
  if (item?.kind === "tool") {
    return [h("code.name", {}, inline(item.name ?? item.id, 60)), " ", item.status === "running" ? null : h("span.faint", {}, inertString(item.status, 20)), " ",
      h("code.digest", {}, ...inert(argumentsLine(item.arguments, 80)))];
  }
  const kind = item?.kind ?? preview?.kind ?? "item";
  return [h("span", {}, DOES[kind] ?? inertString(kind, 30)), " ", item?.title ?? item?.name ? inline(item.title ?? item.name, 80) : null];
}

// The end of what it shows: enough to see that it moves.
function tailOf(preview) {
  const last = preview.parts.at(-1);
  const text = preview.value === undefined ? (last?.text ?? "") : asText(preview.value);
  const line = text.slice(-400).trimEnd().split("\n").at(-1) ?? "";
  return inertString(line.slice(-90), 100);
}

function outcomeOf(run) {
  const text = onlyText(run.output);
  const output = run.output === undefined || run.output === null ? null : text === null ? valueView(run.output) : block(text, { first: 3000 });
  const error = run.error === undefined || run.error === null ? null
    : h("div.failure", {}, h("strong", {}, inline(run.error.code ?? "error", 80)), " ", block(asText(run.error.message ?? run.error), { first: 3000 }));
  return [
    h("header.head", {}, h("span.kind", {}, "Outcome"), h("span.status", { "data-status": run.status }, run.status), usage(run.usage)),
    output, error, run.reason ? h("p.faint", {}, "because: ", inline(run.reason, 400)) : null,
  ];
}
