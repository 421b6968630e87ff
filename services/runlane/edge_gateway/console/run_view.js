/** One run, live: header, notices, timeline, controls, and how well we are connected. */

import { Commander } from "./commands.js";
import { attribute, h, setText } from "./dom.js";
import { usage } from "./items.js";
import { age, between, fullMoment, span } from "./moments.js";
import { checksum } from "./reducer.js";
import { RunModel } from "./run_model.js";
import { asText, block, digestLine, inert, inertString, inline } from "./text.js";
import { Timeline } from "./timeline.js";
import { Watch } from "./watch.js";

const CHECKSUM_PAUSE_MS = 400;
const RUN_FACT_PAGES = 5;
const REST_AFTER_HIDDEN_MS = 60_000;
const PAUSABLE = new Set(["running", "waiting"]);

export class RunView {
  #api;
  #model;
  #watch;
  #commander;
  #timeline;
  #on;
  #dirty = new Set();
  #drawAll = false;
  #frame = 0;
  #ticker = 0;
  #checksumTimer = 0;
  #restTimer = 0;
  #connection = { phase: "connecting" };
  #announcedStatus = null;
  #header;
  #closed = false;
  #isRunKnown = false;

  #notice = h("div.notice", { role: "status", "aria-live": "polite", hidden: true });
  #attention = h("div.attention", { hidden: true });
  #live = h("p.visually-hidden", { role: "status", "aria-live": "polite" });
  #liveConnection = h("p.visually-hidden", { role: "status", "aria-live": "polite" });
  #intro = h("section.intro", { "aria-label": "Input of the run" });
  #outro = h("section.outro", { "aria-label": "Outcome of the run" });
  #footer = new Footer(() => this.#verify(), () => this.#retry());

