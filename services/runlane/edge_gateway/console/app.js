/** The page: who is looking, which run, and what is on screen. */

import { Api } from "./api.js";
import { h } from "./dom.js";
import { noRun, RunView } from "./run_view.js";
import { RunsView } from "./runs_view.js";
import { keepToken, readAddress, token } from "./session.js";
import { signIn } from "./sign_in.js";

class Console {
  #root;
  #runs = null;
  #run = null;
  #shownRun = null;
  #held = null; // the token that what is on screen was read with
  #signOut = h("button.link", { type: "button", hidden: true, onClick: () => this.#leave("") }, "Sign out");

  constructor(root) {
    this.#root = root;
    addEventListener("hashchange", () => this.#navigate());
  }

  start() {
    this.#root.replaceChildren(
      h("header.bar", {}, h("a.wordmark", { href: "#/" }, "Runlane"), h("span.spring"), this.#signOut),
      h("main.panes", { id: "panes" }),
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
    return this.#show(runId);
  }

  #enter(now) {
    this.#close();
    this.#held = now;
    this.#signOut.hidden = false;
    this.#runs = new RunsView(new Api(now), () => this.#leave("This token is not accepted."));
    this.#panes.replaceChildren(this.#runs.element, noRun());
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
