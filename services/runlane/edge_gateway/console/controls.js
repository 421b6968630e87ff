/** What can be asked of the run as a whole: pause, resume, cancel. In the past there is nothing to ask. */

import { CommandStatus } from "./command_status.js";
import { attribute, h } from "./dom.js";
import { drafts } from "./drafts.js";

const PLACE = "run";
const PAUSABLE = new Set(["running", "waiting"]);

export class Controls {
  #commander;
  #status;
  #pause = h("button", { type: "button", hidden: true, onClick: () => this.#submit("run.pause", {}) }, "Pause");
  #resume = h("button.approve", { type: "button", hidden: true, onClick: () => this.#submit("run.resume", {}) }, "Resume");
  #cancel = h("button.danger", { type: "button", hidden: true, onClick: () => this.#dialog.showModal() }, "Cancel…");
  #reason;
  #dialog;
  #isPast = false;

  constructor(commander, runId) {
    this.#commander = commander;
    this.#status = new CommandStatus(commander, PLACE, { done: "", tag: "span.answer" });
    this.#reason = drafts.bind(`${runId}/cancel/reason`, h("input", { type: "text", maxlength: 1000, placeholder: "Reason (optional)", "aria-label": "Reason for cancelling" }));
    this.#dialog = h("dialog", { "aria-labelledby": "cancel-title" },
      h("form", { method: "dialog", onSubmit: (event) => this.#decided(event) },
        h("h2", { id: "cancel-title" }, "Cancel this run?"),
        h("p", {}, "Its worker is asked to stop at a safe point. When it does not in time, it is fenced and the run is ended for it. This cannot be undone."),
        this.#reason,
        h("div.buttons", {}, h("button", { value: "keep", type: "submit" }, "Keep it running"), h("button.reject", { value: "cancel", type: "submit" }, "Cancel the run"))));
    this.element = h("div.controls", {}, this.#status.element, this.#pause, this.#resume, this.#cancel, this.#dialog);
  }

  update(picture) {
    const { run } = picture.state;
    const isOver = run.ended_at !== undefined || picture.isEmpty;
    this.#isPast = picture.isPast;
    this.#pause.hidden = !PAUSABLE.has(run.status) || picture.isEmpty;
    this.#resume.hidden = run.status !== "paused";
    this.#cancel.hidden = isOver || run.status === "cancelling";
    if (isOver && this.#dialog.open) this.#dialog.close();
    this.refresh(PLACE);
  }

  refresh(place) {
    if (place !== PLACE) return;
    this.#status.update();
    for (const button of [this.#pause, this.#resume, this.#cancel]) attribute(button, "disabled", this.#isPast || this.#status.isBusy);
  }

  #decided(event) {
    if (event.submitter?.value !== "cancel") return;
    const reason = this.#reason.value.trim();
    this.#submit("run.cancel", reason === "" ? {} : { reason });
  }

  #submit(type, payload) {
    this.#commander.submit(PLACE, type, payload);
  }
}
