/** What people decide: approvals, inputs, retries. Each form keeps what was typed until its item moves on. */

import { attribute, h } from "./dom.js";
import { parseJson, prettyJson } from "./json.js";
import { age, clock, fullMoment, span } from "./moments.js";
import { block, digestLine, inertString, inline } from "./text.js";

/** The line under a form that says what became of the click. */
class Answer {
  constructor() {
    this.element = h("p.answer", { role: "status", "aria-live": "polite" });
  }

  say(kind, text) {
    this.element.dataset.kind = kind;
    this.element.textContent = text;
  }
}

/** Submit, say what became of it, and give the buttons back unless it was done or held. */
async function ask(form, answer, submit) {
  const controls = Array.from(form.querySelectorAll("button, input, textarea, select"));
  const focused = document.activeElement;
  form.closest(".item")?.focus({ preventScroll: true }); // a disabled control would drop the focus
  for (const control of controls) control.disabled = true;
  answer.say("pending", "Asking…");
  const outcome = await submit();
  if (outcome.done) {
    answer.say("done", "Recorded.");
    return;
  }
  if (outcome.held) {
    answer.say("pending", "Accepted. It takes effect when the run can apply it.");
    return;
  }
  for (const control of controls) control.disabled = false;
  focused?.focus({ preventScroll: true });
  if (outcome.unknown !== undefined) {
    answer.say("failed", `No answer (${outcome.unknown}). It may or may not have been recorded; asking again is safe.`);
  } else answer.say("failed", `Refused: ${refusal(outcome)}`);
}

function refusal({ code, refused, recorded }) {
  const said = recorded?.decision ?? recorded?.status;
  const by = recorded?.decided_by ?? recorded?.by;
  if (code === "already_resolved" && said) return `already ${said}${by ? ` by ${by}` : ""}.`;
  return inertString(`${refused} (${code})`, 400);
}

/** The decision on one approval. */
export function approvalForm(item, tool, commander) {
  const answer = new Answer();
  const editor = item.editable ? dataEditor(item.data) : null;
  const reason = h("input", { type: "text", maxlength: 1000, placeholder: "Reason, for a rejection", "aria-label": "Reason for a rejection" });
  const decide = (decision) => {
    const payload = { approval_id: item.id, decision, expected_version: item.version, action_digest: item.action_digest };
    if (decision === "rejected" && reason.value.trim() !== "") payload.reason = reason.value.trim();
    if (decision === "approved" && editor?.isChanged()) {
      const edited = editor.read();
      if (edited.error !== undefined) return editor.complain(edited.error);
      payload.decision = "modified";
      payload.data = edited.value;
    }
    return ask(form, answer, () => commander.submit("approval.resolve", payload));
  };
  const approve = h("button.approve", { type: "button", onClick: () => decide("approved") }, "Approve");
  editor?.onChange(() => {
    approve.textContent = editor.isChanged() ? "Approve with changes" : "Approve";
  });
  const form = h(
    "form.decision",
    { onSubmit: (event) => event.preventDefault(), "aria-label": `Decide: ${inertString(item.description ?? item.id)}` },
    tool === undefined ? null : h("p.of-tool", {}, "for ", h("code", {}, inline(tool.name ?? tool.id)), " ", h("code.faint", {}, digestLine(tool.arguments))),
    editor?.element ?? (item.data === undefined || item.data === null ? null : h("div.field", {}, h("span.field-name", {}, "Data"), block(item.data, { className: "code" }))),
    h("div.buttons", {}, approve, h("button.reject", { type: "button", onClick: () => decide("rejected") }, "Reject"), reason),
    h("p.faint.binding", {}, bindingOf(item)),
    answer.element,
  );
  return form;
}

function bindingOf(item) {
  const parts = [`version ${item.version}`];
  if (item.action_digest) parts.push(`action ${inertString(item.action_digest.replace(/^sha256:/, "").slice(0, 12))}`);
  const expires = item.expires_at ? h("time", { title: fullMoment(item.expires_at) }, ` · ${expiry(item.expires_at)}`) : null;
  return [`Decides exactly this: ${parts.join(" · ")}`, expires];
}

function expiry(timestamp) {
  const left = Date.parse(timestamp) - Date.now();
  if (Number.isNaN(left)) return inertString(timestamp);
  return left > 0 ? `expires in ${span(left)} (${clock(timestamp)})` : `expired ${age(timestamp)} ago`;
}

function dataEditor(data) {
  const original = prettyJson(data ?? null, 80);
  const area = h("textarea.code", {
    rows: Math.min(16, original.split("\n").length + 1), spellcheck: "false", autocomplete: "off",
    "aria-label": "Data, as JSON; may be changed before approving", value: original,
  });
  const error = h("p.error", { role: "alert" });
  return {
    element: h("div.field", {}, h("span.field-name", {}, "Data — may be changed before approving"), area, error),
    isChanged: () => area.value !== original,
    onChange: (listener) => area.addEventListener("input", listener),
    read: () => readJson(area.value),
    complain(text) {
      error.textContent = text;
      attribute(area, "aria-invalid", "true");
      area.focus();
    },
  };
}

