/**
 * A long list of which only the rows in sight, and a few around them, are in the page. Heights are guessed until a row
 * was drawn; what the reader looks at stays where it is while rows above it turn out taller or shorter.
 */

import { arrange, h } from "./dom.js";

const GUESS_PX = 28;
const AROUND_PX = 500;
const AT_BOTTOM_PX = 60;
const ROUNDS = 4;

export class VirtualList {
  #rows = [];
  #offsets = new Float64Array(1);
  #heights = new Map(); // key → px, of rows that were drawn once
  #views = new Map(); // key → view, of rows in the page
  #make;
  #from = 0;
  #to = 0;
  #frame = 0;
  #isFollowing = true;
  #scrolledTo = 0;
  #observer;
  #top = h("div.spacer", { "aria-hidden": "true" });
  #bottom = h("div.spacer", { "aria-hidden": "true" });
  #window = h("div.items", { role: "feed" });

  /** `make(row)` gives a view: `{element, update?(row)}`. `onFollow(isFollowing)` tells when the reader leaves the end. */
  constructor(scroller, { make, label, onFollow }) {
    this.scroller = scroller;
    this.#make = make;
    this.onFollow = onFollow;
    this.#window.setAttribute("aria-label", label);
    this.element = h("div.virtual", {}, this.#top, this.#window, this.#bottom);
    this.#observer = new ResizeObserver(() => this.#schedule());
    this.#observer.observe(scroller);
    this.#observer.observe(this.#window);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
  }

  get isFollowing() {
    return this.#isFollowing;
  }

  get rows() {
    return this.#rows;
  }

  /** The element of a row, while it is in the page. */
  elementOf(key) {
    return this.#views.get(key)?.element ?? null;
  }

  close() {
    this.#observer.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  /** Forget every view: the rows mean something else now. */
  reset() {
    this.#views.clear();
    this.#heights.clear();
    this.#window.replaceChildren();
  }

  /** These are the rows now, each with a `key`. */
  set(rows) {
    this.#rows = rows;
    this.#measure();
    this.draw();
  }

  /** Bring what is in the page up to date. */
  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.scroller.clientHeight === 0) return; // it is not shown
    const anchor = this.#isFollowing ? null : this.#anchor();
    for (let round = 0; round < ROUNDS; round += 1) {
      const hasMoved = this.#fill();
      const hasGrown = this.#learn();
      this.#place(anchor);
      if (!hasMoved && !hasGrown) break;
    }
  }

  /** Go to the end, and stay there as it grows. */
  follow() {
    this.#setFollowing(true);
    this.draw();
  }

  /** Bring a row into sight; its element, or null when there is no such row. */
  show(key) {
    const at = this.#rows.findIndex((row) => row.key === key);
    return at < 0 ? null : this.showAt(at);
  }

