/** The head of a run: what it is, what it does and since when, who holds it, where it is traced. */

import { diagnose } from "./diagnosis.js";
import { attribute, copyButton, h, present, setText } from "./dom.js";
import { age, between, fullMoment } from "./moments.js";
import { runAddress } from "./session.js";
import { inertString, inline } from "./text.js";

export class RunHeader {
  #agent = h("h1");
  #status = h("span.status.pill");
  #facts = h("dl.facts");
  #elapsed = h("dd");
  #sentence = h("span.sentence");
  #since = h("span.since");
  #diagnosis = h("p.diagnosis", {}, this.#sentence, " ", this.#since);
  #drawn = "";

  constructor(runId, controls) {
    this.#agent.append(inline(runId, 64));
    this.element = h("header.run-head", {},
      h("div.title", {}, h("a.back", { href: "#/" }, "← All runs"), this.#agent, this.#status, h("span.spring"), controls),
      this.#diagnosis, this.#facts);
  }

  update(picture) {
    const { run } = picture.state;
    if (picture.isEmpty) return;
    attribute(this.#status, "data-status", run.status);
    setText(this.#status, statusText(picture.state));
    const drawn = [run.agent, run.worker_id, run.lease_epoch, run.attempt, run.session_id, picture.traceparent, run.trace_id, run.parent_run_id, run.cancel_deadline_at, run.ended_at, run.pool].join("\n");
    if (drawn !== this.#drawn) {
      this.#drawn = drawn;
      this.#agent.replaceChildren(inline(run.agent ?? run.run_id, 80));
      this.#drawFacts(picture);
    }
    this.tick(picture);
  }

  tick(picture) {
    const { run } = picture.state;
    if (run.created_at === undefined) return;
    const now = picture.isPast ? Date.parse(run.updated_at ?? "") : Date.now();
    const { tone, text, since } = diagnose(picture, now);
    attribute(this.#diagnosis, "data-tone", tone);
    setText(this.#sentence, text);
    const passed = since === undefined ? "" : age(since, now);
    setText(this.#since, passed === "" || picture.isPast ? "" : tone === "over" || run.ended_at !== undefined ? `${passed} ago` : `for ${passed}`);
    attribute(this.#since, "title", fullMoment(since));
    setText(this.#elapsed, run.ended_at === undefined ? age(run.created_at, now) : between(run.created_at, run.ended_at));
    attribute(this.#elapsed, "title", `${fullMoment(run.created_at)}${run.ended_at === undefined ? "" : ` to ${fullMoment(run.ended_at)}`}`);
  }

  #drawFacts(picture) {
    const { run } = picture.state;
    const owner = run.worker_id === undefined ? "nobody" : `${run.worker_id}, epoch ${run.lease_epoch}${run.attempt > 1 ? `, attempt ${run.attempt}` : ""}`;
    const trace = run.trace_id ?? traceId(picture.traceparent);
    const rows = [
      ["run", [h("code", {}, inline(run.run_id, 64)), copyButton(run.run_id, "the run id")]],
      ["held by", run.ended_at === undefined ? inline(owner, 120) : null],
      ["session", run.session_id ? h("a", { href: `#/?session=${encodeURIComponent(run.session_id)}` }, h("code", {}, inline(run.session_id, 64))) : null],
      ["parent", run.parent_run_id ? h("a", { href: runAddress(run.parent_run_id) }, h("code", {}, inline(run.parent_run_id, 64))) : null],
      ["trace", trace === null ? null : [h("code.trace", {}, inline(trace, 40)), copyButton(trace, "the trace id")]],
      ["stop by", run.cancel_deadline_at === undefined || run.ended_at !== undefined ? null : h("time", { title: fullMoment(run.cancel_deadline_at) }, fullMoment(run.cancel_deadline_at))],
    ];
    const elapsed = h("div", {}, h("dt", {}, run.ended_at === undefined ? "age" : "took"), this.#elapsed);
    this.#facts.replaceChildren(elapsed, ...rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, ...present([value])))));
  }
}

function statusText({ run, items }) {
  if (run.status === "waiting") {
    const kinds = new Set((run.waiting_on ?? []).filter((one) => items[`${one.kind}:${one.id}`]?.status === "waiting").map((one) => one.kind));
    if (kinds.size > 0) return `waiting for ${Array.from(kinds).map((kind) => (kind === "input" ? "an answer" : `an ${inertString(kind, 20)}`)).join(" and ")}`;
  }
  return inertString(run.status, 30);
}

function traceId(traceparent) {
  return traceparent === null ? null : (traceparent.split("-")[1] ?? traceparent);
}
