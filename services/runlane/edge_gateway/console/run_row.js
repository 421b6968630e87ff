/** One run in the list. */

import { attribute, h, setText } from "./dom.js";
import { age, fullMoment } from "./moments.js";
import { runAddress } from "./session.js";
import { inertString, inline } from "./text.js";

const OVER = new Set(["completed", "failed", "cancelled"]);

export class RunRow {
  #status = h("span.status");
  #age = h("time.age");
  #still = h("span.faint.still");
  #sequence = h("span.number");
  #mark = "";

  constructor(run) {
    this.link = h("a", {},
      h("span.agent", {}, inline(run.agent ?? "agent", 60)), this.#age,
      h("span.second", {}, this.#status, this.#still, h("code.id", { title: inertString(run.run_id, 64) }, inline(run.run_id, 64)), this.#sequence));
    this.element = h("li", {}, this.link);
  }

  update(run) {
    attribute(this.link, "href", runAddress(run.run_id));
    const isOver = OVER.has(run.status);
    const still = isOver ? "" : `for ${age(run.updated_at)}`;
    const mark = [run.quarantined?.sequence, run.status, run.created_at, run.through_sequence, still, age(run.created_at)].join("\n");
    if (mark === this.#mark) return;
    this.#mark = mark;
    attribute(this.element, "data-status", run.status);
    attribute(this.#status, "data-status", run.status);
    setText(this.#status, inertString(run.status ?? "", 30));
    setText(this.#still, run.quarantined ? `view quarantined at #${run.quarantined.sequence}` : still);
    attribute(this.#still, "data-quarantined", Boolean(run.quarantined));
    attribute(this.#still, "title", `last fact ${fullMoment(run.updated_at)}`);
    setText(this.#age, age(run.created_at));
    attribute(this.#age, "datetime", run.created_at);
    attribute(this.#age, "title", `started ${fullMoment(run.created_at)}`);
    const sequence = run.through_sequence ?? run.sequence;
    setText(this.#sequence, sequence === undefined ? "" : `#${sequence.toLocaleString("en")}`);
  }
}

/** What a search by text looks at. */
export function haystack(run) {
  return [run.run_id, run.agent, run.session_id, run.status, run.worker_id, run.pool].filter(Boolean).join(" ").toLowerCase();
}
