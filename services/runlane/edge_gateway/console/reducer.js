/**
 * The state a client sees: a pure fold of facts, the exact twin of `runlane_contracts/reducer.py`.
 *
 * Same facts, same state, same checksum. Previews never enter it. Records that take payload fields have no
 * prototype, so a key such as `__proto__` is only a key.
 */

import { canonicalJson } from "./json.js";
import { sha256 } from "./sha256.js";

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
  approval: ["requested", "voted", "resolved"],
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

/** `sha256:<hex>` over the canonical JSON of the whole state. */
export function checksum(state) {
  return hashText(canonicalJson(state));
}

/** `sha256:<hex>` of a text, as UTF-8. Browsers keep their own digest from pages that came over plain HTTP. */
export async function hashText(text) {
  const bytes = new TextEncoder().encode(text);
  const digest = globalThis.crypto?.subtle === undefined ? sha256(bytes) : new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return `sha256:${Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Apply one fact in place; return the key of the item it changed, or null.
 *
 * A fact that is in the state already changes nothing. One that does not fit its type leaves a mark, so one bad fact
 * stops no reader. Throws `SequenceGap` when a predecessor is missing; the state is then as before.
 */
export function reduce(state, fact) {
  const through = state.through_sequence;
  if (fact.sequence <= through) return null;
  if (fact.sequence !== through + 1) throw new SequenceGap(through + 1, fact.sequence);
  state.through_sequence = fact.sequence;
  const { run } = state;
  run.updated_at = moment(fact);
  if (isSet(fact.session_id)) run.session_id = fact.session_id;
  if (isErased(fact)) {
    reduceErased(run, fact);
    return null;
  }
  if (!fits(fact)) {
    state.marks.push(record({ sequence: fact.sequence, type: "log.quarantined", event_id: fact.event_id, reason: "unfit" }));
    return null;
  }
  const { payload } = fact;
  const [family, verb] = partition(fact.type);
  if (family === "run" && KNOWN_TYPES.has(fact.type)) {
    reduceRun(run, fact, payload);
    return null;
  }
  if (family === "log") {
    erase(state, payload.erased);
    state.marks.push(Object.assign(record(payload), { sequence: fact.sequence, type: fact.type }));
    return null;
  }
  if (fact.type === "approval.voted") return reduceVote(state, fact, payload);
  return reduceItem(state, fact, verb, payload);
}

// --- erasure ------------------------------------------------------------------------------------------------

const KEPT_OF_ERASED = ["tenant_id", "run_id", "session_id", "status", "created_at", "updated_at", "ended_at", "trace_id"];

/** Whether an erasure took the fact's payload: the fact stands for its place and its proof only. */
export function isErased(fact) {
  return (fact.redactions ?? []).some((one) => one.rule === "erasure" && one.path === "" && one.action === "removed");
}

/** A fact without its payload still says how the run stands; of items it says nothing. */
function reduceErased(run, fact) {
  const status = RUN_STATUS.get(fact.type);
  if (status === undefined || TERMINAL_STATUS.has(run.status)) return;
  if (fact.type === "run.created") {
    run.created_at = moment(fact);
    trace(run, fact);
  }
  if (TERMINAL_STATUS.has(status)) run.ended_at = moment(fact);
  move(run, status);
}

/** Forget what an erasure names, so that a state folded before it and one folded after it are the same. */
function erase(state, erased) {
  if (!Array.isArray(erased)) return;
  for (const key of erased) {
    if (key === "*") {
      const kept = record();
      for (const name of KEPT_OF_ERASED) if (name in state.run) kept[name] = state.run[name];
      state.run = kept;
      state.items = record();
      state.marks = state.marks.filter((mark) => mark.reason !== "unfit");
    } else if (typeof key === "string") {
      delete state.items[key];
    }
  }
}

// --- fitness ------------------------------------------------------------------------------------------------

const MAX_NESTING = 128;
const NUMBER = ["number", "bigint"];
const TEXT = ["string"];

// What the fold reads of a payload, beside the id of its item. Everything else may be there or not.
const READ = new Map([
  ["run.leased", { lease_epoch: NUMBER, worker_id: TEXT }],
  ["run.lease_lost", { lease_epoch: NUMBER }],
  ["run.cancel_requested", { deadline_at: TEXT }],
  ["approval.voted", { by: TEXT, decision: TEXT }],
  ["approval.resolved", { decision: TEXT }],
  ["tool.reconciled", { outcome: TEXT }],
]);

function fits(fact) {
  const { payload, type } = fact;
  if (!isObject(payload) || !isPortable(payload, 1)) return false;
  const place = KNOWN_TYPES.get(type);
  if (isSet(place) && typeof own(payload, place[1]) !== "string") return false;
  return Object.entries(READ.get(type) ?? {}).every(([name, kinds]) => kinds.includes(typeof own(payload, name)));
}

// Whether every language can hold the value: not nested too deep, whole characters, finite numbers.
function isPortable(value, level) {
  if (typeof value === "string") return value.isWellFormed?.() ?? true;
  if (typeof value === "number") return Number.isFinite(value);
  if (value === null || typeof value !== "object") return true;
  if (level > MAX_NESTING) return false;
  if (Array.isArray(value)) return value.every((one) => isPortable(one, level + 1));
  return Object.keys(value).every((key) => isPortable(key, level) && isPortable(value[key], level + 1));
}

// --- run ----------------------------------------------------------------------------------------------------

const RUN_STATUS = new Map([
  ["run.created", "created"], ["run.started", "running"], ["run.waiting", "waiting"], ["run.resumed", "running"],
  ["run.paused", "paused"], ["run.cancel_requested", "cancelling"], ["run.completed", "completed"],
  ["run.failed", "failed"], ["run.cancelled", "cancelled"],
]);

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-[A-Za-z0-9_-]{0,64})?$/;
const NOTHING = /^0+$/;

function trace(run, fact) {
  const [, traceId, spanId] = (typeof fact.traceparent === "string" && TRACEPARENT.exec(fact.traceparent)) || [];
  if (traceId === undefined || NOTHING.test(traceId) || NOTHING.test(spanId)) delete run.trace_id;
  else run.trace_id = traceId;
}

function reduceRun(run, fact, payload) {
  if (TERMINAL_STATUS.has(run.status)) return;
  switch (fact.type) {
    case "run.created":
      Object.assign(run, payload, { tenant_id: run.tenant_id, run_id: run.run_id, created_at: moment(fact) });
      trace(run, fact);
      break;
    case "run.leased":
      keep(run, payload, "lease_epoch", "worker_id", "attempt");
      if (run.status === "lost") run.status = "status_before_lost" in run ? run.status_before_lost : "running";
      break;
    case "run.lease_lost":
      reduceLeaseLost(run, payload);
      break;
    case "run.waiting":
      run.waiting_on = Object.hasOwn(payload, "on") ? payload.on : [];
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
  move(run, RUN_STATUS.get(fact.type));
  forgetWhatIsOver(run);
}

function move(run, status) {
  if (status === undefined) return;
  // Nobody drives a lost run; it goes on like this once somebody does.
  if (run.status === "lost" && !TERMINAL_STATUS.has(status) && status !== "cancelling") run.status_before_lost = status;
  else run.status = status;
}

function reduceLeaseLost(run, payload) {
  if (payload.lease_epoch !== run.lease_epoch || !("worker_id" in run)) return;
  run.status_before_lost = run.status;
  run.status = "lost";
  delete run.worker_id;
}

function forgetWhatIsOver(run) {
  if (run.status !== "lost") delete run.status_before_lost;
  const status = "status_before_lost" in run ? run.status_before_lost : run.status;
  if (status !== "waiting") delete run.waiting_on;
}

function keep(target, payload, ...names) {
  for (const name of names) if (Object.hasOwn(payload, name)) target[name] = payload[name];
}

// --- items --------------------------------------------------------------------------------------------------

// What was said about a question in the version before says nothing about the one that is asked now.
const OF_ANOTHER_VERSION = ["votes", "approved_by", "decision", "decided_by", "reason"];

function reduceItem(state, fact, verb, payload) {
  const [kind, id] = identify(fact, payload);
  const key = `${kind}:${id}`;
  const at = moment(fact);
  const item = (state.items[key] ??= record({ first_sequence: fact.sequence, started_at: at }));
  // A payload may hold any name; these are the fold's own.
  Object.assign(item, payload, {
    kind,
    id,
    first_sequence: item.first_sequence,
    started_at: item.started_at,
    status: itemStatus(fact.type, verb, payload),
    last_sequence: fact.sequence,
    updated_at: at,
  });
  if (isSet(fact.turn_id)) item.turn_id = fact.turn_id;
  if (isSet(fact.task_id) && kind !== "task") item.task_id = fact.task_id;
  if (isSet(fact.parent_id)) item.parent_id = fact.parent_id;
  if (fact.type === "approval.requested") for (const name of OF_ANOTHER_VERSION) delete item[name];
  if (OPEN_ITEM_STATUS.has(item.status)) delete item.ended_at;
  else item.ended_at = at;
  if (!KNOWN_TYPES.has(fact.type)) item.type = fact.type;
  return key;
}

// The question stays as it is, and open; who approved it so far is added.
function reduceVote(state, fact, payload) {
  const key = `approval:${payload.approval_id}`;
  const item = own(state.items, key);
  if (item?.status !== "waiting") return null;
  const vote = record({ by: payload.by, decision: payload.decision });
  keep(vote, payload, "action_digest");
  item.votes = Array.isArray(item.votes) ? [...item.votes, vote] : [vote];
  item.last_sequence = fact.sequence;
  item.updated_at = moment(fact);
  return key;
}

function identify(fact, payload) {
  const place = KNOWN_TYPES.get(fact.type);
  if (isSet(place)) return [place[0], payload[place[1]]];
  if (fact.type === "plan.updated") return ["plan", "plan"];
  if (fact.type === "session.started") return ["session", fact.session_id || "session"];
  if (isSet(fact.subject)) return [fact.subject.kind, fact.subject.id];
  return ["other", fact.event_id];
}

function itemStatus(type, verb, payload) {
  if (type === "approval.requested" || type === "input.requested") return "waiting";
  if (type === "approval.resolved") return payload.decision;
  if (type === "tool.reconciled") return payload.outcome === "executed" ? "completed" : "failed";
  return verb;
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

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function own(value, name) {
  return Object.hasOwn(value, name) ? value[name] : undefined;
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
