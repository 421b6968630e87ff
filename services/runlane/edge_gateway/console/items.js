/**
 * One view per row of the timeline. A view redraws its inside when its item or the preview over it changes; what the
 * reader opened stays open, also when the row was out of sight in between.
 */

import { attribute, h, present, setText } from "./dom.js";
import { part, rawFacts, storedContent } from "./evidence.js";
import { between, clock, fullMoment, took } from "./moments.js";
import { PreviewView } from "./preview_view.js";
import { isOpen } from "./reducer.js";
import { argumentsLine, block, contentText, digestLine, inert, inertString, inline } from "./text.js";

const FAILED = new Set(["failed", "outcome_unknown", "rejected", "expired", "revoked"]);
const QUIET = new Set(["turn", "session"]); // they only say where we are
const MESSAGE_CHARS = 1600;

export class ItemView {
  #context;
  #drawn = null;
  #preview = null;
  #time = h("time");
  #number = h("span.number");
  #sign = h("span.sign", { "aria-hidden": "true" });
  #body = h("div.body");

  /** `context`: see `Timeline`. */
  constructor(key, context) {
    this.key = key;
    this.#context = context;
    this.element = h("article.item", { tabindex: -1, "data-key": key },
      h("div.gutter", {}, this.#number, this.#time), this.#sign, this.#body);
  }

  /** Draw the item as it is now; `item` is undefined while only a preview knows of it. */
  update(row) {
    const { item } = row;
    const preview = this.#context.overlay().get(this.key);
    const kind = item?.kind ?? preview?.kind ?? "other";
    const status = item?.status ?? (preview?.fate ?? "provisional");
    attribute(this.element, "data-kind", kind);
    attribute(this.element, "data-status", status);
    attribute(this.element, "data-failed", FAILED.has(status));
    attribute(this.element, "data-provisional", item === undefined);
    attribute(this.element, "data-nested", row.isNested === true || (item?.parent_id !== undefined && item?.parent_id !== null));
    setText(this.#sign, QUIET.has(kind) ? "·" : (SIGNS[status] ?? (item !== undefined && isOpen(item) ? "●" : "·")));
    const mark = `${item?.last_sequence}/${kind}/${this.#context.mark()}/${item !== undefined && canRetry(item, this.#context)}`;
    if (this.#drawn !== mark) {
      this.#drawn = mark;
      this.#draw(item, kind);
    }
    this.#drawPreview(preview, kind);
  }

  #draw(item, kind) {
    attribute(this.element, "aria-label", item === undefined ? `${kind}, provisional` : labelOf(item));
    if (item === undefined) {
      setText(this.#time, "");
      setText(this.#number, "live");
      this.#body.replaceChildren(head(TITLES[kind] ?? inertString(kind, 40), h("span.status", { "data-status": "provisional" }, "provisional")));
      return;
    }
    setText(this.#time, clock(item.started_at));
    attribute(this.#time, "datetime", item.started_at);
    attribute(this.#time, "title", fullMoment(item.started_at));
    setText(this.#number, `#${item.first_sequence}`);
    attribute(this.#number, "title", item.first_sequence === item.last_sequence ? `fact #${item.first_sequence}` : `facts #${item.first_sequence}–#${item.last_sequence}`);
    const at = Array.from(this.#body.querySelectorAll("summary")).indexOf(document.activeElement);
    const hadFocus = at < 0 && this.#body.contains(document.activeElement);
    this.#body.replaceChildren(...present((DRAW[kind] ?? drawOther)(item, this.#context)));
    if (at >= 0) (this.#body.querySelectorAll("summary")[at] ?? this.element).focus({ preventScroll: true });
    if (hadFocus) this.element.focus({ preventScroll: true });
  }

  #drawPreview(entry, kind) {
    if (entry === undefined) {
      this.#preview?.element.remove();
      this.#preview = null;
      return;
    }
    if (this.#preview?.entry !== entry) {
      this.#preview?.element.remove();
      this.#preview = new PreviewView(entry, kind);
    }
    if (this.#preview.element.parentElement !== this.#body) this.#body.append(this.#preview.element);
    this.#preview.update();
  }
}

/** Several rows that are alike, as one. */
export class GroupView {
  #drawn = "";
  #body = h("div.body");
  #number = h("span.number");
  #time = h("time");
  #sign = h("span.sign", { "aria-hidden": "true" });
  #context;

  constructor(key, context) {
    this.key = key;
    this.#context = context;
    this.element = h("article.item.group", { tabindex: -1, "data-key": key, "data-kind": "group" },
      h("div.gutter", {}, this.#number, this.#time), this.#sign, this.#body);
  }

  update(group) {
    const isOpened = this.#context.isOpened(this.key);
    const mark = `${group.items.length}/${group.last}/${isOpened}`;
    if (this.#drawn === mark) return;
    this.#drawn = mark;
    const [first] = group.items;
    const last = group.items.at(-1);
    setText(this.#number, `#${group.first}`);
    setText(this.#time, clock(first.started_at));
    attribute(this.#time, "title", fullMoment(first.started_at));
    attribute(this.element, "data-status", group.status);
    setText(this.#sign, QUIET.has(group.kind) ? "·" : (SIGNS[group.status] ?? "·"));
    attribute(this.element, "aria-label", `${inertString(group.name, 60)}, ${group.items.length} times, ${inertString(group.status, 20)}`);
    const hadFocus = this.#body.contains(document.activeElement);
    const button = h("button.fold-head", { type: "button", "aria-expanded": String(isOpened), onClick: () => this.#context.toggle(this.key) },
      group.kind === "tool" ? h("code.name", {}, inline(group.name, 80)) : h("span.kind", {}, TITLES[group.kind]),
      h("span.count", {}, `×${group.items.length.toLocaleString("en")}`),
      group.status === "completed" ? null : h("span.status", { "data-status": group.status }, inertString(group.status, 30)),
      h("code.digest", {}, ...inert(digests(group.items))),
      h("span.faint", { title: "from the first to the last" }, between(first.started_at, last.ended_at ?? last.updated_at)),
      h("span.faint.number", {}, `#${group.first}–#${group.last}`));
    this.#body.replaceChildren(button);
    if (hadFocus) button.focus({ preventScroll: true });
  }
}

function digests(items) {
  const lines = items.slice(0, 4).map((item) => argumentsLine(item.arguments ?? contentText(item.summary ?? item.content).slice(0, 200), 48)).filter((line) => line !== "");
  return lines.join(" · ") + (items.length > 4 && lines.length > 0 ? " · …" : "");
}

// --- parts ----------------------------------------------------------------------------------------------------

const SIGNS = {
  completed: "✓", approved: "✓", provided: "✓", modified: "✓", failed: "✕", rejected: "✕", expired: "✕", revoked: "✕",
  cancelled: "–", outcome_unknown: "?", waiting: "?", provisional: "…", abandoned: "–",
};

const TITLES = {
  message: "Message", reasoning: "Reasoning", tool: "Tool", approval: "Approval", input: "Question", task: "Task",
  artifact: "Artifact", turn: "Turn", session: "Session",
};

const STATUS_WORDS = { outcome_unknown: "outcome unknown", waiting: "waiting for you" };

function labelOf(item) {
  const words = [TITLES[item.kind] ?? item.kind, item.name ?? item.role ?? item.title].filter((word) => typeof word === "string").join(" ");
  return inertString(`${words}, ${STATUS_WORDS[item.status] ?? item.status}, fact ${item.first_sequence}`, 120);
}

function head(title, ...rest) {
  return h("header.head", {}, h("span.kind", {}, title), ...rest);
}

function statusOf(item) {
  return h("span.status", { "data-status": item.status }, inertString(STATUS_WORDS[item.status] ?? item.status, 40));
}

function lasted(item) {
  if (item.ended_at === undefined) return item.started_at === undefined || !isOpen(item) ? null : h("time.faint", { "data-since": item.started_at });
  const time = took(item.started_at, item.ended_at);
  return time === "" || item.first_sequence === item.last_sequence ? null : h("span.faint", {}, time);
}

function failure(error) {
  if (error === null || error === undefined) return null;
  if (typeof error !== "object") return h("p.failure", {}, block(error));
  return h("div.failure", {},
    h("strong", {}, inline(error.code ?? "error", 80)), " ", block(error.message ?? "", { first: 2000 }),
    error.retryable === true ? h("span.faint", {}, " retryable") : null);
}

function why(item) {
  return item.reason ? h("p.faint", {}, "because: ", inline(item.reason, 400)) : null;
}

// A fold of one item; `name` tells it from others of the same item.
function fold(item, context, name, summary, draw) {
  const key = `${item.kind}:${item.id} ${name}`;
  const details = h("details.fold", {}, h("summary", {}, ...present([summary])));
  const open = () => {
    if (details.childElementCount === 1) details.append(h("div.inside", {}, ...present(draw())));
  };
  if (context.isOpened(key)) {
    details.open = true;
    open();
  }
  details.addEventListener("toggle", () => {
    if (details.open) open();
    context.setOpened(key, details.open);
  });
  return details;
}

// --- kinds ----------------------------------------------------------------------------------------------------

function drawMessage(item) {
  const role = item.role ?? "message";
  const isDone = item.status === "completed";
  return [
    head(inertString(role, 40), isDone ? null : statusOf(item), lasted(item)),
    item.content === undefined ? null : block(contentText(item.content), { first: MESSAGE_CHARS }),
    failure(item.error),
    isDone ? null : why(item),
  ];
}

function drawReasoning(item, context) {
  const text = contentText(item.content ?? item.summary);
  const hint = item.redacted === true && text === "" ? "withheld" : digestLine(contentText(item.summary ?? item.content), 160);
  const summary = [h("span.kind", {}, "Reasoning"), h("span.digest", {}, ...inert(hint)), lasted(item), item.status === "completed" ? null : statusOf(item)];
  if (text === "") return [h("header.head", {}, ...present(summary)), failure(item.error), why(item)];
  return [
    fold(item, context, "text", summary, () => [
      item.summary !== undefined && item.content !== undefined ? block(contentText(item.summary)) : null,
      block(contentText(item.content ?? item.summary)),
      rawFacts(item, context),
    ]),
    failure(item.error),
  ];
}

function drawTool(item, context) {
  const isDone = item.status === "completed";
  const summary = [
    h("code.name", {}, inline(item.name ?? item.id, 80)),
    h("code.digest", {}, ...inert(argumentsLine(item.arguments))),
    item.attempt > 1 ? h("span.attempt", {}, `attempt ${item.attempt}`) : null, lasted(item),
    h(isDone ? "span.visually-hidden" : "span.status", { "data-status": item.status }, inertString(STATUS_WORDS[item.status] ?? item.status, 40)),
  ];
  return [
    fold(item, context, "call", summary, () => [
      part("Arguments", item.arguments), part("Result", item.result), storedContent(item.content_ref, context), part("Note", item.note),
      h("p.faint", {}, toolFacts(item)), rawFacts(item, context),
    ]),
    failure(item.error),
    item.status === "cancelled" ? why(item) : null,
    item.outcome === undefined ? null : h("p.faint", {}, `reconciled: ${inertString(item.outcome)} — said by `, inline(item.by ?? ""), item.note ? [": ", inline(item.note, 200)] : null),
    canRetry(item, context) ? context.retryControl(item) : null,
    item.status === "outcome_unknown" && !context.isOver() ? context.pointer(item) : null,
  ];
}

/** Whether a person may ask for this call again. */
export function canRetry(item, context) {
  return item.kind === "tool" && item.status === "failed" && item.error?.retryable === true && !context.isOver() && !context.isRetried(item.id);
}

function toolFacts(item) {
  const parts = [`call ${item.id}`, `side effect ${item.side_effect ?? "none"}`, `attempt ${item.attempt ?? 1}`];
  if (item.retry_of) parts.push(`retry of ${item.retry_of}`);
  if (item.operation_id) parts.push(`operation ${item.operation_id}`);
  if (item.action_digest) parts.push(`action ${item.action_digest}`);
  return inertString(parts.join(" · "), 400);
}

function drawApproval(item, context) {
  const isWaiting = item.status === "waiting";
  const by = isWaiting ? null : h("span.verdict", {}, "decided by ", h("strong", {}, inline(item.decided_by ?? "nobody", 80)), item.reason ? [": ", inline(item.reason, 400)] : null);
  return [
    head("Approval", statusOf(item), riskOf(item), lasted(item), by),
    h("div.question", {}, block(item.description ?? "", { first: 600 })),
    isWaiting && !context.isOver() ? context.pointer(item) : null,
    fold(item, context, "asked", [h("span.faint", {}, "What was asked")], () => [
      part(item.status === "modified" ? "Data, as approved" : "Data", item.data), h("p.faint", {}, approvalFacts(item)), rawFacts(item, context),
    ]),
  ];
}

/** How risky the agent says it is; nothing where it does not say. */
export function riskOf(item) {
  if (!item.risk || item.risk === "unknown") return null;
  return h("span.risk", { "data-risk": inertString(item.risk, 20).toLowerCase() }, "risk ", inline(item.risk, 40));
}

function approvalFacts(item) {
  const parts = [`version ${item.version}`];
  if (item.action_digest) parts.push(`action ${item.action_digest}`);
  if (Array.isArray(item.approved_by)) parts.push(`approved by ${item.approved_by.join(", ")}`);
  return inertString(parts.join(" · "), 400);
}

function drawInput(item, context) {
  const isWaiting = item.status === "waiting";
  return [
    head("Question", statusOf(item), lasted(item),
      item.status === "provided" ? h("span.verdict", {}, "answered by ", h("strong", {}, inline(item.by ?? "", 80))) : null),
    h("div.question", {}, block(item.prompt ?? "", { first: 600 })),
    isWaiting && !context.isOver() ? context.pointer(item) : null,
    item.value === undefined || item.value === null ? null : block(item.value, { className: "code", first: 1000 }),
    why(item),
  ];
}

function drawTask(item, context) {
  const detail = item.detail ?? item.result;
  return [
    head("Task", h("strong", {}, inline(item.title ?? item.id)), statusOf(item), lasted(item)),
    item.description ? block(item.description, { first: 600 }) : null,
    detail === undefined || detail === null ? null : fold(item, context, "detail", [h("span.faint", {}, "Detail")], () => [part("Detail", item.detail), part("Result", item.result), rawFacts(item, context)]),
    failure(item.error),
    why(item),
  ];
}

function drawTurn(item) {
  return [h("div.rule", {}, h("span", { title: inertString(item.turn_id ?? item.id, 64) }, "Turn ", inline(item.turn_id ?? item.id, 16)), usage(item.usage), lasted(item))];
}

function drawSession(item) {
  return [h("div.rule", {}, h("span", {}, "Session ", inline(item.title ?? item.id, 120)))];
}

function drawArtifact(item, context) {
  const hasContent = item.content !== undefined && item.content !== null;
  return [
    head("Artifact", h("strong", {}, inline(item.name ?? item.id)), h("span.faint", {}, inline(item.media_type ?? "", 80)), statusOf(item)),
    hasContent || item.content_ref ? fold(item, context, "content", [h("span.faint", {}, "Content")], () => [
      hasContent ? part("Content", item.content) : null, storedContent(item.content_ref, context), rawFacts(item, context),
    ]) : null,
    failure(item.error),
  ];
}

const ENVELOPE = new Set(["kind", "id", "first_sequence", "last_sequence", "started_at", "updated_at", "ended_at", "status", "type"]);

function drawOther(item, context) {
  const payload = Object.fromEntries(Object.entries(item).filter(([name]) => !ENVELOPE.has(name) && name !== "__proto__"));
  return [
    fold(item, context, "payload", [h("span.kind.verbatim", {}, inline(item.type ?? item.kind, 80)), h("code.digest", {}, ...inert(digestLine(payload))), isOpen(item) ? statusOf(item) : null],
      () => [part("Payload", payload), rawFacts(item, context)]),
    failure(item.error),
  ];
}

/** `1,204 in · 310 out` of whatever the agent counted. */
export function usage(counts) {
  if (counts === null || typeof counts !== "object") return null;
  const parts = Object.entries(counts)
    .filter(([, value]) => typeof value === "number" || typeof value === "bigint")
    .slice(0, 5)
    .map(([name, value]) => `${value.toLocaleString("en")} ${name.replaceAll("_", " ")}`);
  return parts.length === 0 ? null : h("span.faint", {}, inertString(parts.join(" · ")));
}

const DRAW = Object.assign(Object.create(null), {
  message: drawMessage, reasoning: drawReasoning, tool: drawTool, approval: drawApproval, input: drawInput,
  task: drawTask, turn: drawTurn, session: drawSession, artifact: drawArtifact,
});

// --- what is no item ------------------------------------------------------------------------------------------------

const RUN_LINES = {
  "run.leased": (payload) => [inline(payload.worker_id ?? "a worker", 64), ` took the run, lease epoch ${payload.lease_epoch}`, payload.attempt > 1 ? `, attempt ${payload.attempt}` : ""],
  "run.lease_lost": (payload) => [`Lease epoch ${payload.lease_epoch} was lost: `, inline(payload.cause ?? "expired", 40)],
  "run.started": () => ["Started"],
  "run.waiting": (payload) => ["Waits for ", inline((payload.on ?? []).map((one) => `${one.kind} ${one.id}`).join(", ") || "something", 200)],
  "run.resumed": () => ["Goes on"],
  "run.pause_requested": () => ["Asked to pause"],
  "run.paused": () => ["Paused"],
  "run.cancel_requested": (payload) => ["Asked to stop by ", h("time", { title: fullMoment(payload.deadline_at) }, clock(payload.deadline_at)), payload.reason ? [": ", inline(payload.reason, 300)] : ""],
};

/** A line for a fact about the run itself, or for one more version of its plan. */
export function runLine(key, fact, context) {
  const at = fact.recorded_at ?? fact.occurred_at;
  return h("article.item.run-line", { "data-kind": "run", "data-key": key, "data-type": fact.type, tabindex: -1, "aria-label": fact.type },
    h("div.gutter", {}, h("span.number", {}, `#${fact.sequence}`), h("time", { datetime: at, title: fullMoment(at) }, clock(at))),
    h("span.sign", { "aria-hidden": "true" }, "·"),
    h("div.body", {}, fact.type === "plan.updated" ? planOf(fact, context) : h("span", {}, ...present(RUN_LINES[fact.type](fact.payload ?? {})))));
}

function planOf(fact, context) {
  const { steps, version } = fact.payload ?? {};
  const item = { kind: "plan", id: `#${fact.sequence}`, first_sequence: fact.sequence, last_sequence: fact.sequence };
  const count = Array.isArray(steps) ? `, ${steps.length} step${steps.length === 1 ? "" : "s"}` : "";
  return fold(item, context, "steps", [h("span.kind", {}, "Plan"), h("span.digest", {}, inertString(`version ${version ?? ""}${count}`, 60))],
    () => [part("Steps", steps), rawFacts(item, context)]);
}

/** A mark of the log itself: something was quarantined, or replaced by a snapshot. */
export function markView(key, mark) {
  const text = mark.type === "log.quarantined"
    ? ["a fact was quarantined: ", inline(mark.reason ?? "", 400)]
    : mark.type === "log.compacted" && mark.reason === "erasure"
      ? [`content of facts #${mark.from_sequence}–#${mark.to_sequence} was erased (`, inline(Array.isArray(mark.erased) ? mark.erased.join(", ") : ""), "): ", inline(mark.policy ?? "", 400)]
    : mark.type === "log.compacted"
      ? [`facts #${mark.from_sequence}–#${mark.to_sequence} were replaced by a snapshot (`, inline(mark.reason ?? ""), ", policy ", inline(mark.policy ?? ""), ")"]
      : [inline(mark.type), " ", h("code", {}, ...inert(digestLine(mark)))];
  return h("article.item.log-mark", { "data-kind": "log", "data-key": key, tabindex: -1, "aria-label": "mark of the log" },
    h("div.gutter", {}, h("span.number", {}, `#${mark.sequence}`)), h("span.sign", { "aria-hidden": "true" }, "!"), h("div.body", {}, head("Log", ...text)));
}