  /** `on.refused()`: the token is not accepted. `on.status(runId, status)`: the run's status as just learned. */
  constructor(api, runId, on) {
    this.#api = api;
    this.#on = on;
    this.#model = new RunModel(runId);
    this.#commander = new Commander(api, runId);
    this.#header = new Header(runId, this.#commander);
    const context = { commander: this.#commander, item: (key) => this.#model.state.items[key], isOver: () => this.#model.isOver, isRetried: (id) => this.#model.isRetried(id) };
    this.#timeline = new Timeline(this.#model, context, this.#intro, this.#outro);
    this.#timeline.scroller.addEventListener("scroll", () => this.#changed([]), { passive: true });
    this.element = h("section.run-pane", { "aria-label": "Run" },
      this.#header.element, this.#notice, this.#timeline.element, this.#attention, this.#footer.element, this.#live, this.#liveConnection);
    this.#ticker = setInterval(() => this.#tick(), 1000);
    addEventListener("online", this.#onOnline);
    document.addEventListener("visibilitychange", this.#onOnline);
    this.#open();
  }

  close() {
    this.#closed = true;
    this.#watch.close();
    clearInterval(this.#ticker);
    clearTimeout(this.#checksumTimer);
    clearTimeout(this.#restTimer);
    cancelAnimationFrame(this.#frame);
    removeEventListener("online", this.#onOnline);
    document.removeEventListener("visibilitychange", this.#onOnline);
  }

  #onOnline = () => {
    clearTimeout(this.#restTimer);
    if (document.hidden) this.#restTimer = setTimeout(() => this.#watch.rest(), REST_AFTER_HIDDEN_MS);
    else this.#watch.retryNow();
  };

  #open() {
    this.#watch = new Watch(this.#api, this.#model, {
      connection: (connection) => this.#connected(connection),
      changed: (keys) => this.#changed(keys),
      notice: (notice) => this.#say(notice),
    });
    this.#watch.run();
  }

  #retry() {
    if (this.#connection.phase === "refused") this.#open();
    else this.#watch.retryNow();
  }

  // --- what the watch tells -------------------------------------------------------------------------------------

  #connected(connection) {
    this.#connection = connection;
    this.#footer.connection(connection);
    attribute(this.element, "data-phase", connection.phase);
    if (connection.phase in SPOKEN) setText(this.#liveConnection, SPOKEN[connection.phase]);
    if (connection.phase === "refused") {
      if (connection.code === "unauthenticated") this.#on.refused();
      else this.#say({ kind: "refused", text: refusalText(connection) });
    }
    this.#changed([]);
  }

  #changed(keys) {
    if (keys === null) {
      this.#drawAll = true;
      this.#isRunKnown = false;
    } else for (const key of keys) this.#dirty.add(key);
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #say(notice) {
    if (this.#closed) return;
    this.#notice.hidden = false;
    this.#notice.dataset.kind = notice.kind;
    const dismiss = h("button.link", { type: "button", "aria-label": "Dismiss this notice", onClick: () => { this.#notice.hidden = true; } }, "Dismiss");
    this.#notice.replaceChildren(h("span", {}, ...inert(capital(notice.text))), dismiss);
  }

  // --- drawing --------------------------------------------------------------------------------------------------

  #draw() {
    this.#frame = 0;
    if (this.#closed) return;
    const keys = this.#drawAll ? null : Array.from(this.#dirty);
    this.#dirty.clear();
    this.#drawAll = false;
    const { state } = this.#model;
    this.#header.update(this.#model);
    if (keys === null || state.through_sequence > 0) this.#drawEnds(state.run);
    this.#timeline.draw(keys);
    this.#drawAttention();
    this.#footer.update(this.#model);
    this.#scheduleChecksum();
    this.#learnRunFacts();
    this.#announce(state.run.status);
  }

  #drawEnds(run) {
    if (this.#intro.childElementCount === 0 && run.created_at !== undefined) this.#intro.append(...drawInput(run));
    const mark = run.ended_at ?? "";
    if (this.#outro.dataset.mark === mark) return;
    this.#outro.dataset.mark = mark;
    this.#outro.replaceChildren(...(mark === "" ? [] : drawOutcome(run)));
  }

  // What waits for a person is said as long as its card is out of sight.
  #drawAttention() {
    const { items, run } = this.#model.state;
    const waiting = (run.waiting_on ?? [])
      .map((one) => `${one.kind}:${one.id}`)
      .filter((key) => items[key]?.status === "waiting" && !this.#timeline.isInSight(key));
    const mark = waiting.join();
    if (this.#attention.dataset.mark === mark) return;
    this.#attention.dataset.mark = mark;
    this.#attention.hidden = waiting.length === 0;
    this.#attention.replaceChildren(...waiting.slice(0, 4).map((key) =>
      h("p", {}, h("strong", {}, items[key].kind === "approval" ? "Approval needed" : "Answer needed"), " ",
        inline(items[key].description ?? items[key].prompt ?? key, 120), " ",
        h("button.link", { type: "button", onClick: () => this.#timeline.show(key) }, "Show"))));
  }

  #announce(status) {
    if (this.#model.isEmpty || status === this.#announcedStatus) return;
    if (this.#announcedStatus !== null) setText(this.#live, `The run is now ${status}`);
    this.#announcedStatus = status;
    this.#on.status(this.#model.runId, status);
    document.title = `${inertString(this.#model.state.run.agent ?? "run", 40)} · ${status} — Runlane`;
  }

  #tick() {
    this.#header.tick(this.#model);
    this.#footer.connection(this.#connection);
  }

  // --- checksum -------------------------------------------------------------------------------------------------

  #scheduleChecksum() {
    if (this.#checksumTimer !== 0 || this.#model.isEmpty) return;
    this.#checksumTimer = setTimeout(async () => {
      this.#checksumTimer = 0;
      const { sequence } = this.#model;
      const sum = await checksum(this.#model.state);
      if (sequence === this.#model.sequence) this.#footer.checksum(sum, sequence);
    }, CHECKSUM_PAUSE_MS);
  }

  // A state tells the sum of what happened to the run itself; the facts about it tell when, and under which trace.
  async #learnRunFacts() {
    if (this.#isRunKnown || this.#model.isEmpty) return;
    this.#isRunKnown = true;
    const keys = [];
    try {
      let cursor = "";
      for (let pages = 0; pages < RUN_FACT_PAGES; pages += 1) {
        const page = await this.#api.events(this.#model.runId, { cursor, types: "run.*", limit: 200 });
        for (const fact of page.events) if (fact.sequence <= this.#model.sequence) keys.push(this.#model.noteRunFact(fact));
        if (!page.has_more) break;
        cursor = page.cursor;
      }
    } catch {
      // They are an extra: the timeline does without.
    }
    if (!this.#closed) this.#changed(keys.filter((key) => key !== null));
  }

  // Ask the server for its state at the very sequence we are at, and compare.
  async #verify() {
    const { sequence } = this.#model;
    const own = await checksum(this.#model.state);
    this.#footer.verified("comparing…", null);
    try {
      const theirs = await this.#api.snapshot(this.#model.runId, { atSequence: sequence });
      const isSame = theirs.checksum === own && theirs.through_sequence === sequence;
      this.#footer.verified(isSame ? `agrees with the server at #${sequence}` : `differs from the server at #${sequence}`, isSame);
    } catch (error) {
      this.#footer.verified(`could not compare: ${inertString(error.message)}`, false);
    }
  }
}

// The chip counts down each second; only these are worth a voice.
const SPOKEN = { live: "Connection live", reconnecting: "Connection lost, reconnecting", ended: "The run is over", refused: "Connection refused" };

function refusalText(connection) {
  const texts = {
    run_not_found: "There is no such run, or it belongs to someone else.",
    forbidden: "This token may not see this run.",
  };
  return texts[connection.code] ?? `The server refused: ${connection.cause} (${connection.code})`;
}

function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function drawInput(run) {
  if (run.input === undefined || run.input === null) return [];
  const isText = typeof run.input === "string" || isOnlyText(run.input);
  return [h("span.kind", {}, "Input"), block(isText ? (run.input.text ?? run.input) : run.input, { className: isText ? "text" : "code", first: 2000 })];
}

function isOnlyText(input) {
  return typeof input === "object" && !Array.isArray(input) && Object.keys(input).length === 1 && typeof input.text === "string";
}

function drawOutcome(run) {
  const title = h("header.head", {}, h("span.kind", {}, "Outcome"), h("span.status", { "data-status": run.status }, run.status), usage(run.usage));
  const output = run.output === undefined || run.output === null ? null : block(isOnlyText(run.output) ? run.output.text : run.output, { className: typeof run.output === "string" || isOnlyText(run.output) ? "text" : "code" });
  const error = run.error === undefined || run.error === null ? null
    : h("div.failure", {}, h("strong", {}, inline(run.error.code ?? "error", 80)), " ", block(asText(run.error.message ?? run.error), { first: 3000 }));
  const reason = run.reason ? h("p.faint", {}, "because: ", inline(run.reason, 400)) : null;
  return [title, output, error, reason].filter((node) => node !== null);
}

// --- header -------------------------------------------------------------------------------------------------------

class Header {
  #agent = h("h1");
  #status = h("span.status");
  #facts = h("dl.facts");
  #elapsed = h("dd");
  #drawn = "";
  #controls;

  constructor(runId, commander) {
    this.#controls = new Controls(commander);
    this.#agent.append(inline(runId, 64));
    this.element = h("header.run-head", {},
      h("a.back", { href: "#/" }, "All runs"),
      h("div.title", {}, this.#agent, this.#status, this.#controls.element), this.#facts);
  }

  update(model) {
    const { run } = model.state;
    if (model.isEmpty) return;
    this.#controls.update(run);
    attribute(this.#status, "data-status", run.status);
    setText(this.#status, statusText(run));
    const drawn = [run.agent, run.worker_id, run.lease_epoch, run.attempt, run.session_id, model.traceparent, run.parent_run_id, run.cancel_deadline_at, run.ended_at].join("\n");
    if (drawn !== this.#drawn) {
      this.#drawn = drawn;
      this.#agent.replaceChildren(inline(run.agent ?? run.run_id, 80));
      this.#drawFacts(model);
    }
    this.tick(model);
  }

  tick(model) {
    const { run } = model.state;
    if (run.created_at === undefined) return;
    setText(this.#elapsed, run.ended_at === undefined ? age(run.created_at) : between(run.created_at, run.ended_at));
    attribute(this.#elapsed, "title", `${fullMoment(run.created_at)}${run.ended_at === undefined ? "" : ` to ${fullMoment(run.ended_at)}`}`);
  }

  #drawFacts(model) {
    const { run } = model.state;
    const owner = run.worker_id === undefined ? "nobody" : `${run.worker_id}, lease epoch ${run.lease_epoch}${run.attempt > 1 ? `, attempt ${run.attempt}` : ""}`;
    const rows = [
      ["run", h("code", {}, inline(run.run_id, 64))],
      ["owner", run.ended_at === undefined ? inline(owner, 120) : null],
      ["session", run.session_id === undefined ? null : h("code", {}, inline(run.session_id, 64))],
      ["parent", run.parent_run_id ? h("a", { href: `#/runs/${encodeURIComponent(run.parent_run_id)}` }, inline(run.parent_run_id, 64)) : null],
      ["trace", model.traceparent === null ? null : h("code", { title: inertString(model.traceparent) }, inline(traceId(model.traceparent), 40))],
      ["stop by", run.cancel_deadline_at === undefined || run.ended_at !== undefined ? null : h("time", { title: fullMoment(run.cancel_deadline_at) }, fullMoment(run.cancel_deadline_at))],
    ];
    const elapsed = h("div", {}, h("dt", {}, "time"), this.#elapsed);
    this.#facts.replaceChildren(...rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))), elapsed);
  }
}

function statusText(run) {
  if (run.status === "waiting") {
    const kinds = new Set((run.waiting_on ?? []).map((one) => one.kind));
    if (kinds.size > 0) return `waiting for ${Array.from(kinds).map((kind) => (kind === "input" ? "an answer" : `an ${inertString(kind, 20)}`)).join(" and ")}`;
  }
  return run.status === "lost" ? "lost — no worker holds the lease" : inertString(run.status, 30);
}

function traceId(traceparent) {
  return traceparent.split("-")[1] ?? traceparent;
}

// --- controls -----------------------------------------------------------------------------------------------------

class Controls {
  #commander;
  #pause = h("button", { type: "button", hidden: true, onClick: () => this.#submit("run.pause", {}) }, "Pause");
  #resume = h("button", { type: "button", hidden: true, onClick: () => this.#submit("run.resume", {}) }, "Resume");
  #cancel = h("button.danger", { type: "button", hidden: true, onClick: () => this.#confirm() }, "Cancel…");
  #answer = h("span.answer", { role: "status", "aria-live": "polite" });
  #reason = h("input", { type: "text", maxlength: 1000, placeholder: "Reason (optional)", "aria-label": "Reason for cancelling" });
  #dialog;

  constructor(commander) {
    this.#commander = commander;
    this.#dialog = h("dialog", { "aria-labelledby": "cancel-title" },
      h("form", { method: "dialog", onSubmit: (event) => this.#decided(event) },
        h("h2", { id: "cancel-title" }, "Cancel this run?"),
        h("p", {}, "Its worker is asked to stop at a safe point. When it does not in time, it is fenced and the run is ended for it. This cannot be undone."),
        this.#reason,
        h("div.buttons", {}, h("button", { value: "keep", type: "submit" }, "Keep it running"), h("button.reject", { value: "cancel", type: "submit" }, "Cancel the run"))));
    this.element = h("div.controls", {}, this.#answer, this.#pause, this.#resume, this.#cancel, this.#dialog);
  }

  update(run) {
    const isOver = run.ended_at !== undefined;
    this.#pause.hidden = !PAUSABLE.has(run.status);
    this.#resume.hidden = run.status !== "paused";
    this.#cancel.hidden = isOver || run.status === "cancelling";
    if (isOver) {
      setText(this.#answer, "");
      if (this.#dialog.open) this.#dialog.close();
    }
  }

  #confirm() {
    this.#reason.value = "";
    this.#dialog.showModal();
  }

  #decided(event) {
    if (event.submitter?.value !== "cancel") return;
    const reason = this.#reason.value.trim();
    this.#submit("run.cancel", reason === "" ? {} : { reason });
  }

  async #submit(type, payload) {
    const buttons = [this.#pause, this.#resume, this.#cancel];
    for (const button of buttons) button.disabled = true;
    this.#answer.dataset.kind = "pending";
    setText(this.#answer, "Asking…");
    const outcome = await this.#commander.submit(type, payload);
    for (const button of buttons) button.disabled = false;
    this.#answer.dataset.kind = outcome.done || outcome.held ? "done" : "failed";
    setText(this.#answer, controlAnswer(outcome));
  }
}

function controlAnswer(outcome) {
  if (outcome.done) return "";
  if (outcome.held) return "Accepted; waits for the run.";
  if (outcome.unknown !== undefined) return "No answer; asking again is safe.";
  return `Refused: ${inertString(`${outcome.refused} (${outcome.code})`, 200)}`;
}

// --- footer -------------------------------------------------------------------------------------------------------

class Footer {
  #chip = h("span.chip");
  #now = h("button.link", { type: "button", hidden: true }, "Now");
  #sequence = h("span.number", { title: "facts applied" });
  #sum = h("code.sum");
  #verify = h("button.link", { type: "button", hidden: true, title: "Compare with the server's own state at this sequence" }, "Compare");
  #verdict = h("span.verdict", { role: "status" });
  #previews = h("span.previews");
  #verdictAt = -1;

  constructor(onVerify, onRetry) {
    this.#now.addEventListener("click", onRetry);
    this.#verify.addEventListener("click", onVerify);
    this.element = h("footer.run-foot", {}, this.#chip, this.#now, h("span.spring"), this.#previews, this.#sequence, this.#sum, this.#verify, this.#verdict);
  }

  connection(connection) {
    attribute(this.#chip, "data-phase", connection.phase);
    setText(this.#chip, phaseText(connection));
    attribute(this.#chip, "title", connection.cause ? inertString(connection.cause, 300) : null);
    this.#now.hidden = connection.phase !== "reconnecting" && connection.phase !== "refused";
    setText(this.#now, connection.phase === "refused" ? "Try again" : "Now");
  }

  update(model) {
    setText(this.#sequence, model.isEmpty ? "" : `#${model.sequence.toLocaleString("en")}`);
    const { lost } = model.overlay.counts;
    setText(this.#previews, lost === 0 ? "" : `${lost.toLocaleString("en")} preview fragment${lost === 1 ? "" : "s"} lost`);
    if (this.#verdictAt !== model.sequence) setText(this.#verdict, "");
    this.#verdictAt = model.sequence;
  }

  checksum(sum, sequence) {
    this.#verify.hidden = sum === null;
    setText(this.#sum, sum === null ? "no checksum over plain HTTP" : sum.replace("sha256:", "").slice(0, 10));
    attribute(this.#sum, "title", sum === null ? null : `${sum} at #${sequence}`);
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
      return "resuming";
    case "catching_up":
      return `catching up to #${connection.highWater}`;
    case "live":
      return "live";
    case "reconnecting":
      return `reconnecting in ${Math.max(0, Math.ceil((connection.retryAt - Date.now()) / 1000))} s`;
    case "resting":
      return "resting while hidden";
    case "ended":
      return "ended";
    default:
      return `refused: ${inertString(connection.code ?? "", 40)}`;
  }
}

/** What the right side shows while no run is chosen. */
export function noRun() {
  return h("section.run-pane.none", {}, h("p", {}, "Choose a run."));
}