function readJson(text) {
  try {
    return { value: parseJson(text) };
  } catch (error) {
    return { error: `This is not JSON: ${error.message}` };
  }
}

/** The answer to one question of the agent, shaped by its schema where there is one. */
export function inputForm(item, commander) {
  const answer = new Answer();
  const field = fieldFor(item.schema ?? { type: "string" }, "Answer", true);
  const error = h("p.error", { role: "alert" });
  const form = h(
    "form.decision",
    {
      "aria-label": `Answer: ${inertString(item.prompt ?? item.id)}`,
      onSubmit: (event) => {
        event.preventDefault();
        const given = field.read();
        error.textContent = given.error ?? "";
        if (given.error === undefined) {
          ask(form, answer, () => commander.submit("input.provide", { input_id: item.id, value: given.value }));
        }
      },
    },
    field.element,
    error,
    h("div.buttons", {}, h("button.approve", { type: "submit" }, "Send")),
    answer.element,
  );
  return form;
}

/** `{element, read}` for a schema: `read()` gives `{value}` or `{error}`. `isWhole`: the whole answer, not one of several fields. */
function fieldFor(schema, label, isWhole) {
  const name = inertString(schema.title ?? label, 80);
  if (Array.isArray(schema.enum)) return choiceField(schema.enum, name);
  if (schema.type === "boolean") return choiceField([true, false], name);
  if (schema.type === "number" || schema.type === "integer") return numberField(schema, name);
  if (schema.type === "object" && isFlat(schema.properties)) return objectField(schema);
  if (schema.type === "string") return stringField(schema, name, isWhole);
  return jsonField(name);
}

function isFlat(properties) {
  const all = Object.values(properties ?? {});
  return all.length > 0 && all.length <= 12 && all.every((one) => one !== null && typeof one === "object" && one.type !== "object");
}

function labelled(name, control, hint) {
  return h("label.field", {}, h("span.field-name", {}, name), control, hint ? h("span.faint.hint", {}, inline(hint)) : null);
}

function choiceField(values, name) {
  const select = h("select", {}, values.map((value, index) => h("option", { value: String(index) }, inertString(typeof value === "string" ? value : prettyJson(value)))));
  return { element: labelled(name, select), read: () => ({ value: values[Number(select.value)] }) };
}

function numberField(schema, name) {
  const control = h("input", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, value: schema.default ?? "" });
  return {
    element: labelled(name, control, schema.description),
    read: () => (control.value === "" || !control.checkValidity() ? { error: `${name}: ${control.validationMessage || "a number is needed"}` } : { value: Number(control.value) }),
  };
}

function stringField(schema, name, isWhole) {
  const isSecret = schema.writeOnly === true || schema.format === "password";
  const value = typeof schema.default === "string" ? schema.default : "";
  const control = isSecret
    ? h("input", { type: "password", autocomplete: "off" })
    : isWhole ? h("textarea", { rows: 2, value }) : h("input", { type: "text", autocomplete: "off", value });
  return { element: labelled(name, control, schema.description), read: () => ({ value: control.value }) };
}

function jsonField(name) {
  const control = h("textarea.code", { rows: 4, spellcheck: "false" });
  return { element: labelled(`${name}, as JSON`, control), read: () => readJson(control.value) };
}

function objectField(schema) {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).map(([key, one]) => [key, fieldFor(one, key, false)]);
  return {
    element: h("div.fields", {}, fields.map(([, field]) => field.element)),
    read() {
      const value = {};
      for (const [key, field] of fields) {
        const given = field.read();
        if (given.error !== undefined && required.has(key)) return given;
        if (given.error === undefined && (given.value !== "" || required.has(key))) value[key] = given.value;
      }
      return { value };
    },
  };
}

/** Retry a tool call that failed and may be retried. */
export function retryForm(item, commander) {
  const answer = new Answer();
  const form = h(
    "form.decision.slim",
    {
      onSubmit: (event) => {
        event.preventDefault();
        ask(form, answer, () => commander.submit("tool.retry", { tool_call_id: item.id }));
      },
    },
    h("button", { type: "submit" }, "Retry this call"),
    answer.element,
  );
  return form;
}

/** Say what became of a tool call whose outcome nobody knows. */
export function reconcileForm(item, commander) {
  const answer = new Answer();
  const note = h("input", { type: "text", required: true, maxlength: 1000, placeholder: "How do you know?", "aria-label": "Note" });
  const settle = (outcome) => {
    if (note.reportValidity()) {
      ask(form, answer, () => commander.submit("tool.reconcile", { tool_call_id: item.id, outcome, note: note.value }));
    }
  };
  const form = h(
    "form.decision",
    { onSubmit: (event) => event.preventDefault() },
    h("p", {}, "Nobody knows whether this call took effect. Check, then say:"),
    h("div.buttons", {},
      h("button", { type: "button", onClick: () => settle("executed") }, "It took effect"),
      h("button", { type: "button", onClick: () => settle("not_executed") }, "It did not"),
      note),
    answer.element,
  );
  return form;
}
