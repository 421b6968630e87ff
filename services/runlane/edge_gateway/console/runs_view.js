/** The list of runs: newest first, refreshed while it is looked at, filtered by status, agent, session and text. */

import { Problem } from "./api.js";
import { arrange, attribute, h, setText } from "./dom.js";
import { riskOf } from "./items.js";
import { age } from "./moments.js";
import { RunRow, haystack } from "./run_row.js";
import { readFilters, runAddress, writeFilters } from "./session.js";
import { inertString, inline } from "./text.js";

const REFRESH_MS = 2500;
const SOON_MS = 300;
const TYPED_MS = 350;
const REFRESH_MAX_MS = 20_000;
const PAGE = 50;
const MAX_WAITING = 6;
const STATUSES = ["created", "running", "waiting", "paused", "cancelling", "lost", "completed", "failed", "cancelled"];
const AN_ID = /^[A-Za-z0-9_-]{6,64}$/;

export class RunsView {
  #api;
  #onRefused;
  #rows = new Map(); // run id → row
  #runs = new Map(); // run id → the newest row the server gave
  #older = []; // run ids of pages that were asked for after the first
  #nextPage = "";
  #selected = null;
  #timer = 0;
  #typed = 0;
  #stopped = false;
  #failures = 0;
  #readAt = 0;
  #reading = null;
  #agents = new Set();

  #search = field("search", "Search runs", "Search runs by text", { "aria-keyshortcuts": "/" });
  #status = h("select", { "aria-label": "Filter runs by status" }, h("option", { value: "" }, "any status"), STATUSES.map((one) => h("option", { value: one }, one)));
  #agent = field("text", "agent", "Filter runs by agent", { list: "agents" });
  #session = field("text", "session", "Filter runs by session");
  #known = h("datalist", { id: "agents" });
  #clear = h("button.link", { type: "button", hidden: true, onClick: () => this.#clearFilters() }, "Clear");
  #list = h("ul.runs");
  #note = h("p.list-note", { role: "status" });
  #direct = h("p.list-note", { hidden: true });
  #waiting = h("section.waiting-list", { hidden: true, "aria-label": "Waiting for a decision" });
  #fresh = h("span.faint.fresh");
  #more = h("button.link.more", { type: "button", hidden: true, onClick: () => this.#readOlder() }, "Older runs");

