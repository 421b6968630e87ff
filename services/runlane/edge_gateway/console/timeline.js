/**
 * The items of a run in order. Only a window of them is in the page: the newest, and as many earlier ones as the
 * reader asked for. Changes are drawn once a frame, item by item.
 */

import { arrange, h } from "./dom.js";
import { ItemView, markView, runLine } from "./items.js";

const FIRST_WINDOW = 400;
const STEP = 600;
const TRIM_ABOVE = 1600;
const AT_BOTTOM_PX = 72;

export class Timeline {
  #model;
  #context;
  #views = new Map();
  #order = []; // by sequence: item keys (`kind:id`), and for what is no item `mark <index>` and `run <sequence>`
  #known = new Map(); // key → sequence
  #from = 0; // of #order: where the window starts
  #marks = 0;
  #isFollowing = true;
  #isOver = false;
  #list = h("div.items", { role: "feed", "aria-label": "Timeline" });
  #provisional = h("div.items.provisional", { "aria-label": "Not yet confirmed" });
  #earlier = h("button.link.earlier", { type: "button", onClick: () => this.#showEarlier() });
  #toEnd = h("button.to-end", { type: "button", hidden: true, onClick: () => this.follow() }, "Newest ↓");

  /** `intro` and `outro` are elements before the first and after the last item. */
  constructor(model, context, intro, outro) {
    this.#model = model;
    this.#context = context;
    const content = h("div.timeline-content", {}, intro, this.#earlier, this.#list, this.#provisional, outro);
    this.scroller = h("div.timeline", { tabindex: 0, role: "region", "aria-label": "Timeline of the run" }, content);
    this.element = h("div.timeline-frame", {}, this.scroller, this.#toEnd);
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.#pressed(event));
    new ResizeObserver(() => this.#stick()).observe(content);
  }

  /** Draw what changed; null means everything. */
  draw(keys) {
    if (keys === null) this.#reset();
    const added = this.#extend(keys ?? []);
    if (added) this.#trim();
    const justEnded = this.#isOver !== this.#context.isOver();
    this.#isOver = this.#context.isOver();
    for (const key of justEnded ? this.#views.keys() : (keys ?? [])) this.#update(key);
    if (added || keys === null) this.#arrange();
    this.#drawProvisional();
    this.#stick();
  }

  /** Go to the newest item and stay there. */
  follow() {
    this.#isFollowing = true;
    this.#toEnd.hidden = true;
    this.#stick();
  }

  /** Bring one item into view and focus it. */
  show(key) {
    const at = this.#order.indexOf(key);
    if (at < 0) return;
    if (at < this.#from) this.#openFrom(at);
    const { element } = this.#views.get(key);
    this.#isFollowing = false;
    element.scrollIntoView({ block: "center" });
    (element.querySelector("form button, form textarea, form input") ?? element).focus({ preventScroll: true });
  }

  /** Whether an item is drawn where the reader can see it. */
  isInSight(key) {
    const element = this.#views.get(key)?.element;
    if (element === undefined || !element.isConnected) return false;
    const box = element.getBoundingClientRect();
    const frame = this.scroller.getBoundingClientRect();
    return box.bottom > frame.top + 24 && box.top < frame.bottom - 24;
  }

  #reset() {
    const { items, marks } = this.#model.state;
    this.#views.clear();
    this.#known.clear();
    this.#order = [];
    this.#marks = 0;
    this.#list.replaceChildren();
    this.#provisional.replaceChildren();
    const runLines = Array.from(this.#model.runFacts.keys(), (sequence) => `run ${sequence}`);
    this.#extend([...Object.keys(items), ...runLines]);
    this.#marks = marks.length;
    this.#from = Math.max(0, this.#order.length - FIRST_WINDOW);
  }

  // New keys follow the known ones, as facts do; only lines that were read later than their neighbours are sorted in.
  #extend(keys) {
    const { marks } = this.#model.state;
    const fresh = keys.filter((key) => !this.#known.has(key) && this.#sequenceOf(key) !== undefined);
    for (; this.#marks < marks.length; this.#marks += 1) fresh.push(`mark ${this.#marks}`);
    if (fresh.length === 0) return false;
    const last = this.#known.get(this.#order.at(-1)) ?? 0;
    const first = this.#order[this.#from];
    let isInOrder = true;
    for (const key of fresh) {
      const sequence = this.#sequenceOf(key);
      isInOrder &&= sequence > last;
      this.#known.set(key, sequence);
      this.#order.push(key);
    }
    if (!isInOrder || fresh.length > 1) this.#order.sort((a, b) => this.#known.get(a) - this.#known.get(b));
    if (!isInOrder && this.#from > 0) this.#from = this.#order.indexOf(first);
    return true;
  }

  #sequenceOf(key) {
    if (key.startsWith("run ")) return Number(key.slice(4));
    if (key.startsWith("mark ")) return this.#model.state.marks[Number(key.slice(5))].sequence;
    return this.#model.state.items[key]?.first_sequence;
  }

  #trim() {
    if (this.#isFollowing && this.#order.length - this.#from > TRIM_ABOVE) this.#from = this.#order.length - FIRST_WINDOW;
  }

  #update(key) {
    const view = this.#views.get(key);
    const item = this.#model.state.items[key];
    if (view instanceof ItemView) view.update(item, this.#model.overlay.get(key));
  }

  #arrange() {
    const shown = this.#order.slice(this.#from);
    const wanted = new Set(shown);
    for (const key of this.#views.keys()) if (!wanted.has(key) && this.#known.has(key)) this.#views.delete(key);
    arrange(this.#list, shown.map((key) => this.#viewOf(key).element));
    this.#earlier.hidden = this.#from === 0;
    if (this.#from > 0) this.#earlier.textContent = `Show earlier — ${this.#from.toLocaleString("en")} items above`;
  }

  #viewOf(key) {
    const known = this.#views.get(key);
    if (known !== undefined) return known;
    const view = this.#newView(key);
    this.#views.set(key, view);
    this.#update(key);
    return view;
  }

  #newView(key) {
    if (key.startsWith("mark ")) return { element: markView(this.#model.state.marks[Number(key.slice(5))]) };
    if (key.startsWith("run ")) return { element: runLine(this.#model.runFacts.get(Number(key.slice(4)))) };
    return new ItemView(key, this.#context);
  }

  #drawProvisional() {
    const elements = [];
    for (const key of this.#model.overlay.provisional(this.#model.state)) {
      const view = this.#viewOf(key);
      view.update(undefined, this.#model.overlay.get(key));
      elements.push(view.element);
    }
    arrange(this.#provisional, elements);
  }

  #showEarlier() {
    this.#openFrom(Math.max(0, this.#from - STEP));
  }

  #openFrom(from) {
    const { scrollHeight, scrollTop } = this.scroller;
    this.#isFollowing = false;
    this.#from = from;
    this.#arrange();
    this.scroller.scrollTop = scrollTop + this.scroller.scrollHeight - scrollHeight;
  }

  // `j` and `k` step from item to item, as in many feeds.
  #pressed(event) {
    const isTyping = event.target.closest("input, textarea, select") !== null;
    if ((event.key !== "j" && event.key !== "k") || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const items = Array.from(this.scroller.querySelectorAll(".item"));
    const at = items.indexOf(event.target.closest(".item"));
    const next = at < 0 ? items.at(-1) : items[at + (event.key === "j" ? 1 : -1)];
    next?.focus();
    event.preventDefault();
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.#isFollowing = scrollHeight - scrollTop - clientHeight < AT_BOTTOM_PX;
    this.#toEnd.hidden = this.#isFollowing;
  }

  #stick() {
    if (this.#isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}
