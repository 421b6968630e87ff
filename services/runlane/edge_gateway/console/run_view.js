/** One run: its head, its record as a slider, what happens now, the task, the evidence, and how well we are connected. */

import { Commander } from "./commands.js";
import { CommandStatus } from "./command_status.js";
import { Composer } from "./composer.js";
import { Controls } from "./controls.js";
import { attribute, h, setText } from "./dom.js";
import { Footer } from "./footer.js";
import { age, clock, fullMoment, stopwatch } from "./moments.js";
import { NowView, needsOf } from "./now_view.js";
import { Record } from "./record.js";
import { Replay } from "./replay.js";
import { RunHeader } from "./run_header.js";
import { RunModel } from "./run_model.js";
import { Slider } from "./slider.js";
import { TaskView } from "./task_view.js";
import { inert, inertString } from "./text.js";
import { Timeline } from "./timeline.js";
import { Watch } from "./watch.js";

const CHECKSUM_PAUSE_MS = 350;
const CHECKSUM_LATEST_MS = 4000;
const RUN_FACT_PAGES = 5;
const REST_AFTER_HIDDEN_MS = 60_000;
const NOTICE_PASSES_MS = 8000;

export class RunView {
  #api;
  #model;
  #past = null; // the picture of a moment that is looked at
  #watch;
  #commander;
  #timeline;
  #replay;
  #slider;
  #header;
  #controls;
  #composer;
  #now;
  #task = new TaskView();
  #on;
  #dirty = new Set();
  #drawAll = false;
  #frame = 0;
  #ticker = 0;
  #checksumTimer = 0;
  #checksumDue = 0;
  #restTimer = 0;
  #noticeTimer = 0;
  #connection = { phase: "connecting" };
  #announcedStatus = null;
  #announcedNeeds = new Set();
  #closed = false;
  #isRunKnown = false;
  #isPlaced = false; // a tab was chosen, by the page or the reader
  #retryStates = new Map(); // tool call id → CommandStatus

  #notice = h("div.notice", { role: "status", "aria-live": "polite", hidden: true });
  #pastBar = h("div.past-bar", { role: "status", hidden: true });
  #pastText = h("span");
  #live = h("p.visually-hidden", { role: "status", "aria-live": "polite" });
  #liveConnection = h("p.visually-hidden", { role: "status", "aria-live": "polite" });
  #footer = new Footer(() => this.#verify(), () => this.#retry());
  #tabs;

