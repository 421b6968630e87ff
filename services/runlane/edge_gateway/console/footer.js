/** How well we are connected, how far behind, what was omitted, and which state this is. */

import { attribute, h, setText } from "./dom.js";
import { span } from "./moments.js";
import { inertString } from "./text.js";

export class Footer {
  #chip = h("span.chip", { role: "status", "aria-live": "off" });
  #now = h("button.link", { type: "button", hidden: true }, "Now");
  #lag = h("span.lag", { title: "from recorded to shown, by this computer's clock" });
  #sequence = h("span.number", { title: "facts applied" });
  #sum = h("code.sum");
  #verify = h("button.link", { type: "button", hidden: true, title: "Compare with the server's own state at this sequence" }, "Compare");
  #verdict = h("span.verdict", { role: "status" });
  #omitted = h("span.previews", { title: "Fragments of live output that did not get here. The facts are whole." });
  #verdictAt = -1;

  constructor(onVerify, onRetry) {
    this.#now.addEventListener("click", onRetry);
    this.#verify.addEventListener("click", onVerify);
    this.element = h("footer.run-foot", {}, this.#chip, this.#now, this.#lag, this.#omitted, h("span.spring"), this.#sequence, this.#sum, this.#verify, this.#verdict);
  }

  connection(connection) {
    attribute(this.#chip, "data-phase", connection.phase);
    setText(this.#chip, phaseText(connection));
    attribute(this.#chip, "title", connection.cause ? inertString(connection.cause, 300) : null);
    this.#now.hidden = connection.phase !== "reconnecting" && connection.phase !== "refused";
    setText(this.#now, connection.phase === "refused" ? "Try again" : "Now");
    if (connection.phase !== "live") setText(this.#lag, "");
  }

  /** A fact that happened just now came so many milliseconds after it was recorded. */
  lag(ms) {
    setText(this.#lag, ms === null || Number.isNaN(ms) ? "" : `lag ${span(Math.max(0, ms))}`);
    attribute(this.#lag, "data-late", ms > 2000);
  }

  update(model) {
    setText(this.#sequence, model.isEmpty ? "" : `#${model.sequence.toLocaleString("en")}`);
    const { lost } = model.overlay.counts;
    setText(this.#omitted, lost === 0 ? "" : `live output omitted: ${lost.toLocaleString("en")} fragment${lost === 1 ? "" : "s"}`);
    if (this.#verdictAt !== model.sequence) setText(this.#verdict, "");
    this.#verdictAt = model.sequence;
  }

  checksum(sum, sequence) {
    this.#verify.hidden = false;
    setText(this.#sum, sum.replace("sha256:", "").slice(0, 10));
    attribute(this.#sum, "title", `${sum} at #${sequence}`);
    attribute(this.#sum, "data-checksum", sum);
    attribute(this.#sum, "data-sequence", sequence);
  }

  verified(text, isSame) {
    attribute(this.#verdict, "data-same", isSame === null ? null : String(isSame));
    setText(this.#verdict, text);
  }
}

function phaseText(connection) {
  switch (connection.phase) {
    case "connecting":
      return "connecting";
    case "resuming":
      return "reconnecting now";
    case "catching_up":
      return `connected, catching up to #${connection.highWater.toLocaleString("en")}`;
    case "live":
      return "connected";
    case "reconnecting":
      return `reconnecting in ${Math.max(0, Math.ceil((connection.retryAt - Date.now()) / 1000))} s`;
    case "resting":
      return "resting while hidden";
    case "ended":
      return "ended";
    default:
      return `unrecoverable: ${inertString(connection.code ?? "", 40)}`;
  }
}
