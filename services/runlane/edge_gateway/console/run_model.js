/**
 * One run in memory: state, overlay and the cursor of what was applied last. It outlives every connection.
 *
 * Beside the state it keeps the run's own facts (leases, pauses, …), which the state tells only the sum of.
 */

import { Overlay } from "./overlay.js";
import { KNOWN_TYPES, adopt, checksum, initialState, isTerminal, mustUnderstand, reduce } from "./reducer.js";

/** The server says what this page is too old to understand and must not skip. */
export class NotUnderstood extends Error {
  constructor(what) {
    super(`${what} is newer than this page; reload it`);
    this.name = "NotUnderstood";
  }
}

// What the timeline tells of the run itself. How it began and ended has a place of its own.
const TOLD = new Set([
  "run.leased", "run.lease_lost", "run.started", "run.waiting", "run.resumed", "run.pause_requested", "run.paused",
  "run.cancel_requested",
]);

export class RunModel {
  constructor(runId) {
    this.runId = runId;
    this.state = initialState("", runId);
    this.overlay = new Overlay();
    this.cursor = null;
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
    return Object.values(this.state.items).some((item) => item.retry_of === toolCallId);
  }

  /** Remember a fact about the run as a whole; return its key in the timeline, or null when it has none. */
  noteRunFact(fact) {
    this.traceparent ??= fact.traceparent ?? null;
    if (!TOLD.has(fact.type) || this.runFacts.has(fact.sequence)) return null;
    this.runFacts.set(fact.sequence, fact);
    return `run ${fact.sequence}`;
  }

  /** Take a snapshot in place of what is known. Returns whether its checksum is that of its state, null if unknown. */
  async restore(frame, cursor) {
    const state = adopt(frame.state);
    const own = await checksum(state);
    this.state = state;
    this.overlay.clear();
    this.runFacts.clear();
    this.cursor = cursor;
    return own === null ? null : own === frame.checksum;
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
    const key = reduce(this.state, fact);
    this.cursor = cursor ?? this.cursor;
    if (this.sequence === before) return [];
    const told = this.noteRunFact(fact);
    const changed = this.overlay.settle(fact, key, this.state);
    if (key !== null && !changed.includes(key)) changed.push(key);
    if (told !== null) changed.push(told);
    if (fact.type === "tool.requested" && fact.payload?.retry_of) changed.push(`tool:${fact.payload.retry_of}`);
    return changed;
  }
}
