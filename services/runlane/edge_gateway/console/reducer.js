/**
 * The state a client sees: a pure fold of facts, the exact twin of `runlane_contracts/reducer.py`.
 *
 * Same facts, same state, same checksum. Previews never enter it. Records that take payload fields have no
 * prototype, so a key such as `__proto__` is only a key.
 */

import { canonicalJson } from "./json.js";

export const REDUCER_VERSION = 1;

export const TERMINAL_STATUS = new Set(["completed", "failed", "cancelled"]);
export const OPEN_ITEM_STATUS = new Set([
  "started", "requested", "running", "outcome_unknown", "waiting", "created", "updated",
]);

const ITEM_FIELD = {
  turn: "turn_id", message: "message_id", reasoning: "reasoning_id", tool: "tool_call_id", approval: "approval_id",
  input: "input_id", task: "task_id", artifact: "artifact_id",
};
const VERBS = {
  session: ["started"],
  run: [
    "created", "leased", "started", "waiting", "resumed", "pause_requested", "paused", "cancel_requested", "lease_lost",
    "completed", "failed", "cancelled",
  ],
  turn: ["started", "completed"],
  plan: ["updated"],
  message: ["started", "completed", "failed", "cancelled"],
  reasoning: ["started", "completed", "failed", "cancelled"],
  tool: ["requested", "running", "completed", "failed", "cancelled", "outcome_unknown", "reconciled"],
  approval: ["requested", "resolved"],
  input: ["requested", "provided", "cancelled"],
  task: ["created", "updated", "completed", "failed", "cancelled"],
  artifact: ["created", "updated", "completed", "failed"],
  log: ["quarantined", "compacted"],
};

/** Every type of fact this page knows → the kind and id field of its item, or null. */
export const KNOWN_TYPES = new Map(
  Object.entries(VERBS).flatMap(([family, verbs]) =>
    verbs.map((verb) => [`${family}.${verb}`, family in ITEM_FIELD ? [family, ITEM_FIELD[family]] : null]),
  ),
);

const MUST_UNDERSTAND = new Set(["run", "approval", "input", "log"]);

/** Whether a reader that does not know `type` has to stop instead of showing a generic item. */
export function mustUnderstand(type) {
  return MUST_UNDERSTAND.has(type.split(".", 1)[0]);
}

/** A fact arrived whose predecessor did not. */
export class SequenceGap extends Error {
  constructor(expected, got) {
    super(`expected sequence ${expected}, got ${got}`);
    this.name = "SequenceGap";
    this.expected = expected;
    this.got = got;
  }
}

/** A run of which nothing is known yet. */
export function initialState(tenantId, runId) {
  return adopt({
    run: { tenant_id: tenantId, run_id: runId, status: "created" },
    items: {},
    marks: [],
    through_sequence: 0,
  });
}

/** A state that came as JSON, made ready to be folded on. */
export function adopt(state) {
  const items = record();
  for (const key of Object.keys(state.items)) items[key] = record(state.items[key]);
  return {
    run: record(state.run),
    items,
    marks: state.marks.map((mark) => record(mark)),
    through_sequence: state.through_sequence,
  };
}

