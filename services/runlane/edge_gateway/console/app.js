/** The page: who is looking, which run, and what is on screen. */

import { Api } from "./api.js";
import { h } from "./dom.js";
import { Help, listenToKeys } from "./keys.js";
import { noRun, RunView } from "./run_view.js";
import { RunsView } from "./runs_view.js";
import { keepToken, readAddress, runAddress, token } from "./session.js";
import { signIn } from "./sign_in.js";
import { ThemeButton } from "./theme.js";

class Console {
  #root;
  #runs = null;
  #run = null;
  #shownRun = null;
  #held = null; // the token that what is on screen was read with
  #help = new Help();
  #theme = new ThemeButton();
  #signOut = h("button.quiet", { type: "button", hidden: true, onClick: () => this.#leave("") }, "Sign out");

  constructor(root) {
    this.#root = root;
    addEventListener("hashchange", () => this.#navigate());
    listenToKeys((action) => this.#act(action));
  }

  start() {
    const keys = h("button.quiet", { type: "button", title: "Keys (?)", "aria-label": "Keys", onClick: () => this.#help.open() }, "?");
    const skip = h("a.skip", { href: "#panes", onClick: (event) => { event.preventDefault(); this.#panes.querySelector(".run-pane .timeline, .runs a, input")?.focus(); } }, "Skip to the run");
    this.#root.replaceChildren(
      skip,
      h("header.bar", {}, h("a.wordmark", { href: "#/" }, h("span.lane", { "aria-hidden": "true" }), "Runlane"), h("span.spring"), keys, this.#theme.element, this.#signOut),
      h("main.panes", { id: "panes" }),
      this.#help.element,
    );
    this.#navigate();
  }

  get #panes() {
    return this.#root.querySelector("#panes");
  }

  #navigate() {
    const before = this.#held;
    const runId = readAddress();
    const now = token();
    if (now === null) return this.#ask("");
    if (this.#runs === null || now !== before) this.#enter(now);
    this.#runs.adoptFilters();
    return this.#show(runId);
  }

  #enter(now) {
    this.#close();
    this.#held = now;
    this.#signOut.hidden = false;
    this.#runs = new RunsView(new Api(now), () => this.#leave("This token is not accepted."));
    this.#panes.replaceChildren(this.#runs.element, noRun());
    this.#panes.dataset.view = "runs";
  }

  #show(runId) {
    if (this.#run !== null && this.#shownRun === runId) return;
    this.#run?.close();
    this.#run = null;
    this.#shownRun = runId;
    this.#panes.dataset.view = runId === null ? "runs" : "run";
    this.#runs.select(runId);
    document.title = "Runlane";
    if (runId !== null) {
      this.#run = new RunView(new Api(this.#held), runId, {
        refused: () => this.#leave("This token is no longer accepted."),
        status: (id, status) => this.#runs?.told(id, status),
      });
    }
    this.#panes.lastElementChild.replaceWith(this.#run?.element ?? noRun());
  }

  #act(action) {
    if (action === "help") this.#help.open();
    else if (action === "theme") this.#theme.next();
    else if (action === "list") location.hash = runAddress(null);
    else return (this.#run?.act(action) || this.#runs?.act(action)) ?? false;
    return true;
  }

  #leave(reason) {
    keepToken(null);
    this.#ask(reason);
  }

  #ask(reason) {
    this.#close();
    this.#signOut.hidden = true;
    this.#panes.dataset.view = "sign-in";
    this.#panes.replaceChildren(signIn(reason, (given) => {
      keepToken(given);
      this.#navigate();
    }));
  }

  #close() {
    this.#runs?.close();
    this.#run?.close();
    this.#runs = null;
    this.#run = null;
    this.#shownRun = null;
    this.#held = null;
  }
}

new Console(document.getElementById("console")).start();
