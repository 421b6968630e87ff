/**
 * Asking a run for something, from a button: one intent keeps one idempotency key until it has an answer, so a click
 * after a lost answer repeats the question instead of asking twice.
 */

import { Problem, Unreachable, newKey } from "./api.js";
import { canonicalJson } from "./json.js";

const TRIES = 3;
const PAUSE_MS = 700;

export class Commander {
  #api;
  #runId;
  #unanswered = new Map(); // canonical intent → idempotency key

  constructor(api, runId) {
    this.#api = api;
    this.#runId = runId;
  }

  /**
   * Submit and wait for the outcome.
   *
   * Returns `{done: true}` when it was applied, `{held: true}` when it was accepted and waits, or
   * `{refused: text, code, recorded}`, or `{unknown: text}` when no answer came: then asking again is safe.
   */
  async submit(type, payload) {
    const intent = canonicalJson({ type, payload });
    const key = this.#unanswered.get(intent) ?? newKey();
    this.#unanswered.set(intent, key);
    for (let attempt = 1; ; attempt += 1) {
      try {
        const { status, body } = await this.#api.command(this.#runId, type, payload, key);
        this.#unanswered.delete(intent);
        return outcome(status, body);
      } catch (error) {
        if (error instanceof Problem && !error.isPassing) {
          this.#unanswered.delete(intent);
          return { refused: error.message, code: error.code, recorded: error.recorded };
        }
        if (!(error instanceof Problem) && !(error instanceof Unreachable)) throw error;
        if (attempt === TRIES) return { unknown: error.message };
        await new Promise((resolve) => setTimeout(resolve, error.retryAfterMs ?? PAUSE_MS * attempt));
      }
    }
  }
}

function outcome(status, body) {
  if (status !== 202 || body?.status === "applied") return { done: true };
  if (body?.status === "rejected" || body?.status === "expired") {
    const rejection = body.rejection ?? { code: body.status, detail: body.status };
    return { refused: rejection.detail || rejection.code, code: rejection.code, recorded: rejection.recorded ?? null };
  }
  return { held: true };
}
