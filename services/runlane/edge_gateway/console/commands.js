/**
 * Asking a run for something. One intent keeps one idempotency key until it has an answer, over reloads too, so asking
 * again after a lost answer repeats the question instead of asking twice. What became of each is told by the place that
 * asked: submitting → succeeded | accepted | refused | unknown, and from the last two on until it is settled.
 */

import { Problem, Unreachable, newKey } from "./api.js";
import { canonicalJson } from "./json.js";

const TRIES = 3;
const PAUSE_MS = 700;
const SETTLE_FIRST_MS = 1500;
const SETTLE_MAX_MS = 15_000;
const SETTLE_ROUNDS = 200;
const STORED = "runlane.unanswered.";
const MAX_STORED_CHARS = 2000;

export class Commander {
  #api;
  #runId;
  #unanswered; // canonical intent → idempotency key
  #states = new Map(); // place → {phase, type, …}
  #listeners = new Set();
  #stop = new AbortController();

  constructor(api, runId) {
    this.#api = api;
    this.#runId = runId;
    this.#unanswered = readUnanswered(runId);
  }

  /** Hear `(place)` whenever what became of a command there changes. */
  listen(listener) {
    this.#listeners.add(listener);
  }

  /** What became of the last command of a place, or undefined. */
  state(place) {
    return this.#states.get(place);
  }

  /** Nobody looks any more: stop asking what became of what. */
  close() {
    this.#stop.abort();
    this.#listeners.clear();
  }

  /**
   * Submit; the state of the place tells how it goes. Resolves with it once the server answered or was given up.
   *
   * `{phase: "succeeded"}`, `{phase: "accepted"}` when it waits for the run, `{phase: "refused", code, text, recorded}`,
   * or `{phase: "unknown", text}` when no answer came: then asking again is safe.
   */
  async submit(place, type, payload) {
    const intent = canonicalJson({ type, payload });
    const key = this.#unanswered.get(intent) ?? newKey();
    this.#remember(intent, key);
    this.#say(place, { phase: "submitting", type, key });
    const state = await this.#ask(type, payload, key);
    if (state.phase !== "unknown") this.#remember(intent, null);
    this.#say(place, { ...state, type, key });
    if (state.phase === "accepted" || state.phase === "unknown") this.#settle(place, intent, type, key);
    return state;
  }

  async #ask(type, payload, key) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        const { status, body } = await this.#api.command(this.#runId, type, payload, key);
        return status === 202 ? ofEntry(body) : { phase: "succeeded" };
      } catch (error) {
        if (error instanceof Problem && !error.isPassing) return refused(error.code, error.message, error.recorded);
        if (!(error instanceof Problem) && !(error instanceof Unreachable)) return { phase: "unknown", text: error.message };
        if (attempt === TRIES) return { phase: "unknown", text: error.message, code: error.code };
        await pause(error.retryAfterMs ?? PAUSE_MS * attempt, this.#stop.signal);
      }
    }
  }

  // Look into the ledger until it knows the end, or somebody asks again.
  async #settle(place, intent, type, key) {
    let wait = SETTLE_FIRST_MS;
    for (let round = 0; round < SETTLE_ROUNDS; round += 1, wait = Math.min(SETTLE_MAX_MS, wait * 1.5)) {
      await pause(wait, this.#stop.signal);
      const now = this.#states.get(place);
      if (this.#stop.signal.aborted || now?.key !== key || now.phase === "submitting") return;
      const found = await this.#look(key);
      if (this.#stop.signal.aborted || this.#states.get(place) !== now) continue;
      if (found === null || (found.phase === now.phase && found.text === now.text)) continue;
      if (found.phase !== "unknown") this.#remember(intent, null);
      this.#say(place, { ...found, type, key });
      if (found.phase === "succeeded" || found.phase === "refused") return;
    }
  }

  async #look(key) {
    try {
      return ofEntry(await this.#api.commandByKey(key, { signal: this.#stop.signal }));
    } catch (error) {
      if (error instanceof Problem && error.status === 404) return { phase: "unknown", text: "the server does not know it", isUnheard: true };
      return null;
    }
  }

  #say(place, state) {
    this.#states.set(place, state);
    for (const listener of this.#listeners) listener(place);
  }

  #remember(intent, key) {
    if (key === null) this.#unanswered.delete(intent);
    else this.#unanswered.set(intent, key);
    try {
      const kept = Array.from(this.#unanswered).filter(([text]) => text.length <= MAX_STORED_CHARS);
      if (kept.length === 0) sessionStorage.removeItem(STORED + this.#runId);
      else sessionStorage.setItem(STORED + this.#runId, JSON.stringify(kept));
    } catch {
      // The page remembers, as long as it lives.
    }
  }
}

function readUnanswered(runId) {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(STORED + runId) ?? "[]"));
  } catch {
    return new Map();
  }
}

function ofEntry(entry) {
  if (entry?.status === "applied") return { phase: "succeeded" };
  if (entry?.status === "rejected" || entry?.status === "expired") {
    const rejection = entry.rejection ?? { code: entry.status, detail: entry.status };
    return refused(rejection.code, rejection.detail || rejection.code, rejection.recorded ?? null);
  }
  return { phase: "accepted" };
}

function refused(code, text, recorded) {
  return { phase: "refused", code, text, recorded };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
