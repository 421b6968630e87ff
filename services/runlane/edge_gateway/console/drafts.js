/**
 * What was typed and not sent yet. It outlives whatever redraws the page: another run, a reset, a reload of the tab.
 * Secrets are never given to it.
 */

const KEY = "runlane.drafts";
const MAX_CHARS = 200_000;
const SAVE_PAUSE_MS = 250;

class Drafts {
  #texts;
  #timer = 0;

  constructor() {
    this.#texts = read();
    addEventListener("pagehide", () => this.#save());
  }

  get(name) {
    return this.#texts.get(name);
  }

  /** Remember a text; null forgets it. */
  set(name, text) {
    if (text === null) this.#texts.delete(name);
    else this.#texts.set(name, text);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#save(), SAVE_PAUSE_MS);
  }

  /** Forget all drafts whose names begin so. */
  forget(prefix) {
    for (const name of this.#texts.keys()) if (name.startsWith(prefix)) this.set(name, null);
  }

  /** Let a control begin with its draft and keep it up to date. */
  bind(name, control) {
    const kept = this.get(name);
    if (kept !== undefined) control.value = kept;
    const original = control.defaultValue ?? "";
    control.addEventListener("input", () => this.set(name, control.value === original && original === "" ? null : control.value));
    return control;
  }

  #save() {
    const text = JSON.stringify(Array.from(this.#texts));
    try {
      if (text.length <= MAX_CHARS) sessionStorage.setItem(KEY, text);
    } catch {
      // They live as long as the page.
    }
  }
}

function read() {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(KEY) ?? "[]"));
  } catch {
    return new Map();
  }
}

/** The drafts of this tab. */
export const drafts = new Drafts();
