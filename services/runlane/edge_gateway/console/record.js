/**
 * The record of a run, read back: facts by sequence, and the state at any sequence. A run of some thousand facts is
 * read once and folded here; of a longer one the server is asked for the state at a sequence.
 */

import { Problem } from "./api.js";
import { RunPicture } from "./run_model.js";
import { adopt, initialState, reduce } from "./reducer.js";

const FOLDED_UP_TO = 5000;
const KEYFRAME_EVERY = 250;
const PAGE = 1000;
const KEPT_STATES = 24;

/** The record does not hold what was asked for. */
class Cut extends Error {}

export class Record {
  #api;
  #runId;
  #facts = []; // of a run that is folded here: all from the first on
  #cursor = "";
  #isCut = false;
  #reading = Promise.resolve();
  #keyframes = new Map(); // sequence → state
  #states = new Map(); // of a longer run: sequence → {state, cursor}, the last asked for

  constructor(api, runId) {
    this.#api = api;
    this.#runId = runId;
  }

  /** How the run was at `sequence`, as a picture; `through` is how long the run is. */
  async at(sequence, through, live, signal) {
    const state = await this.#stateAt(sequence, through, signal);
    const picture = new RunPicture(this.#runId, state, { isPast: true });
    for (const fact of live.runFacts.values()) if (fact.sequence <= sequence) picture.noteRunFact(fact);
    picture.traceparent = live.traceparent;
    return picture;
  }

  async #stateAt(sequence, through, signal) {
    if (through <= FOLDED_UP_TO && !this.#isCut) {
      try {
        return await this.#folded(sequence, signal);
      } catch (error) {
        if (!(error instanceof Cut) && !(error instanceof Problem && error.status === 410)) throw error;
        this.#isCut = true; // its first facts were archived: only the server can tell
      }
    }
    return (await this.#asked(sequence, signal)).state;
  }

  /** The facts from `first` to `last`. */
  async facts(first, last, signal) {
    if (this.#facts.length >= last) return this.#facts.slice(first - 1, last);
    if (last <= FOLDED_UP_TO) {
      await this.#readTo(last, signal);
      return this.#facts.slice(first - 1, last);
    }
    const out = [];
    let { cursor } = await this.#asked(first - 1, signal);
    while (out.length < last - first + 1) {
      const page = await this.#api.events(this.#runId, { cursor, limit: Math.min(PAGE, last - first + 1 - out.length), signal });
      out.push(...page.events);
      ({ cursor } = page);
      if (!page.has_more || page.events.length === 0) break;
    }
    return out.filter((fact) => fact.sequence <= last);
  }

  // --- folded here ------------------------------------------------------------------------------------------------

  async #folded(sequence, signal) {
    await this.#readTo(sequence, signal);
    let from = 0;
    for (const at of this.#keyframes.keys()) if (at <= sequence && at > from) from = at;
    const [first] = this.#facts;
    const state = from === 0 ? initialState(first?.tenant_id ?? "", this.#runId) : copyOf(this.#keyframes.get(from));
    for (const fact of this.#facts.slice(from, sequence)) {
      reduce(state, fact);
      if (fact.sequence % KEYFRAME_EVERY === 0 && !this.#keyframes.has(fact.sequence)) this.#keyframes.set(fact.sequence, copyOf(state));
    }
    return state;
  }

  #readTo(sequence, signal) {
    const next = this.#reading.catch(() => {}).then(() => this.#readMore(sequence, signal));
    this.#reading = next;
    return next;
  }

  async #readMore(sequence, signal) {
    while (this.#facts.length < sequence) {
      const page = await this.#api.events(this.#runId, { cursor: this.#cursor, limit: PAGE, signal });
      const fresh = page.events.filter((fact) => fact.sequence > this.#facts.length);
      if (fresh.length > 0 && fresh[0].sequence !== this.#facts.length + 1) throw new Cut(`the record begins at #${fresh[0].sequence}`);
      this.#facts.push(...fresh);
      this.#cursor = page.cursor;
      if (fresh.length === 0) throw new Cut(`the record ends at #${this.#facts.length}`);
    }
  }

  // --- asked for --------------------------------------------------------------------------------------------------

  async #asked(sequence, signal) {
    if (sequence === 0) return { state: initialState("", this.#runId), cursor: "" };
    const kept = this.#states.get(sequence);
    if (kept !== undefined) return { state: copyOf(kept.state), cursor: kept.cursor };
    const { state, cursor } = await this.#api.snapshot(this.#runId, { atSequence: sequence, signal });
    this.#states.set(sequence, { state: adopt(state), cursor });
    if (this.#states.size > KEPT_STATES) this.#states.delete(this.#states.keys().next().value);
    return { state: adopt(state), cursor };
  }
}

// The fold changes records in place, and never what they hold.
function copyOf(state) {
  return adopt(state);
}
