/** Saying something to the agent: a message it hears at its next safe boundary. */

import { CommandStatus } from "./command_status.js";
import { attribute, h } from "./dom.js";
import { drafts } from "./drafts.js";

const PLACE = "message";
const MAX_ROWS = 8;

export class Composer {
  #commander;
  #draft;
  #status;
  #text;
  #send = h("button", { type: "submit" }, "Send");
  #isPast = false;

  constructor(commander, runId) {
    this.#commander = commander;
    this.#draft = `${runId}/message`;
    this.#status = new CommandStatus(commander, PLACE, { done: "Sent. It is heard at the next safe point.", tag: "span.answer" });
    this.#text = h("textarea", { rows: 1, maxlength: 60000, placeholder: "Message the agent", "aria-label": "Message to the agent", "aria-keyshortcuts": "m" });
    drafts.bind(this.#draft, this.#text);
    this.element = h("form.composer", { "aria-label": "Message", onSubmit: (event) => { event.preventDefault(); this.#submit(); } },
      this.#text, this.#send, this.#status.element);
    this.#text.addEventListener("input", () => this.#fit());
    this.#text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#submit();
    });
    this.#fit();
  }

  focus() {
    this.#text.focus();
  }

  update(picture) {
    this.element.hidden = picture.isEmpty || picture.isOver;
    this.#isPast = picture.isPast;
    this.refresh(PLACE);
  }

  refresh(place) {
    if (place !== PLACE) return;
    this.#status.update();
    attribute(this.#send, "disabled", this.#isPast || this.#status.isBusy);
    attribute(this.#text, "readonly", this.#isPast);
  }

  async #submit() {
    const content = this.#text.value.trim();
    if (content === "" || this.#status.isBusy || this.#isPast) return;
    const { phase } = await this.#commander.submit(PLACE, "message.send", { content });
    if (phase !== "succeeded" && phase !== "accepted") return;
    if (this.#text.value.trim() !== content) return; // somebody goes on typing
    this.#text.value = "";
    drafts.set(this.#draft, null);
    this.#fit();
  }

  #fit() {
    this.#text.rows = Math.min(MAX_ROWS, this.#text.value.split("\n").length);
  }
}