/** `sha256:<hex>` over the canonical JSON of the whole state; null where the browser has no digest (plain HTTP). */
export async function checksum(state) {
  if (globalThis.crypto?.subtle === undefined) return null;
  const bytes = new TextEncoder().encode(canonicalJson(state));
  const digest = await crypto.subtle.digest("SHA-256", bytes);
  return `sha256:${Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Apply one fact in place; return the key of the item it changed, or null.
 *
 * A fact that is in the state already changes nothing. Throws `SequenceGap` when a predecessor is missing; the
 * state is then as before.
 */
export function reduce(state, fact) {
  const through = state.through_sequence;
  if (fact.sequence <= through) return null;
  if (fact.sequence !== through + 1) throw new SequenceGap(through + 1, fact.sequence);
  state.through_sequence = fact.sequence;
  const { run } = state;
  run.updated_at = moment(fact);
  if (isSet(fact.session_id)) run.session_id = fact.session_id;
  const { payload } = fact;
  const [family, verb] = partition(fact.type);
  if (family === "run" && KNOWN_TYPES.has(fact.type)) {
    reduceRun(run, fact, payload);
    return null;
  }
  if (family === "log") {
    state.marks.push(Object.assign(record({ sequence: fact.sequence, type: fact.type }), payload));
    return null;
  }
  return reduceItem(state, fact, verb, payload);
}

// --- run ----------------------------------------------------------------------------------------------------

const RUN_STATUS = new Map([
  ["run.created", "created"], ["run.started", "running"], ["run.waiting", "waiting"], ["run.resumed", "running"],
  ["run.paused", "paused"], ["run.cancel_requested", "cancelling"], ["run.completed", "completed"],
  ["run.failed", "failed"], ["run.cancelled", "cancelled"],
]);

function reduceRun(run, fact, payload) {
  if (TERMINAL_STATUS.has(run.status)) return;
  switch (fact.type) {
    case "run.created":
      Object.assign(run, payload, { created_at: moment(fact) });
      break;
    case "run.leased":
      Object.assign(run, payload);
      if (run.status === "lost") {
        run.status = run.status_before_lost ?? "running";
        delete run.status_before_lost;
      }
      break;
    case "run.lease_lost":
      if (payload.lease_epoch === run.lease_epoch) {
        run.status_before_lost = run.status;
        run.status = "lost";
        delete run.worker_id;
      }
      break;
    case "run.waiting":
      run.waiting_on = payload.on ?? [];
      break;
    case "run.cancel_requested":
      run.cancel_deadline_at = payload.deadline_at;
      keep(run, payload, "reason");
      break;
    case "run.completed":
    case "run.failed":
    case "run.cancelled":
      keep(run, payload, "output", "usage", "error", "reason");
      run.ended_at = moment(fact);
      delete run.worker_id;
      break;
    default:
  }
  const status = RUN_STATUS.get(fact.type);
  if (status !== undefined) run.status = status;
  if (run.status !== "waiting") delete run.waiting_on;
}

function keep(target, payload, ...names) {
  for (const name of names) if (Object.hasOwn(payload, name)) target[name] = payload[name];
}

// --- items --------------------------------------------------------------------------------------------------

function reduceItem(state, fact, verb, payload) {
  const [kind, id] = identify(fact, payload);
  const key = `${kind}:${id}`;
  const at = moment(fact);
  const item = (state.items[key] ??= record({ kind, id, first_sequence: fact.sequence, started_at: at }));
  Object.assign(item, payload);
  item.status = itemStatus(fact.type, verb, payload);
  item.last_sequence = fact.sequence;
  item.updated_at = at;
  if (isSet(fact.turn_id)) item.turn_id = fact.turn_id;
  if (isSet(fact.task_id) && kind !== "task") item.task_id = fact.task_id;
  if (isSet(fact.parent_id)) item.parent_id = fact.parent_id;
  if (OPEN_ITEM_STATUS.has(item.status)) delete item.ended_at;
  else item.ended_at = at;
  if (!KNOWN_TYPES.has(fact.type)) item.type = fact.type;
  return key;
}

function identify(fact, payload) {
  const place = KNOWN_TYPES.get(fact.type);
  if (isSet(place)) {
    const [kind, field] = place;
    if (!Object.hasOwn(payload, field)) throw new TypeError(`${fact.type} without ${field}`);
    return [kind, payload[field]];
  }
  if (fact.type === "plan.updated") return ["plan", "plan"];
  if (fact.type === "session.started") return ["session", fact.session_id || "session"];
  if (isSet(fact.subject)) return [fact.subject.kind, fact.subject.id];
  return ["other", fact.event_id];
}

function itemStatus(type, verb, payload) {
  if (type === "approval.requested" || type === "input.requested") return "waiting";
  if (type === "approval.resolved") return String(payload.decision);
  return verb === "reconciled" ? "completed" : verb;
}

// --- questions ----------------------------------------------------------------------------------------------

/** Whether the run is over. */
export function isTerminal(state) {
  return TERMINAL_STATUS.has(state.run.status);
}

/** Whether an item may still change by itself. */
export function isOpen(item) {
  return OPEN_ITEM_STATUS.has(item.status);
}

// --- records ------------------------------------------------------------------------------------------------

function record(fields = {}) {
  return Object.assign(Object.create(null), fields);
}

function moment(fact) {
  return fact.recorded_at || fact.occurred_at;
}

function isSet(value) {
  return value !== undefined && value !== null;
}

function partition(type) {
  const dot = type.indexOf(".");
  return dot < 0 ? [type, ""] : [type.slice(0, dot), type.slice(dot + 1)];
}
