/**
 * The items of a run in order. Only a window of them is in the page: the newest, and as many earlier ones as the
 * reader asked for. Changes are drawn once a frame, item by item.
 */

import { arrange, h } from "./dom.js";
import { ItemView, markView } from "./items.js";

const FIRST_WINDOW = 400;
const STEP = 600;
const TRIM_ABOVE = 1600;
const AT_BOTTOM_PX = 72;

export class Timeline {
  #model;
  #context;
  #views = new Map();
  #order = []; // item keys and `mark:<index>`, by sequence
  #known = new Set();
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
    this.#views.clear();
    this.#known.clear();
    this.#order = [];
    this.#marks = 0;
    const { items, marks } = this.#model.state;
    const all = Object.keys(items).map((key) => [items[key].first_sequence, key]);
    marks.forEach((mark, index) => all.push([mark.sequence, `mark:${index}`]));
    this.#marks = marks.length;
    this.#order = all.sort((a, b) => a[0] - b[0]).map(([, key]) => key);
    this.#known = new Set(this.#order);
    this.#from = Math.max(0, this.#order.length - FIRST_WINDOW);
    this.#list.replaceChildren();
    this.#provisional.replaceChildren();
  }

  // Facts come in order, so new items and marks only ever follow the known ones. Both kinds may be new at once.
  #extend(keys) {
    const { items, marks } = this.#model.state;
    const fresh = [];
    for (const key of keys) if (key in items && !this.#known.has(key)) fresh.push([items[key].first_sequence, key]);
    for (; this.#marks < marks.length; this.#marks += 1) fresh.push([marks[this.#marks].sequence, `mark:${this.#marks}`]);
    fresh.sort((a, b) => a[0] - b[0]);
    for (const [, key] of fresh) {
      this.#order.push(key);
      this.#known.add(key);
    }
    return fresh.length > 0;
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
    const view = key.startsWith("mark:")
      ? { element: markView(this.#model.state.marks[Number(key.slice(5))]) }
      : new ItemView(key, this.#context);
    this.#views.set(key, view);
    this.#update(key);
    return view;
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

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.#isFollowing = scrollHeight - scrollTop - clientHeight < AT_BOTTOM_PX;
    this.#toEnd.hidden = this.#isFollowing;
  }

  #stick() {
    if (this.#isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}
