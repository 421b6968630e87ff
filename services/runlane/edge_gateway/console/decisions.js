/** The cards: an approval to decide, a question to answer, a call whose outcome somebody has to find out. */

import { Card } from "./card.js";
import { changeView } from "./diff.js";
import { attribute, h, present, setText } from "./dom.js";
import { drafts } from "./drafts.js";
import { part, valueView } from "./evidence.js";
import { fieldFor, readJson } from "./fields.js";
import { riskOf } from "./items.js";
import { canonicalJson, prettyJson } from "./json.js";
import { clock, fullMoment } from "./moments.js";
import { argumentsLine, block, inert, inertString, inline } from "./text.js";

const MAX_EDITED_CHARS = 200_000;

/** The card for what waits, by its kind. */
export function cardFor(key, item, context, isPast) {
  if (item.kind === "approval") return new ApprovalCard(key, item, context, isPast);
  if (item.kind === "input") return new InputCard(key, item, context, isPast);
  return new ReconcileCard(key, item, context, isPast);
}

class ApprovalCard extends Card {
  #reason;
  #editor = null;
  #approve = h("button.approve", { type: "button", onClick: () => this.#decide("approved") }, "Approve");
  #votes = h("p.faint");

  constructor(key, item, context, isPast) {
    super(key, item, context, { title: "Approval", isPast });
    const tool = item.tool_call_id ? context.item(`tool:${item.tool_call_id}`) : undefined;
    const data = item.data ?? tool?.arguments ?? null;
    const text = item.editable && !isPast ? prettyJson(data, 60) : "";
    if (item.editable && !isPast && text.length <= MAX_EDITED_CHARS) this.#editor = new Editor(data, text, this.draft(`data@${item.version ?? ""}`), () => this.#edited());
    this.#reason = drafts.bind(this.draft("reason"), h("input", { type: "text", maxlength: 1000, placeholder: "Reason, for a rejection", "aria-label": "Reason for a rejection" }));
    this.fill([
      h("div.question", {}, block(item.description ?? "", { first: 2000 })),
      item.reason_again ? h("p.verdict", {}, "asked for again: ", inline(item.reason_again, 400)) : null,
      actionView(tool, data, this.#editor !== null, item.description),
      item.editable && !isPast && this.#editor === null ? h("p.faint", {}, "Too large to be changed here.") : null,
    ], [
      this.#editor?.element,
      this.#votes,
      h("div.buttons", {}, this.#approve, h("button.reject", { type: "button", onClick: () => this.#decide("rejected") }, "Reject"), this.#reason),
      h("p.faint.binding", {}, bindingOf(item)),
    ]);
    this.update(item);
  }

  badges() {
    return [riskOf(this.item), expiryOf(this.item)];
  }

  update(item) {
    this.item = item;
    setText(this.#votes, votesOf(item));
    this.#votes.hidden = this.#votes.textContent === "";
    this.#edited();
  }

  #edited() {
    const isChanged = this.#editor?.isChanged() ?? false;
    setText(this.#approve, isChanged ? "Approve with changes" : "Approve");
  }

  #decide(decision) {
    const { item } = this;
    const payload = { approval_id: item.id, decision, expected_version: item.version, action_digest: item.action_digest };
    const reason = this.#reason.value.trim();
    if (decision === "rejected" && reason !== "") payload.reason = reason;
    if (decision === "approved" && this.#editor?.isChanged()) {
      const edited = this.#editor.read();
      if (edited.error !== undefined) return this.complain(edited.error, this.#editor.area);
      payload.decision = "modified";
      payload.data = edited.value;
    }
    return this.submit("approval.resolve", payload);
  }
}

/** Arguments that may be changed before they are approved: shown, edited as JSON, and the change shown back. */
class Editor {
  #original;
  #onChange;
  #change = h("div");
  #error = h("p.error", { role: "alert" });
  #open;
  #undo;
  #shown;

  constructor(data, text, draft, onChange) {
    this.#original = text;
    this.#onChange = onChange;
    this.area = h("textarea.code", {
      rows: Math.min(14, this.#original.split("\n").length + 1), spellcheck: "false", autocomplete: "off",
      "aria-label": "Data, as JSON; may be changed before approving", value: this.#original, hidden: true,
    });
    this.#shown = h("div.field", {}, valueView(data));
    this.#open = h("button", { type: "button", onClick: () => this.#edit(true) }, "Edit…");
    this.#undo = h("button.link", { type: "button", hidden: true, onClick: () => this.#edit(false) }, "Undo changes");
    this.element = h("div.editor", {}, this.#shown, this.area, this.#error, this.#change, h("div.buttons", {}, this.#open, this.#undo));
    const kept = drafts.get(draft);
    this.area.addEventListener("input", () => {
      drafts.set(draft, this.isChanged() ? this.area.value : null);
      this.#changed();
    });
    if (kept !== undefined) {
      this.area.value = kept;
      this.#edit(true, false);
    }
    this.forget = () => drafts.set(draft, null);
  }

  isChanged() {
    if (this.area.value === this.#original) return false;
    const { value, error } = readJson(this.area.value);
    return error !== undefined || canonicalJson(value) !== canonicalJson(readJson(this.#original).value);
  }

  read() {
    return readJson(this.area.value);
  }

  #edit(isEditing, isFocused = true) {
    this.area.hidden = !isEditing;
    this.#shown.hidden = isEditing;
    this.#open.hidden = isEditing;
    this.#undo.hidden = !isEditing;
    if (!isEditing) {
      this.area.value = this.#original;
      this.forget();
    } else if (isFocused) this.area.focus();
    this.#changed();
  }

  #changed() {
    const { value, error } = this.read();
    setText(this.#error, this.area.value === this.#original ? "" : error ?? "");
    attribute(this.area, "aria-invalid", error !== undefined);
    const change = error === undefined && this.isChanged() ? changeView(this.#original, prettyJson(value, 60)) : null;
    this.#change.replaceChildren(...present([change === null ? null : [h("span.field-name", {}, "Your changes"), change]]));
    this.#onChange();
  }
}

function actionView(tool, data, isEdited, description) {
  const isNamed = typeof description === "string" && description.includes(tool?.name ?? "\0");
  const name = tool === undefined || isNamed ? null : h("p.of-tool", {}, h("span.faint", {}, "runs "), h("code.name", {}, inline(tool.name ?? tool.id, 80)));
  return [name, isEdited ? null : part(tool === undefined ? "Data" : "Arguments", data)];
}

function bindingOf(item) {
  const parts = [`version ${item.version}`];
  if (item.action_digest) parts.push(`action ${inertString(String(item.action_digest).replace(/^sha256:/, "").slice(0, 12))}`);
  return `Decides exactly this: ${parts.join(" · ")}`;
}

function expiryOf(item) {
  if (!item.expires_at) return null;
  return h("span.expiry", { title: fullMoment(item.expires_at) }, "expires ", h("time", { "data-until": item.expires_at }, clock(item.expires_at)));
}

function votesOf(item) {
  const parts = [];
  if (item.quorum > 1) {
    const votes = Array.isArray(item.votes) ? item.votes : [];
    parts.push(`needs ${item.quorum} people to approve the same action${votes.length === 0 ? "" : ` — so far ${votes.map((vote) => vote.by).join(", ")}`}`);
  }
  if (Array.isArray(item.not_by) && item.not_by.length > 0) parts.push(`not by ${item.not_by.join(", ")}`);
  return inertString(parts.join("; "), 400);
}

class InputCard extends Card {
  #field;

  constructor(key, item, context, isPast) {
    super(key, item, context, { title: "Question", isPast });
    const schema = item.schema !== null && typeof item.schema === "object" ? item.schema : { type: "string" };
    this.#field = fieldFor(schema, { draft: this.draft("value"), isWhole: true });
    this.fill([h("div.question", {}, block(item.prompt ?? "", { first: 2000 }))],
      [this.#field.element, h("div.buttons", {}, h("button.approve", { type: "submit" }, "Send"))]);
  }

  badges() {
    return [expiryOf(this.item)];
  }

  update(item) {
    this.item = item;
  }

  submitted() {
    const given = this.#field.read();
    this.complain(given.error ?? "");
    if (given.error === undefined) this.submit("input.provide", { input_id: this.item.id, value: given.nothing ? null : given.value });
  }
}

class ReconcileCard extends Card {
  #note;
  #result;
  #resultField;
  #outcomes;

  constructor(key, item, context, isPast) {
    super(key, item, context, { title: "Outcome unknown", isPast });
    this.#note = drafts.bind(this.draft("note"), h("input", { type: "text", required: true, maxlength: 1000 }));
    this.#result = drafts.bind(this.draft("result"), h("textarea.code", { rows: 2, spellcheck: "false", placeholder: '{"id": 17}, or text' }));
    this.#resultField = h("label.field", {}, h("span.field-name", {}, "What it returned, as far as you know", h("span.faint", {}, " optional")), this.#result);
    this.#outcomes = [
      ["executed", "It took effect"], ["not_executed", "It did not"],
    ].map(([value, word]) => h("label.choice", {}, h("input", { type: "radio", name: `outcome ${item.id}`, value, onChange: () => this.#chosen() }), " ", word));
    this.fill([
      h("p", {}, h("code.name", {}, inline(item.name ?? item.id, 80)), " ", h("code.faint", {}, ...inert(argumentsLine(item.arguments, 200)))),
      h("p", {}, "The worker was lost while this ran. Nobody knows whether it took effect, and nothing runs it again by itself. Look where it would show, then say what you found."),
      item.operation_id ? h("p.faint", {}, "operation ", h("code", {}, inline(item.operation_id, 80))) : null,
    ], [
      h("div.choices", { role: "radiogroup", "aria-label": "Outcome" }, this.#outcomes),
      h("label.field", {}, h("span.field-name", {}, "How do you know?"), this.#note),
      this.#resultField,
      h("div.buttons", {}, h("button.approve", { type: "submit" }, "Reconcile")),
    ]);
    this.#chosen();
  }

  update(item) {
    this.item = item;
  }

  get #outcome() {
    return this.#outcomes.map((label) => label.firstElementChild).find((radio) => radio.checked)?.value;
  }

  #chosen() {
    this.#resultField.hidden = this.#outcome === "not_executed";
  }

  submitted() {
    const outcome = this.#outcome;
    if (outcome === undefined) return this.complain("Say whether it took effect.");
    if (this.#note.value.trim() === "") return this.complain("Say how you know.", this.#note);
    const payload = { tool_call_id: this.item.id, outcome, note: this.#note.value.trim() };
    const text = this.#result.value.trim();
    if (outcome === "executed" && text !== "") {
      const { value, error } = readJson(text);
      payload.result = error === undefined ? value : text;
    }
    return this.submit("tool.reconcile", payload);
  }
}
