/** The line beside a control that says what became of the click, from the first moment to the settled end. */

import { attribute, h, setText } from "./dom.js";
import { inertString } from "./text.js";

const BUSY = new Set(["submitting", "accepted"]);

export class CommandStatus {
  #commander;
  #done;

  /** `done`: what to say when it worked. */
  constructor(commander, place, { done = "Recorded.", tag = "p.answer" } = {}) {
    this.#commander = commander;
    this.place = place;
    this.#done = done;
    this.element = h(tag, { role: "status", "aria-live": "polite" });
    this.update();
  }

  /** Whether an answer is awaited, so that asking once more makes no sense. */
  get isBusy() {
    return BUSY.has(this.#commander.state(this.place)?.phase);
  }

  update() {
    const state = this.#commander.state(this.place);
    attribute(this.element, "data-phase", state?.phase);
    setText(this.element, state === undefined ? "" : this.#text(state));
  }

  #text(state) {
    switch (state.phase) {
      case "submitting":
        return "Submitting…";
      case "accepted":
        return "Accepted. It takes effect when the run can apply it.";
      case "succeeded":
        return this.#done;
      case "refused":
        return `Refused: ${refusal(state)}`;
      default:
        return state.isUnheard
          ? "Not known to the server, so not recorded so far; asking again is safe."
          : `No answer (${inertString(state.text, 200)}). It may or may not have been recorded; looking into it. Asking again is safe.`;
    }
  }
}

function refusal({ code, text, recorded }) {
  const said = recorded?.decision ?? recorded?.status;
  const by = recorded?.decided_by ?? recorded?.by;
  if (code === "already_resolved" && said) return inertString(`already ${said}${by ? ` by ${by}` : ""} (${code})`, 400);
  return inertString(`${text} (${code})`, 400);
}
