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
const PAGE_AHEAD = 300;
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
  #pages = new Map(); // of a longer run: first sequence → facts

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
        this.#leaveToServer(error);
      }
    }
    return this.#asked(sequence, signal);
  }

  // Its first facts were archived: only the server can tell what was. Other errors are errors.
  #leaveToServer(error) {
    if (!(error instanceof Cut) && !(error instanceof Problem && error.status === 410)) throw error;
    this.#isCut = true;
  }

  /** The facts from `first` to `last`. */
  async facts(first, last, signal) {
    if (this.#facts.length >= last) return this.#facts.slice(first - 1, last);
    if (last <= FOLDED_UP_TO && !this.#isCut) {
      try {
        await this.#readTo(last, signal);
        return this.#facts.slice(first - 1, last);
      } catch (error) {
        this.#leaveToServer(error);
      }
    }
    const out = [];
    while (out.length < last - first + 1) {
      const page = await this.#pageFrom(first + out.length, signal);
      const rest = page.filter((fact) => fact.sequence >= first + out.length && fact.sequence <= last);
      if (rest.length === 0) break;
      out.push(...rest);
    }
    return out;
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

  // The state at a sequence: of the server, or of the one it gave last and the facts since then, so that playing on
  // asks once for many steps.
  async #asked(sequence, signal) {
    const base = Array.from(this.#states.keys()).filter((at) => at <= sequence && sequence - at < PAGE_AHEAD).sort((a, b) => b - a)[0];
    if (base === undefined) return copyOf((await this.#snapshot(sequence, signal)).state);
    const state = copyOf(this.#states.get(base).state);
    if (base < sequence) for (const fact of await this.#pageFrom(base + 1, signal)) if (fact.sequence <= sequence) reduce(state, fact);
    return state.through_sequence === sequence ? state : copyOf((await this.#snapshot(sequence, signal)).state);
  }

  async #snapshot(sequence, signal) {
    const kept = this.#states.get(sequence);
    if (kept !== undefined) return kept;
    const { state, cursor } = await this.#api.snapshot(this.#runId, { atSequence: sequence, signal });
    const found = { state: adopt(state), cursor };
    bounded(this.#states.set(sequence, found));
    return found;
  }

  // Some facts from `first` on.
  async #pageFrom(first, signal) {
    for (const page of this.#pages.values()) if (page[0]?.sequence <= first && page.at(-1).sequence >= first) return page;
    const cursor = first === 1 ? "" : (await this.#snapshot(first - 1, signal)).cursor;
    const { events } = await this.#api.events(this.#runId, { cursor, limit: PAGE_AHEAD, signal });
    bounded(this.#pages.set(first, events));
    return events;
  }
}

function bounded(kept) {
  if (kept.size > KEPT_STATES) kept.delete(kept.keys().next().value);
}

// The fold changes records in place, and never what they hold.
function copyOf(state) {
  return adopt(state);
}
