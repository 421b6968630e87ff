/** One run in memory: state, overlay and the cursor of what was applied last. It outlives every connection. */

import { Overlay } from "./overlay.js";
import { KNOWN_TYPES, adopt, checksum, initialState, isTerminal, mustUnderstand, reduce } from "./reducer.js";

/** A fact of a family that must not be skipped has a type this page does not know: it is too old for this run. */
export class NotUnderstood extends Error {
  constructor(fact) {
    super(`${fact.type} at #${fact.sequence} is newer than this page; reload it`);
    this.name = "NotUnderstood";
  }
}

export class RunModel {
  constructor(runId) {
    this.runId = runId;
    this.state = initialState("", runId);
    this.overlay = new Overlay();
    this.cursor = null;
    this.traceparent = null;
    this.factsApplied = 0;
    this.checksumAgreed = null; // what the last snapshot's checksum said: true, false, or not known
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

  /** Take a snapshot in place of what is known. Returns whether its checksum is that of its state, null if unknown. */
  async restore(frame, cursor) {
    const state = adopt(frame.state);
    const own = await checksum(state);
    this.state = state;
    this.overlay.clear();
    this.cursor = cursor;
    this.checksumAgreed = own === null ? null : own === frame.checksum;
    return this.checksumAgreed;
  }

  /**
   * Apply one fact; return the keys of the items that look different now.
   *
   * Throws `SequenceGap` or `NotUnderstood`; state and cursor are then as before.
   */
  apply(fact, cursor) {
    if (!KNOWN_TYPES.has(fact.type) && mustUnderstand(fact.type)) throw new NotUnderstood(fact);
    const before = this.sequence;
    const key = reduce(this.state, fact);
    this.cursor = cursor ?? this.cursor;
    if (this.sequence === before) return [];
    this.factsApplied += 1;
    this.traceparent ??= fact.traceparent ?? null;
    const changed = this.overlay.settle(fact, key, this.state);
    if (key !== null && !changed.includes(key)) changed.push(key);
    if (fact.type === "tool.requested" && fact.payload?.retry_of) changed.push(`tool:${fact.payload.retry_of}`);
    return changed;
  }
}
