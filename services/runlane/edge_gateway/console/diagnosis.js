/**
 * What a run is doing, in one sentence, and since when: the first thing to know at three in the morning.
 *
 * Pure. `tone` is `calm` (it works), `ask` (a person is needed), `bad` (it went wrong or stands still), `over`.
 */

import { inertString } from "./text.js";

const QUIET_MS = 120_000;
const UNCLAIMED_MS = 30_000;

/** `{tone, text, since}` of a picture of a run; `since` is a timestamp or undefined. */
export function diagnose(picture, now = Date.now()) {
  const { run } = picture.state;
  const open = Array.from(picture.index.open, (key) => picture.state.items[key]);
  return ended(run) ?? asked(open, run) ?? unknown(open) ?? held(run, now) ?? working(open, run, now);
}

function ended(run) {
  if (run.status === "completed") return { tone: "over", text: "Completed", since: run.ended_at };
  if (run.status === "failed") return { tone: "bad", text: `Failed${run.error?.code ? `: ${inertString(run.error.code, 60)}` : ""}`, since: run.ended_at };
  if (run.status === "cancelled") return { tone: "over", text: `Cancelled${run.reason ? `: ${inertString(run.reason, 120)}` : ""}`, since: run.ended_at };
  return null;
}

function asked(open, run) {
  if (run.status === "cancelling") return null;
  const waiting = open.filter((item) => item.status === "waiting" && (item.kind === "approval" || item.kind === "input"));
  if (waiting.length === 0) return null;
  const [first] = waiting;
  const what = first.kind === "approval" ? "Waits for an approval" : "Waits for an answer";
  const rest = waiting.length > 1 ? ` and ${waiting.length - 1} more` : "";
  return { tone: "ask", text: `${what}${rest}: ${inertString(first.description ?? first.prompt ?? first.id, 90)}`, since: first.updated_at };
}

function unknown(open) {
  const lost = open.filter((item) => item.status === "outcome_unknown");
  if (lost.length === 0) return null;
  return { tone: "ask", text: `Nobody knows whether ${inertString(lost[0].name ?? lost[0].id, 60)} took effect: check, and say so`, since: lost[0].updated_at };
}

function held(run, now) {
  if (run.status === "lost") {
    return { tone: "bad", text: "Nobody drives it: its worker lost the lease, and no other has taken it yet", since: run.updated_at };
  }
  if (run.status === "paused") return { tone: "ask", text: "Paused: resume it when it may go on", since: run.updated_at };
  if (run.status === "cancelling") return { tone: "calm", text: "Asked to stop; its worker winds down", since: run.updated_at };
  if (run.worker_id === undefined && run.created_at !== undefined) {
    const isLate = now - Date.parse(run.created_at) > UNCLAIMED_MS;
    const pool = run.pool && run.dispatch !== "external" ? ` of pool ${inertString(run.pool, 40)}` : "";
    return { tone: isLate ? "bad" : "calm", text: `No worker${pool} has taken it yet`, since: run.created_at };
  }
  return null;
}

function working(open, run, now) {
  const tools = open.filter((item) => item.kind === "tool" && (item.status === "running" || run.status !== "waiting"));
  if (tools.length > 0) {
    const names = Array.from(new Set(tools.map((item) => inertString(item.name ?? item.id, 40)))).slice(0, 3).join(", ");
    return { tone: "calm", text: `Runs ${names}`, since: tools[0].started_at };
  }
  const last = Date.parse(run.updated_at ?? "");
  if (now - last > QUIET_MS) return { tone: "bad", text: "Silent: its worker holds the lease and has recorded nothing", since: run.updated_at };
  const speaking = open.find((item) => item.kind === "message" || item.kind === "reasoning");
  if (speaking !== undefined) return { tone: "calm", text: speaking.kind === "message" ? "Writes a message" : "Thinks", since: speaking.started_at };
  if (run.status === "waiting" && run.waiting_on?.length > 0) return { tone: "calm", text: "Decided; its worker has yet to go on", since: run.updated_at };
  return { tone: "calm", text: run.status === "waiting" ? "Waits" : "Works", since: run.updated_at };
}
