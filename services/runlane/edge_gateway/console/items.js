/**
 * One view per item of the timeline. A view keeps its element for life and redraws its inside when the item or the
 * preview over it changes; folds keep their state.
 */

import { attribute, h } from "./dom.js";
import { approvalForm, inputForm, reconcileForm, retryForm } from "./forms.js";
import { between, clock, fullMoment } from "./moments.js";
import { isOpen } from "./reducer.js";
import { asText, block, contentText, digestLine, inert, inertString, inline } from "./text.js";

const PREVIEW_CHARS = 20_000;
const FAILED = new Set(["failed", "outcome_unknown", "rejected", "expired", "revoked"]);

export class ItemView {
  #context;
  #drawn = null;
  #fold = null;
  #preview = null;
  #time = h("time");
  #number = h("span.number");
  #body = h("div.body");

  /** `context`: `{commander, item(key), isOver(), isRetried(toolCallId)}`. */
  constructor(key, context) {
    this.key = key;
    this.#context = context;
    this.element = h("article.item", { tabindex: -1, "data-key": key }, h("div.gutter", {}, this.#time, this.#number), this.#body);
  }

  /** Draw the item as it is now; `item` is undefined while only a preview knows of it. */
  update(item, preview) {
    const kind = item?.kind ?? preview?.kind ?? "other";
    const status = item?.status ?? (preview?.fate ?? "provisional");
    attribute(this.element, "data-kind", kind);
    attribute(this.element, "data-status", status);
    attribute(this.element, "data-failed", FAILED.has(status));
    attribute(this.element, "data-provisional", item === undefined);
    attribute(this.element, "data-nested", item?.parent_id !== undefined);
    const mark = `${item?.last_sequence}/${kind}/${this.#context.isOver()}/${item !== undefined && canRetry(item, this.#context)}`;
    if (this.#drawn !== mark) {
      this.#drawn = mark;
      this.#draw(item, kind);
    }
    this.#drawPreview(preview, kind);
  }

  #draw(item, kind) {
    attribute(this.element, "aria-label", item === undefined ? `${kind}, provisional` : `${kind} ${item.status}`);
    if (item === undefined) {
      this.#time.textContent = "";
      this.#number.textContent = "…";
      this.#body.replaceChildren(head(TITLES[kind] ?? inertString(kind, 40), h("span.status", { "data-status": "provisional" }, "provisional")));
      this.#fold = null;
      return;
    }
    this.#time.textContent = clock(item.started_at);
    attribute(this.#time, "datetime", item.started_at);
    attribute(this.#time, "title", fullMoment(item.started_at));
    this.#number.textContent = `#${item.first_sequence}`;
    const wasOpen = this.#fold?.open ?? false;
    const hadFocus = this.#fold !== null && document.activeElement === this.#fold.firstElementChild;
    const hadFocusInside = !hadFocus && this.#body.contains(document.activeElement);
    const nodes = (DRAW[kind] ?? drawOther)(item, this.#context);
    this.#body.replaceChildren(...nodes.filter((node) => node !== null));
    this.#fold = this.#body.querySelector("details");
    if (this.#fold !== null && wasOpen) this.#fold.open = true;
    if (this.#fold !== null && hadFocus) this.#fold.firstElementChild.focus();
    if (hadFocusInside) this.element.focus({ preventScroll: true });
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

/** The text of a preview, drawn as what it is: not yet a fact. Grows by appending. */
class PreviewView {
  #rebuilt = -1;
  #part = 0;
  #chars = 0;
  #total = 0;
  #text;
  #mark = h("p.preview-mark");

  constructor(entry, kind) {
    this.entry = entry;
    const isProse = kind === "message" || kind === "reasoning";
    this.#text = h(isProse ? "div.text" : "div.text.code", { dir: "auto" });
    this.element = h("div.preview", { "data-kind": kind }, h("div.preview-end", {}, this.#text), this.#mark);
  }

  update() {
    const { entry } = this;
    attribute(this.element, "data-fate", entry.fate);
    attribute(this.element, "data-incomplete", entry.incomplete);
    this.#mark.textContent = markOf(entry);
    if (entry.rebuilt !== this.#rebuilt || this.#total > 2 * PREVIEW_CHARS) this.#rebuild();
    else this.#grow();
  }

  #rebuild() {
    const { entry } = this;
    this.#text.replaceChildren();
    this.#rebuilt = entry.rebuilt;
    this.#part = 0;
    this.#chars = 0;
    this.#total = 0;
    if (entry.value !== undefined) {
      this.#text.append(...inert(asText(entry.value).slice(0, PREVIEW_CHARS)));
      return;
    }
    this.#skipBeginning();
    this.#grow();
  }

  // What is long ago is folded away until the fact comes: only the end of a preview is news.
  #skipBeginning() {
    let skip = this.entry.chars - PREVIEW_CHARS;
    if (skip <= 0) return;
    this.#text.append(h("span.missing", {}, `${skip.toLocaleString("en")} characters above`));
    const { parts } = this.entry;
    while (skip > 0 && this.#part < parts.length) {
      const length = parts[this.#part].text?.length ?? 0;
      if (length > skip) {
        this.#chars = skip;
        return;
      }
      skip -= length;
      this.#part += 1;
    }
  }

  #grow() {
    const { parts } = this.entry;
    for (; this.#part < parts.length; this.#part += 1, this.#chars = 0) {
      const part = parts[this.#part];
      if (part.missing !== undefined) {
        this.#text.append(h("span.missing", {}, `${part.missing} fragment${part.missing === 1 ? "" : "s"} missing`));
        continue;
      }
      const fresh = part.text.slice(this.#chars);
      if (fresh !== "") this.#text.append(...inert(fresh));
      this.#total += fresh.length;
      this.#chars = part.text.length;
      if (this.#part === parts.length - 1) return; // it may still grow
    }
  }
}

function markOf(entry) {
  if (entry.fate === "abandoned") return "abandoned — never confirmed";
  const parts = ["provisional"];
  if (entry.incomplete) parts.push(entry.lost > 0 ? `incomplete, ${entry.lost} lost` : "incomplete");
  return parts.join(" — ");
}

// --- parts ----------------------------------------------------------------------------------------------------

const TITLES = {
  message: "Message", reasoning: "Reasoning", tool: "Tool", approval: "Approval", input: "Question", task: "Task",
  artifact: "Artifact", plan: "Plan", turn: "Turn", session: "Session",
};

const STATUS_WORDS = {
  outcome_unknown: "outcome unknown", waiting: "waiting for you", requested: "requested", started: "started",
};

function head(title, ...rest) {
  return h("header.head", {}, h("span.kind", {}, title), ...rest);
}

function statusOf(item) {
  return h("span.status", { "data-status": item.status }, inertString(STATUS_WORDS[item.status] ?? item.status, 40));
}

function lasted(item) {
  const time = item.ended_at === undefined ? "" : between(item.started_at, item.ended_at);
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

function fold(summary, ...lazily) {
  const details = h("details.fold", {}, h("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) {
      details.append(...lazily.flatMap((draw) => draw()).filter((node) => node !== null));
    }
  });
  return details;
}

function field(name, value) {
  if (value === null || value === undefined) return null;
  return h("div.field", {}, h("span.field-name", {}, name), block(value, { className: "code" }));
}

function reference(ref) {
  if (ref === null || ref === undefined) return null;
  const size = typeof ref.size === "number" ? `${ref.size.toLocaleString("en")} bytes` : "";
  return h("div.field", {}, h("span.field-name", {}, "Stored content"),
    h("code", {}, inline(ref.uri ?? "")), " ", h("span.faint", {}, inline([ref.media_type, size].filter(Boolean).join(", "))));
}

// --- kinds ----------------------------------------------------------------------------------------------------

function drawMessage(item) {
  const role = item.role ?? "message";
  const isDone = item.status === "completed";
  return [
    head(inertString(role, 40), isDone ? null : statusOf(item), lasted(item)),
    item.content === undefined ? null : block(contentText(item.content)),
    failure(item.error),
    isDone ? null : why(item),
  ];
}

function drawReasoning(item) {
  const text = contentText(item.content ?? item.summary);
  const hint = item.redacted === true && text === "" ? "withheld" : digestLine(contentText(item.summary ?? item.content), 140);
  const summary = [h("span.kind", {}, "Reasoning"), h("span.digest", {}, ...inert(hint)), lasted(item), item.status === "completed" ? null : statusOf(item)];
  if (text === "") return [h("header.head", {}, ...summary.filter((one) => one !== null)), failure(item.error), why(item)];
  return [
    fold(summary, () => [
      item.summary !== undefined && item.content !== undefined ? block(contentText(item.summary)) : null,
      block(contentText(item.content ?? item.summary)),
    ]),
    failure(item.error),
  ];
}

function drawTool(item, context) {
  const summary = [
    h("span.kind", {}, "Tool"), h("code.name", {}, inline(item.name ?? item.id, 80)),
    h("code.digest", {}, ...inert(digestLine(item.arguments))),
    item.attempt > 1 ? h("span.faint", {}, `attempt ${item.attempt}`) : null, lasted(item), statusOf(item),
  ];
  return [
    fold(summary, () => [
      field("Arguments", item.arguments), field("Result", item.result), reference(item.content_ref), field("Note", item.note),
      h("p.faint", {}, toolFacts(item)),
    ]),
    failure(item.error),
    item.status === "cancelled" ? why(item) : null,
    item.outcome === undefined ? null : h("p.faint", {}, `reconciled: ${inertString(item.outcome)} — said by `, inline(item.by ?? "")),
    canRetry(item, context) ? retryForm(item, context.commander) : null,
    item.status === "outcome_unknown" && !context.isOver() ? reconcileForm(item, context.commander) : null,
  ];
}

function canRetry(item, context) {
  return item.status === "failed" && item.error?.retryable === true && !context.isOver() && !context.isRetried(item.id);
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
  const tool = item.tool_call_id === undefined || item.tool_call_id === null ? undefined : context.item(`tool:${item.tool_call_id}`);
  return [
    head("Approval", statusOf(item), h("span.risk", { "data-risk": item.risk }, "risk ", inline(item.risk ?? "not stated", 40)), lasted(item)),
    h("div.question", {}, block(item.description ?? "", { first: 2000 })),
    item.reason_again ? h("p.verdict", {}, "asked for again: ", inline(item.reason_again, 400)) : null,
    isWaiting ? votesSoFar(item) : null,
    isWaiting && !context.isOver() ? approvalForm(item, tool, context.commander) : null,
    isWaiting ? null : h("p.verdict", {}, "decided by ", h("strong", {}, inline(item.decided_by ?? "nobody", 80)), item.reason ? [": ", inline(item.reason, 400)] : null),
    isWaiting || item.data === undefined || item.data === null ? null : fold(["Data"], () => [field("Data", item.data)]),
  ];
}

function votesSoFar(item) {
  if (!(item.quorum > 1)) return null;
  const votes = Array.isArray(item.votes) ? item.votes : [];
  const by = votes.length === 0 ? "" : ` \u2014 so far ${votes.map((vote) => vote.by).join(", ")}`;
  return h("p.faint", {}, inline(`needs ${item.quorum} people to approve the same action${by}`, 400));
}

function drawInput(item, context) {
  const isWaiting = item.status === "waiting";
  return [
    head("Question", statusOf(item), lasted(item)),
    h("div.question", {}, block(item.prompt ?? "", { first: 2000 })),
    isWaiting && !context.isOver() ? inputForm(item, context.commander) : null,
    item.status === "provided" ? h("p.verdict", {}, "answered by ", h("strong", {}, inline(item.by ?? "", 80))) : null,
    item.value === undefined || item.value === null ? null : block(item.value, { className: "code" }),
    why(item),
  ];
}

function drawTask(item) {
  const detail = item.detail ?? item.result;
  return [
    head("Task", h("strong", {}, inline(item.title ?? item.id)), statusOf(item), lasted(item)),
    item.description ? block(item.description) : null,
    detail === undefined || detail === null ? null : fold(["Detail"], () => [field("Detail", item.detail), field("Result", item.result)]),
    failure(item.error),
    why(item),
  ];
}

function drawPlan(item) {
  const steps = Array.isArray(item.steps) ? item.steps : null;
  return [
    head("Plan", h("span.faint", {}, `version ${inertString(String(item.version ?? ""), 20)}`)),
    steps === null ? block(item.steps ?? "", { className: "code" }) : h("ol.steps", {}, steps.slice(0, 200).map(drawStep)),
    steps !== null && steps.length > 200 ? fold([`${steps.length - 200} more steps`], () => [field("Steps", steps.slice(200))]) : null,
  ];
}

function drawStep(step) {
  if (step === null || typeof step !== "object") return h("li", {}, inline(step ?? "", 400));
  const status = typeof step.status === "string" ? step.status : null;
  const text = step.title ?? step.step ?? step.content ?? step.description ?? step.text ?? step;
  return h("li", { "data-status": status }, inline(text, 400), status === null ? null : [" ", h("span.status", { "data-status": status }, inertString(status.replaceAll("_", " "), 40))]);
}

function drawTurn(item) {
  return [h("div.rule", { role: "separator" }, h("span", {}, "Turn ", inline(item.turn_id ?? item.id, 40)), usage(item.usage), lasted(item))];
}

function drawSession(item) {
  return [h("div.rule", { role: "separator" }, h("span", {}, "Session ", inline(item.title ?? item.id, 120)))];
}

function drawArtifact(item) {
  return [
    head("Artifact", h("strong", {}, inline(item.name ?? item.id)), h("span.faint", {}, inline(item.media_type ?? "", 80)), statusOf(item)),
    item.content === undefined || item.content === null ? null : fold(["Content"], () => [block(item.content, { className: "code" })]),
    reference(item.content_ref),
    failure(item.error),
  ];
}

const ENVELOPE = new Set(["kind", "id", "first_sequence", "last_sequence", "started_at", "updated_at", "ended_at", "status", "type"]);

function drawOther(item) {
  const payload = Object.fromEntries(Object.entries(item).filter(([name]) => !ENVELOPE.has(name)));
  return [
    fold([h("span.kind.verbatim", {}, inline(item.type ?? item.kind, 80)), h("code.digest", {}, ...inert(digestLine(payload))), isOpen(item) ? statusOf(item) : null],
      () => [field("Payload", payload)]),
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
  task: drawTask, plan: drawPlan, turn: drawTurn, session: drawSession, artifact: drawArtifact,
});

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

/** A line for a fact about the run itself. */
export function runLine(fact) {
  const at = fact.recorded_at ?? fact.occurred_at;
  const element = h("article.item.run-line", { "data-kind": "run", "data-type": fact.type, tabindex: -1, "aria-label": fact.type },
    h("div.gutter", {}, h("time", { datetime: at, title: fullMoment(at) }, clock(at)), h("span.number", {}, `#${fact.sequence}`)),
    h("div.body", {}, h("span", {}, ...RUN_LINES[fact.type](fact.payload ?? {}).flat())));
  return element;
}

/** A mark of the log itself: something was quarantined, or replaced by a snapshot. */
export function markView(mark) {
  const text = mark.type === "log.quarantined"
    ? ["a fact was quarantined: ", inline(mark.reason ?? "", 400)]
    : mark.type === "log.compacted"
      ? [`facts #${mark.from_sequence}–#${mark.to_sequence} were replaced by a snapshot (`, inline(mark.reason ?? ""), ", policy ", inline(mark.policy ?? ""), ")"]
      : [inline(mark.type), " ", h("code", {}, ...inert(digestLine(mark)))];
  return h("article.item.log-mark", { "data-kind": "log", tabindex: -1, "aria-label": "mark of the log" },
    h("div.gutter", {}, h("span.number", {}, `#${mark.sequence}`)), h("div.body", {}, head("Log", ...text)));
}
