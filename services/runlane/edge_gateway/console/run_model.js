/**
 * One run in memory: state, overlay and the cursor of what was applied last. It outlives every connection.
 *
 * Beside the state it keeps the run's own facts (leases, pauses, …), which the state tells only the sum of.
 */

import { Checksums } from "./checksums.js";
import { ItemIndex } from "./item_index.js";
import { Overlay } from "./overlay.js";
import { KNOWN_TYPES, adopt, initialState, isTerminal, mustUnderstand, reduce, SequenceGap } from "./reducer.js";

/** The server says what this page is too old to understand and must not skip. */
export class NotUnderstood extends Error {
  constructor(what) {
    super(`${what} is newer than this page; reload it`);
    this.name = "NotUnderstood";
  }
}

// What the timeline tells of the run itself, and of its plan. How it began and ended has a place of its own.
const TOLD = new Set([
  "run.leased", "run.lease_lost", "run.started", "run.waiting", "run.resumed", "run.pause_requested", "run.paused",
  "run.cancel_requested", "plan.updated",
]);

/** What every view of a run is drawn from: a state, and what is known beside it. */
export class RunPicture {
  /** `isPast`: this is how the run was, nobody can decide anything in it. */
  constructor(runId, state, { isPast = false } = {}) {
    this.runId = runId;
    this.state = state;
    this.isPast = isPast;
    this.index = new ItemIndex(state);
    this.overlay = new Overlay();
    this.traceparent = null;
    this.runFacts = new Map(); // sequence → fact, for the timeline
  }

  get sequence() {
    return this.state.through_sequence;
  }

  get isEmpty() {
    return this.state.through_sequence === 0;
  }

  get isOver() {
    return isTerminal(this.state);
  }

  /** Whether a later call took the place of this one. */
  isRetried(toolCallId) {
    return this.index.retried.has(toolCallId);
  }

  /** Remember a fact about the run as a whole; return its key in the timeline, or null when it has none. */
  noteRunFact(fact) {
    this.traceparent ??= fact.traceparent ?? null;
    if (!TOLD.has(fact.type) || this.runFacts.has(fact.sequence)) return null;
    this.runFacts.set(fact.sequence, fact);
    return `run ${fact.sequence}`;
  }
}

/** The run as it goes on. */
export class RunModel extends RunPicture {
  #checksums = new Checksums();

  constructor(runId) {
    super(runId, initialState("", runId));
    this.cursor = null;
  }

  /** `sha256:<hex>` of the state as it is now. */
  checksum() {
    return this.#checksums.of(this.state);
  }

  /** Take a snapshot in place of what is known. Returns whether its checksum is that of its state. */
  async restore(frame, cursor) {
    const state = adopt(frame.state);
    const checksums = new Checksums();
    const own = await checksums.of(state);
    this.#checksums = checksums;
    this.state = state;
    this.index = new ItemIndex(state);
    this.overlay.clear();
    this.runFacts.clear();
    this.cursor = cursor;
    return own === frame.checksum;
  }

  #reduce(fact) {
    try {
      return reduce(this.state, fact);
    } catch (error) {
      if (error instanceof SequenceGap) throw error;
      throw new NotUnderstood(`${fact.type} at #${fact.sequence} cannot be folded; it`);
    }
  }

  /**
   * Apply one fact; return the keys of the items that look different now.
   *
   * Throws `SequenceGap` or `NotUnderstood`; state and cursor are then as before.
   */
  apply(fact, cursor) {
    if (!KNOWN_TYPES.has(fact.type) && mustUnderstand(fact.type)) {
      throw new NotUnderstood(`${fact.type} at #${fact.sequence}`);
    }
    const before = this.sequence;
    const key = this.#reduce(fact);
    this.cursor = cursor ?? this.cursor;
    if (this.sequence === before) return [];
    if (key !== null) this.index.note(key, this.state.items[key]);
    const told = this.noteRunFact(fact);
    const changed = this.overlay.settle(fact, key, this.state);
    if (key !== null && !changed.includes(key)) changed.push(key);
    if (told !== null) changed.push(told);
    if (fact.type === "tool.requested" && fact.payload?.retry_of) changed.push(`tool:${fact.payload.retry_of}`);
    return changed;
  }
}