  showAt(at) {
    this.#setFollowing(false);
    for (let round = 0; round < 3; round += 1) {
      const top = this.#start() + this.#offsets[at];
      const bottom = this.#start() + this.#offsets[at + 1];
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop + 8) this.scroller.scrollTop = top - Math.min(80, clientHeight / 4);
      else if (bottom > scrollTop + clientHeight - 8) this.scroller.scrollTop = bottom - clientHeight + Math.min(80, clientHeight / 4);
      this.draw();
    }
    return this.#views.get(this.#rows[at].key)?.element ?? null;
  }

  // --- heights ------------------------------------------------------------------------------------------------------

  #measure() {
    const rows = this.#rows;
    if (this.#offsets.length < rows.length + 1) this.#offsets = new Float64Array(Math.ceil((rows.length + 1) * 1.5));
    let sum = 0;
    for (let at = 0; at < rows.length; at += 1) {
      this.#offsets[at] = sum;
      sum += this.#heights.get(rows[at].key) ?? GUESS_PX;
    }
    this.#offsets[rows.length] = sum;
  }

  #learn() {
    let hasChanged = false;
    for (const [key, view] of this.#views) {
      const height = view.element.offsetHeight;
      if (this.#heights.get(key) === height) continue;
      this.#heights.set(key, height);
      hasChanged = true;
    }
    if (hasChanged) this.#measure();
    return hasChanged;
  }

  // The row at a distance from the first.
  #at(px) {
    let low = 0;
    let high = this.#rows.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#offsets[middle] <= px) low = middle;
      else high = middle - 1;
    }
    return Math.min(low, Math.max(0, this.#rows.length - 1));
  }

  // Where the list begins inside of what scrolls.
  #start() {
    return this.element.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top + this.scroller.scrollTop;
  }

  #total() {
    return this.#offsets[this.#rows.length];
  }

  // --- the window ---------------------------------------------------------------------------------------------------

  #fill() {
    const before = `${this.#from} ${this.#to}`;
    const height = this.scroller.clientHeight;
    const seen = this.#isFollowing ? this.#total() - height : this.scroller.scrollTop - this.#start();
    this.#from = this.#at(Math.max(0, seen - AROUND_PX));
    this.#to = Math.min(this.#rows.length, this.#at(seen + height + AROUND_PX) + 1);
    this.#keepFocus();
    const shown = this.#rows.slice(this.#from, this.#to);
    const keys = new Set(shown.map((row) => row.key));
    for (const key of this.#views.keys()) if (!keys.has(key)) this.#views.delete(key);
    arrange(this.#window, shown.map((row, index) => this.#drawRow(row, this.#from + index)));
    this.#top.style.height = `${this.#offsets[this.#from] ?? 0}px`;
    this.#bottom.style.height = `${this.#total() - (this.#offsets[this.#to] ?? 0)}px`;
    return before !== `${this.#from} ${this.#to}`;
  }

  #drawRow(row, at) {
    let view = this.#views.get(row.key);
    if (view === undefined) {
      view = this.#make(row);
      this.#views.set(row.key, view);
    }
    view.update?.(row);
    view.element.ariaPosInSet = String(at + 1);
    view.element.ariaSetSize = String(this.#rows.length);
    return view.element;
  }

  // A row that has the focus and leaves the page hands it to the list.
  #keepFocus() {
    const focused = document.activeElement?.closest?.(".item");
    if (focused === null || focused === undefined || !this.#window.contains(focused)) return;
    const at = this.#rows.findIndex((row) => row.key === focused.dataset.key);
    if (at < this.#from || at >= this.#to) this.scroller.focus({ preventScroll: true });
  }

  #anchor() {
    const frame = this.scroller.getBoundingClientRect().top;
    for (const row of this.#window.children) {
      const box = row.getBoundingClientRect();
      if (box.bottom > frame) return { key: row.dataset.key, top: box.top - frame };
    }
    return null;
  }

  #place(anchor) {
    if (this.#isFollowing) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      this.#scrolledTo = this.scroller.scrollTop;
      return;
    }
    const element = anchor === null ? undefined : this.#views.get(anchor.key)?.element;
    if (element === undefined) return;
    const moved = element.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top - anchor.top;
    if (Math.abs(moved) >= 1) this.scroller.scrollTop += moved;
    this.#scrolledTo = this.scroller.scrollTop;
  }

  #schedule() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.draw());
  }

  #scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    // Only who goes up leaves the end: rows that turn out taller push it away, too.
    const left = scrollHeight - scrollTop - clientHeight;
    if (scrollTop < this.#scrolledTo - 1 && left > 1) this.#setFollowing(false);
    else if (left < AT_BOTTOM_PX && scrollTop >= this.#scrolledTo) this.#setFollowing(true);
    this.#scrolledTo = scrollTop;
    this.#schedule();
  }

  #setFollowing(isFollowing) {
    if (this.#isFollowing === isFollowing) return;
    this.#isFollowing = isFollowing;
    this.onFollow(isFollowing);
  }
}
