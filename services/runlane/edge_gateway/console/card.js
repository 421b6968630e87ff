/**
 * One thing that needs a person, as a card with a form. A card lives as long as its question does: nothing that comes or
 * goes around it, neither facts nor resets, touches what somebody is typing into it.
 */

import { CommandStatus } from "./command_status.js";
import { attribute, h, present, setText } from "./dom.js";
import { drafts } from "./drafts.js";
import { fullMoment } from "./moments.js";

export class Card {
  #fields = h("fieldset.card-fields");
  #commander;
  #hasMoved = false; // the question changed since the last answer to it, and is still open

  /** `context`: `{commander, runId, item(key), show(key)}`. `isPast`: it is only looked at. */
  constructor(key, item, context, { title, isPast }) {
    this.key = key;
    this.place = `${key}@${item.version ?? ""}`; // what was decided of another version says nothing about this one
    this.item = item;
    this.context = context;
    this.isPast = isPast;
    this.#commander = context.commander;
    this.status = new CommandStatus(context.commander, this.place);
    this.error = h("p.error", { role: "alert" });
    this.form = h("form.decision", { novalidate: true, onSubmit: (event) => { event.preventDefault(); this.submitted?.(); } },
      this.#fields, this.error, isPast ? "" : this.status.element);
    this.#fields.disabled = isPast;
    this.element = h("article.card", { tabindex: -1, "data-card": key, "data-kind": item.kind, "aria-label": title },
      h("header.head", {}, h("h3", {}, title), ...this.badges(), h("span.spring"), h("span.faint.since", {}, h("time", { "data-since": item.updated_at, title: fullMoment(item.updated_at) }))));
  }

  /** What stands beside the title. */
  badges() {
    return [];
  }

  /** Put what the card shows above the form, and what can be done inside of it. */
  fill(shown, fields) {
    this.#fields.append(...present(fields));
    this.element.append(...present(shown), this.form);
    this.refresh();
  }

  draft(name) {
    return `${this.context.runId}/${this.key}/${name}`;
  }

  complain(text, control) {
    setText(this.error, text);
    if (control === undefined) return;
    attribute(control, "aria-invalid", text !== "");
    if (text !== "") control.focus();
  }

  /** The question changed and is still open: a vote was counted, say. */
  moved() {
    this.#hasMoved = true;
    this.refresh();
  }

  /** Ask; the fields are locked until there is an answer. */
  async submit(type, payload) {
    if (this.status.isBusy) return;
    this.#hasMoved = false;
    this.complain("");
    const focused = document.activeElement;
    this.element.focus({ preventScroll: true }); // a disabled control would drop the focus
    const state = await this.#commander.submit(this.place, type, payload);
    if (state.phase === "succeeded" || state.phase === "accepted") drafts.forget(this.draft(""));
    else if (document.activeElement === this.element) focused?.focus?.({ preventScroll: true });
  }

  /** What became of the command here has changed. */
  refresh() {
    this.status.update();
    const phase = this.#commander.state(this.place)?.phase;
    this.#fields.disabled = this.isPast || phase === "submitting" || phase === "accepted" || (phase === "succeeded" && !this.#hasMoved);
    attribute(this.element, "data-phase", phase);
  }
}
