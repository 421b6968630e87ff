/** The list of runs: newest first, refreshed while it is looked at, filtered by status and text. */

import { Problem } from "./api.js";
import { arrange, attribute, h, setText } from "./dom.js";
import { age, fullMoment } from "./moments.js";
import { runAddress } from "./session.js";
import { inertString, inline } from "./text.js";

const REFRESH_MS = 2500;
const SOON_MS = 300;
const REFRESH_MAX_MS = 20_000;
const PAGE = 50;
const STATUSES = ["created", "running", "waiting", "paused", "cancelling", "lost", "completed", "failed", "cancelled"];

export class RunsView {
  #api;
  #onRefused;
  #rows = new Map(); // run id → {element, update}
  #runs = new Map(); // run id → the newest row the server gave
  #older = []; // run ids of pages that were asked for after the first
  #nextPage = "";
  #selected = null;
  #timer = 0;
  #stopped = false;
  #failures = 0;
  #reading = null;

  #search = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs by text", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false" });
  #status = h("select", { "aria-label": "Filter runs by status" }, h("option", { value: "" }, "Any status"), STATUSES.map((one) => h("option", { value: one }, one)));
  #list = h("ul.runs");
  #note = h("p.list-note", { role: "status" });
  #waiting = h("div.waiting-list", { hidden: true });
  #more = h("button.link.more", { type: "button", hidden: true, onClick: () => this.#readOlder() }, "Older runs");

  /** `onRefused()` is called when the token is not accepted. */
  constructor(api, onRefused) {
    this.#api = api;
    this.#onRefused = onRefused;
    this.element = h("nav.runs-pane", { "aria-label": "Runs" },
      h("form.filters", { role: "search", onSubmit: (event) => event.preventDefault() }, this.#search, this.#status),
      this.#waiting, h("div.runs-scroll", {}, this.#list, this.#note, this.#more));
    this.#search.addEventListener("input", () => this.#draw());
    this.#status.addEventListener("change", () => this.#start());
    this.onVisible = () => {
      if (!document.hidden) this.#refresh();
    };
    document.addEventListener("visibilitychange", this.onVisible);
    document.addEventListener("keydown", this.#pressed);
    this.#start();
  }

  /** Mark the run that is open beside the list. */
  select(runId) {
    this.#selected = runId;
    for (const [id, row] of this.#rows) attribute(row.link, "aria-current", id === runId ? "page" : null);
  }

  /** What the open run is known to be now, ahead of the next refresh. */
  told(runId, status) {
    const run = this.#runs.get(runId);
    if (run === undefined || run.status === status) return;
    run.status = status;
    this.#draw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#refresh(), SOON_MS); // what waits for a decision may have changed too
  }

  close() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#reading?.abort();
    document.removeEventListener("visibilitychange", this.onVisible);
    document.removeEventListener("keydown", this.#pressed);
  }

  #pressed = (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea, select, dialog") !== null) return;
    this.#search.focus();
    event.preventDefault();
  };

  #start() {
    this.#runs.clear();
    this.#older = [];
    this.#nextPage = "";
    setText(this.#note, "Reading…");
    this.#draw();
    this.#refresh();
  }

  async #refresh() {
    clearTimeout(this.#timer);
    this.#reading?.abort();
    this.#reading = new AbortController();
    const { signal } = this.#reading;
    try {
      const page = await this.#api.runs({ status: this.#status.value, limit: PAGE, signal });
      this.#failures = 0;
      this.#takeFirstPage(page);
      await this.#readWaiting(signal);
    } catch (error) {
      if (error.name === "AbortError" || this.#stopped) return;
      if (error instanceof Problem && error.status === 401) return void this.#onRefused();
      this.#failures += 1;
      setText(this.#note, `The list could not be refreshed: ${inertString(error.message)}`);
    }
    if (this.#stopped || document.hidden) return;
    const pause = Math.min(REFRESH_MAX_MS, REFRESH_MS * 2 ** this.#failures);
    this.#timer = setTimeout(() => this.#refresh(), pause);
  }

  #takeFirstPage(page) {
    const old = new Map(this.#older.map((id) => [id, this.#runs.get(id)]));
    this.#runs = new Map(page.runs.map((run) => [run.run_id, run]));
    for (const [id, run] of old) if (!this.#runs.has(id)) this.#runs.set(id, run);
    if (this.#older.length === 0) this.#nextPage = page.page_token ?? "";
    this.#draw();
  }

  async #readOlder() {
    let page;
    try {
      page = await this.#api.runs({ status: this.#status.value, limit: PAGE, pageToken: this.#nextPage });
    } catch (error) {
      setText(this.#note, `Older runs could not be read: ${inertString(error.message)}`);
      return;
    }
    for (const run of page.runs) {
      if (!this.#runs.has(run.run_id)) this.#older.push(run.run_id);
      this.#runs.set(run.run_id, run);
    }
    this.#nextPage = page.page_token ?? "";
    this.#draw();
  }

  async #readWaiting(signal) {
    let approvals = [];
    try {
      approvals = (await this.#api.waitingApprovals({ signal })).approvals ?? [];
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
    }
    this.#waiting.hidden = approvals.length === 0;
    this.#waiting.replaceChildren(
      h("h2", {}, approvals.length === 1 ? "One approval waits for a decision" : `${approvals.length} approvals wait for a decision`),
      h("ul", {}, approvals.slice(0, 8).map((one) =>
        h("li", {}, h("a", { href: runAddress(one.run_id) }, inline(one.description ?? one.approval_id, 90))))));
  }

  #draw() {
    const words = this.#search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = Array.from(this.#runs.values()).filter((run) => words.every((word) => haystack(run).includes(word)));
    arrange(this.#list, shown.map((run) => this.#row(run)));
    for (const id of this.#rows.keys()) if (!this.#runs.has(id)) this.#rows.delete(id);
    this.#more.hidden = this.#nextPage === "";
    if (this.#failures === 0) setText(this.#note, shown.length > 0 ? "" : this.#runs.size > 0 ? "No run matches." : "No runs yet.");
  }

  #row(run) {
    let row = this.#rows.get(run.run_id);
    if (row === undefined) {
      row = new Row(run);
      this.#rows.set(run.run_id, row);
      attribute(row.link, "aria-current", run.run_id === this.#selected ? "page" : null);
    }
    row.update(run);
    return row.element;
  }
}

class Row {
  #status = h("span.status");
  #age = h("time.age");
  #sequence = h("span.number");

  constructor(run) {
    this.link = h("a", { href: runAddress(run.run_id) },
      h("span.agent", {}, inline(run.agent ?? "agent", 60)), this.#age,
      h("span.second", {}, this.#status, h("code.id", {}, inline(run.run_id, 64)), this.#sequence));
    this.element = h("li", {}, this.link);
  }

  update(run) {
    attribute(this.element, "data-status", run.status);
    attribute(this.#status, "data-status", run.status);
    setText(this.#status, inertString(run.status ?? "", 30));
    setText(this.#age, age(run.created_at));
    attribute(this.#age, "datetime", run.created_at);
    attribute(this.#age, "title", `started ${fullMoment(run.created_at)}`);
    const sequence = run.through_sequence ?? run.sequence;
    setText(this.#sequence, sequence === undefined ? "" : `#${sequence}`);
  }
}

function haystack(run) {
  return [run.run_id, run.agent, run.session_id, run.status].filter(Boolean).join(" ").toLowerCase();
}