  /** `onRefused()` is called when the token is not accepted. */
  constructor(api, onRefused) {
    this.#api = api;
    this.#onRefused = onRefused;
    this.element = h("nav.runs-pane", { "aria-label": "Runs" },
      h("form.filters", { role: "search", onSubmit: (event) => event.preventDefault() },
        this.#search, h("div.filter-row", {}, this.#status, this.#agent, this.#session), this.#known,
        h("div.filter-foot", {}, this.#fresh, h("span.spring"), this.#clear)),
      this.#waiting, h("div.runs-scroll", {}, this.#list, this.#note, this.#direct, this.#more));
    this.adoptFilters();
    this.#search.addEventListener("input", () => this.#filtered(false));
    this.#search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.#openFirst(); });
    this.#status.addEventListener("change", () => this.#filtered(true));
    for (const typed of [this.#agent, this.#session]) {
      typed.addEventListener("input", () => {
        clearTimeout(this.#typed);
        this.#typed = setTimeout(() => this.#filtered(true), TYPED_MS);
      });
    }
    document.addEventListener("visibilitychange", this.#onVisible);
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

  /** Take the filters of the address bar. */
  adoptFilters() {
    const { status, agent, session, q } = readFilters();
    const before = this.#filterMark();
    this.#status.value = STATUSES.includes(status) ? status : "";
    this.#agent.value = agent;
    this.#session.value = session;
    this.#search.value = q;
    if (before !== this.#filterMark() && this.#readAt > 0) this.#start();
  }

  /** What a key asks for; returns whether there was anything to do. */
  act(action) {
    if (action === "search") this.#search.focus();
    else if (action === "nextRun") this.#step(1);
    else if (action === "previousRun") this.#step(-1);
    else return false;
    return true;
  }

  close() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#typed);
    this.#reading?.abort();
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  #onVisible = () => {
    if (!document.hidden) this.#refresh();
  };

  // --- filters ------------------------------------------------------------------------------------------------------

  #filterMark() {
    return [this.#status.value, this.#agent.value.trim(), this.#session.value.trim()].join("\n");
  }

  #filtered(isServers) {
    writeFilters({ status: this.#status.value, agent: this.#agent.value.trim(), session: this.#session.value.trim(), q: this.#search.value.trim() });
    if (isServers) this.#start();
    else this.#draw();
  }

  #clearFilters() {
    for (const one of [this.#search, this.#status, this.#agent, this.#session]) one.value = "";
    this.#filtered(true);
    this.#search.focus();
  }

  #openFirst() {
    const first = this.#list.querySelector("a");
    if (first !== null) first.click();
    else if (!this.#direct.hidden) this.#direct.querySelector("a").click();
  }

  #step(by) {
    const links = Array.from(this.#list.querySelectorAll("a"));
    const at = links.findIndex((link) => link.getAttribute("aria-current") !== null);
    const next = links[at < 0 ? 0 : at + by];
    if (next === undefined) return;
    next.scrollIntoView({ block: "nearest" });
    next.click();
  }

  // --- reading ------------------------------------------------------------------------------------------------------

  #start() {
    this.#runs.clear();
    this.#older = [];
    this.#nextPage = "";
    setText(this.#note, "Reading…");
    this.#draw();
    this.#refresh();
  }

  #query() {
    return { status: this.#status.value, agent: this.#agent.value.trim(), session: this.#session.value.trim(), limit: PAGE };
  }

  async #refresh() {
    clearTimeout(this.#timer);
    this.#reading?.abort();
    this.#reading = new AbortController();
    const { signal } = this.#reading;
    try {
      const page = await this.#api.runs({ ...this.#query(), signal });
      this.#failures = 0;
      this.#readAt = Date.now();
      this.#takeFirstPage(page);
      await this.#readWaiting(signal);
    } catch (error) {
      if (error.name === "AbortError" || this.#stopped) return;
      if (error instanceof Problem && error.status === 401) return void this.#onRefused();
      this.#failures += 1;
      setText(this.#note, `The list could not be refreshed: ${inertString(error.message)}`);
    }
    this.#drawFresh();
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
      page = await this.#api.runs({ ...this.#query(), pageToken: this.#nextPage });
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
    if (this.#waiting.contains(document.activeElement)) return; // not from under somebody's hands
    const rest = approvals.length - MAX_WAITING;
    this.#waiting.replaceChildren(
      h("h2", {}, approvals.length === 1 ? "One approval waits for a decision" : `${approvals.length} approvals wait for a decision`),
      h("ul", {}, approvals.slice(0, MAX_WAITING).map((one) =>
        h("li", {}, h("a", { href: runAddress(one.run_id) }, inline(one.description ?? one.approval_id ?? one.id, 90)), riskOf(one), h("time.age", {}, age(one.updated_at ?? one.started_at))))),
      rest > 0 ? h("p.faint", {}, `and ${rest} more`) : "");
  }

  // --- drawing ------------------------------------------------------------------------------------------------------

  #draw() {
    const words = this.#search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = Array.from(this.#runs.values()).filter((run) => words.every((word) => haystack(run).includes(word)));
    arrange(this.#list, shown.map((run) => this.#row(run)));
    for (const id of this.#rows.keys()) if (!this.#runs.has(id)) this.#rows.delete(id);
    this.#more.hidden = this.#nextPage === "";
    this.#clear.hidden = this.#filterMark() === "\n\n" && words.length === 0;
    this.#drawNote(shown.length, words.length > 0);
    this.#drawDirect(shown.length);
    this.#learnAgents();
    this.#drawFresh();
  }

  #drawNote(count, isSearched) {
    if (this.#failures > 0 || this.#readAt === 0) return;
    if (count > 0) setText(this.#note, isSearched && this.#nextPage !== "" ? `Searched the newest ${this.#runs.size} runs.` : "");
    else setText(this.#note, this.#runs.size > 0 || this.#clear.hidden === false ? "No run matches." : "No runs yet.");
  }

  // An id that is not among the runs that were read is looked up all the same.
  #drawDirect(count) {
    const text = this.#search.value.trim();
    this.#direct.hidden = count > 0 || !AN_ID.test(text);
    if (!this.#direct.hidden) this.#direct.replaceChildren(h("a", { href: runAddress(text) }, "Open run ", h("code", {}, text)));
  }

  #learnAgents() {
    const before = this.#agents.size;
    for (const run of this.#runs.values()) if (run.agent) this.#agents.add(run.agent);
    if (this.#agents.size > before) this.#known.replaceChildren(...Array.from(this.#agents).sort().slice(0, 200).map((agent) => h("option", { value: agent })));
  }

  #drawFresh() {
    const isStale = this.#failures > 0;
    attribute(this.#fresh, "data-stale", isStale);
    setText(this.#fresh, this.#readAt === 0 ? "" : isStale ? `not refreshed for ${age(new Date(this.#readAt).toISOString())}` : "live, newest first");
  }

  #row(run) {
    let row = this.#rows.get(run.run_id);
    if (row === undefined) {
      row = new RunRow(run);
      this.#rows.set(run.run_id, row);
      attribute(row.link, "aria-current", run.run_id === this.#selected ? "page" : null);
    }
    row.update(run);
    return row.element;
  }
}

function field(type, placeholder, label, more = {}) {
  return h("input", { type, placeholder, "aria-label": label, autocomplete: "off", spellcheck: "false", ...more });
}