  /** `on.refused()`: the token is not accepted. `on.status(runId, status)`: the run's status as just learned. */
  constructor(api, runId, on) {
    this.#api = api;
    this.#on = on;
    this.#model = new RunModel(runId);
    this.#commander = new Commander(api, runId);
    this.#controls = new Controls(this.#commander, runId);
    this.#composer = new Composer(this.#commander, runId);
    this.#header = new RunHeader(runId, this.#controls.element);
    const record = new Record(api, runId);
    const context = this.#context(record, runId);
    this.#now = new NowView(context);
    this.#timeline = new Timeline(this.#model, context);
    this.#replay = new Replay(record, this.#model, {
      shown: (picture) => this.#turnTo(picture),
      playing: (isPlaying) => this.#slider.playing(isPlaying),
      failed: (error) => this.#say({ kind: "refused", text: `that moment could not be read: ${error.message}` }),
      speed: () => this.#slider.speed,
    });
    this.#slider = new Slider({
      move: (sequence) => { this.#replay.stop(); this.#replay.go(sequence); },
      play: (isPlaying) => (isPlaying ? this.#replay.play() : this.#replay.stop()),
    });
    this.#commander.listen((place) => this.#commanded(place));
    this.#build();
    this.#ticker = setInterval(() => this.#tick(), 1000);
    addEventListener("online", this.#onOnline);
    document.addEventListener("visibilitychange", this.#onOnline);
    this.#open();
  }

  close() {
    this.#closed = true;
    this.#watch.close();
    this.#commander.close();
    this.#replay.close();
    this.#timeline.close();
    clearInterval(this.#ticker);
    for (const timer of [this.#checksumTimer, this.#restTimer, this.#noticeTimer]) clearTimeout(timer);
    cancelAnimationFrame(this.#frame);
    removeEventListener("online", this.#onOnline);
    document.removeEventListener("visibilitychange", this.#onOnline);
  }

  /** What a key asks for: see `keys.js`. Returns whether there was anything to do. */
  act(action) {
    const actions = {
      next: () => this.#timeline.step(1), previous: () => this.#timeline.step(-1), unfold: () => this.#timeline.unfold(),
      newest: () => this.#timeline.follow(), find: () => { this.#choose("evidence"); this.#timeline.focusFind(); },
      need: () => { this.#choose("now"); this.#now.focus(); }, message: () => this.#composer.focus(),
      back: () => this.#slider.step(-1), forward: () => this.#slider.step(1), live: () => this.#replay.go(null),
    };
    if (!(action in actions) || (action === "live" && !this.#replay.isPast)) return false;
    actions[action]();
    return true;
  }

  #context(record, runId) {
    return {
      api: this.#api, commander: this.#commander, record, runId,
      item: (key) => this.#picture.state.items[key],
      isOver: () => this.#picture.isOver || this.#picture.isPast,
      show: (key) => { this.#choose("evidence"); this.#timeline.show(key); },
      rest: (key) => this.#timeline.rest(key),
      pointer: (item) => h("button.link.pointer", { type: "button", onClick: () => { this.#choose("now"); this.#now.focus(`${item.kind}:${item.id}`); } }, "Decide →"),
      retryControl: (item) => this.#retryControl(item),
    };
  }

  #build() {
    const toNow = h("button", { type: "button", onClick: () => this.#replay.go(null) }, "Back to now");
    this.#pastBar.append(h("strong", {}, "You are looking at the past"), this.#pastText, h("span.spring"), toNow);
    this.#tabs = [["now", "Now"], ["evidence", "Evidence"], ["task", "Task"]].map(([name, word]) =>
      h("button.tab", { type: "button", "data-tab": name, "aria-pressed": "false", onClick: () => this.#choose(name) }, word));
    const rail = h("div.rail", { tabindex: -1 }, this.#now.element, this.#task.element);
    this.element = h("section.run-pane", { "aria-label": "Run" },
      this.#header.element, this.#notice, this.#slider.element, this.#pastBar,
      h("nav.tabs", { "aria-label": "Parts of the run" }, this.#tabs),
      h("div.layers", {}, this.#timeline.element, rail),
      this.#composer.element, this.#footer.element, this.#live, this.#liveConnection);
    this.#choose("evidence", false);
  }

  #choose(name, isChosen = true) {
    this.#isPlaced ||= isChosen;
    this.element.dataset.tab = name;
    for (const tab of this.#tabs) attribute(tab, "aria-pressed", String(tab.dataset.tab === name));
    this.#timeline.redraw();
  }

  get #picture() {
    return this.#past ?? this.#model;
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
      arrived: (fact) => this.#footer.lag(Date.now() - Date.parse(fact.recorded_at ?? "")),
    });
    this.#watch.run();
  }

  #retry() {
    if (this.#connection.phase === "refused") this.#open();
    else this.#watch.retryNow();
  }

  // --- what is told -----------------------------------------------------------------------------------------------

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

  #commanded(place) {
    this.#now.refresh(place);
    this.#controls.refresh(place);
    this.#composer.refresh(place);
    this.#retryStates.get(place)?.update();
  }

  #say(notice) {
    if (this.#closed) return;
    clearTimeout(this.#noticeTimer);
    this.#notice.hidden = false;
    this.#notice.dataset.kind = notice.kind;
    const dismiss = h("button.link", { type: "button", "aria-label": "Dismiss this notice", onClick: () => { this.#notice.hidden = true; } }, "Dismiss");
    this.#notice.replaceChildren(h("span", {}, ...inert(capital(notice.text))), dismiss);
    // That all is well again needs nobody's click.
    if (notice.kind === "resumed") this.#noticeTimer = setTimeout(() => { this.#notice.hidden = true; }, NOTICE_PASSES_MS);
  }

  // --- the past ---------------------------------------------------------------------------------------------------

  #turnTo(picture) {
    if (this.#closed) return;
    if (picture === null && this.#past === null) return;
    this.#past = picture;
    attribute(this.element, "data-past", picture !== null);
    this.#pastBar.hidden = picture === null;
    this.#timeline.turnTo(this.#picture);
    this.#drawPicture();
  }

  #drawPast() {
    if (this.#past === null) return;
    const at = this.#past.state.run.updated_at;
    setText(this.#pastText, `#${this.#past.sequence.toLocaleString("en")} of ${this.#model.sequence.toLocaleString("en")} · ${clock(at)}, ${age(at)} ago. Nothing can be decided here.`);
    this.#pastBar.title = fullMoment(at);
  }

  // --- drawing ----------------------------------------------------------------------------------------------------

  #draw() {
    this.#frame = 0;
    if (this.#closed) return;
    const keys = this.#drawAll ? null : Array.from(this.#dirty);
    this.#dirty.clear();
    this.#drawAll = false;
    if (this.#past === null) {
      if (keys === null || keys.length > 0) this.#timeline.draw(keys);
      this.#drawPicture();
    } else {
      this.#slider.draw(this.#model, this.#past.sequence, this.#past.state.run.updated_at);
      this.#drawPast();
    }
    this.#footer.update(this.#model);
    this.#scheduleChecksum();
    this.#learnRunFacts();
    this.#announce();
  }

  #drawPicture() {
    const picture = this.#picture;
    this.#header.update(picture);
    this.#controls.update(picture);
    this.#composer.update(picture);
    this.#now.draw(picture);
    this.#task.draw(picture);
    this.#slider.draw(this.#model, this.#past?.sequence ?? null, picture.state.run.updated_at);
    this.#drawPast();
    this.#drawTabs();
    this.#tickTimes();
  }

  #drawTabs() {
    const needs = this.#now.count;
    setText(this.#tabs[0], needs > 0 ? `Now · ${needs}` : "Now");
    attribute(this.#tabs[0], "data-some", needs > 0);
    if (!this.#isPlaced && needs > 0) this.#choose("now");
  }

  #announce() {
    const { run, items } = this.#model.state;
    if (this.#model.isEmpty) return;
    for (const [name, key] of needsOf(this.#model)) {
      if (this.#announcedNeeds.has(name)) continue;
      this.#announcedNeeds.add(name);
      if (this.#announcedStatus !== null) setText(this.#live, `Needs you: ${inertString(items[key].description ?? items[key].prompt ?? items[key].name ?? key, 120)}`);
    }
    const needs = this.#now.count > 0 && this.#past === null ? "● " : "";
    document.title = `${needs}${inertString(run.agent ?? "run", 40)} · ${run.status} — Runlane`;
    if (run.status === this.#announcedStatus) return;
    if (this.#announcedStatus !== null && run.status !== "waiting") setText(this.#live, `The run is now ${run.status}`);
    this.#announcedStatus = run.status;
    this.#on.status(this.#model.runId, run.status);
  }

  #tick() {
    this.#header.tick(this.#picture);
    this.#footer.connection(this.#connection);
    this.#tickTimes();
  }

  #tickTimes() {
    const now = this.#past === null ? Date.now() : Date.parse(this.#past.state.run.updated_at ?? "");
    for (const time of this.element.querySelectorAll("time[data-since]")) {
      setText(time, time.className === "stopwatch" || time.classList.contains("faint") ? stopwatch(time.dataset.since, now) : `for ${age(time.dataset.since, now)}`);
    }
    for (const time of this.element.querySelectorAll("time[data-until]")) setText(time, leftUntil(time.dataset.until, now));
  }

  // One for each call, so that what became of it outlives the row.
  #retryControl(item) {
    const place = `retry:${item.id}`;
    const status = this.#retryStates.get(place) ?? new CommandStatus(this.#commander, place);
    this.#retryStates.set(place, status);
    const retry = () => {
      if (!status.isBusy) this.#commander.submit(place, "tool.retry", { tool_call_id: item.id });
    };
    return h("div.buttons.retry", {}, h("button", { type: "button", onClick: retry }, "Retry this call"), status.element);
  }

  // --- checksum ---------------------------------------------------------------------------------------------------

  // Once it is quiet; while facts pour in, every few seconds.
  #scheduleChecksum() {
    if (this.#model.isEmpty) return;
    const now = performance.now();
    if (this.#checksumTimer === 0) this.#checksumDue = now + CHECKSUM_LATEST_MS;
    clearTimeout(this.#checksumTimer);
    this.#checksumTimer = setTimeout(() => this.#showChecksum(), Math.min(CHECKSUM_PAUSE_MS, Math.max(0, this.#checksumDue - now)));
  }

  async #showChecksum() {
    this.#checksumTimer = 0;
    const { sequence } = this.#model;
    const sum = await this.#model.checksum();
    if (sequence === this.#model.sequence) this.#footer.checksum(sum, sequence);
  }

  // Ask the server for its state at the very sequence we are at, and compare.
  async #verify() {
    const { sequence } = this.#model;
    const own = await this.#model.checksum();
    this.#footer.verified("comparing…", null);
    try {
      const theirs = await this.#api.snapshot(this.#model.runId, { atSequence: sequence });
      const isSame = theirs.checksum === own && theirs.through_sequence === sequence;
      this.#footer.verified(isSame ? `agrees with the server at #${sequence}` : `differs from the server at #${sequence}`, isSame);
    } catch (error) {
      this.#footer.verified(`could not compare: ${inertString(error.message)}`, false);
    }
  }

  // A state tells the sum of what happened to the run itself; the facts about it tell when, and under which trace.
  async #learnRunFacts() {
    if (this.#isRunKnown || this.#model.isEmpty) return;
    this.#isRunKnown = true;
    const keys = [];
    try {
      let cursor = "";
      for (let pages = 0; pages < RUN_FACT_PAGES; pages += 1) {
        const page = await this.#api.events(this.#model.runId, { cursor, types: "run.*,plan.*", limit: 200 });
        for (const fact of page.events) if (fact.sequence <= this.#model.sequence) keys.push(this.#model.noteRunFact(fact));
        if (!page.has_more) break;
        cursor = page.cursor;
      }
    } catch {
      // They are an extra: the timeline does without.
    }
    if (!this.#closed) this.#changed(keys.filter((key) => key !== null));
  }
}

// The chip counts down each second; only these are worth a voice.
const SPOKEN = { live: "Connected", reconnecting: "Connection lost, reconnecting", ended: "The run is over", refused: "Connection refused" };

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

function leftUntil(timestamp, now) {
  const left = Date.parse(timestamp) - now;
  if (Number.isNaN(left)) return inertString(timestamp, 40);
  return left > 0 ? `in ${age(new Date(now).toISOString(), Date.parse(timestamp))}` : `${age(timestamp, now)} ago`;
}

/** What the right side shows while no run is chosen. */
export function noRun() {
  return h("section.run-pane.none", {}, h("p", {}, "Choose a run, or press ", h("kbd", {}, "?"), " for the keys."));
}
