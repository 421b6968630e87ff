/** The task and the plan: what was asked, in which steps, and how far they are. */

import { attribute, h, present, setText } from "./dom.js";
import { valueView } from "./evidence.js";
import { block, inertString, inline, onlyText } from "./text.js";

const MAX_STEPS = 100;
const DONE = new Set(["completed", "done", "complete", "finished"]);
const DOING = new Set(["in_progress", "running", "active", "doing", "started", "current"]);

export class TaskView {
  #asked = h("div.asked");
  #plan = h("div.plan");
  #tasks = h("ul.tasks");
  #progress = h("span.faint");
  #askedMark = null;
  #planMark = "";
  #tasksMark = "";

  constructor() {
    this.element = h("section.task", { "aria-labelledby": "task-title" },
      h("h2", { id: "task-title" }, "Task and plan ", this.#progress), this.#asked, this.#plan, this.#tasks);
  }

  draw(picture) {
    const { run, items } = picture.state;
    if (run.created_at !== undefined && this.#askedMark !== run.created_at) {
      this.#askedMark = run.created_at;
      this.#asked.replaceChildren(...present([inputView(run.input)]));
    }
    this.#drawPlan(items["plan:plan"]);
    this.#drawTasks(picture);
  }

  #drawPlan(plan) {
    const mark = plan === undefined ? "" : String(plan.last_sequence);
    if (this.#planMark === mark) return;
    this.#planMark = mark;
    const steps = stepsOf(plan);
    this.#plan.replaceChildren(...(steps === null ? present([plan === undefined ? null : valueView(plan.steps)]) : [listOf(steps)]));
    const done = (steps ?? []).filter((step) => step.state === "done").length;
    setText(this.#progress, steps === null ? "" : `${done} of ${steps.length}`);
  }

  #drawTasks(picture) {
    const tasks = Array.from(picture.index.tasks).slice(-MAX_STEPS).map((key) => picture.state.items[key]);
    const mark = tasks.map((task) => task.last_sequence).join();
    if (this.#tasksMark === mark) return;
    this.#tasksMark = mark;
    this.#tasks.hidden = tasks.length === 0;
    this.#tasks.replaceChildren(...tasks.map((task) => stepRow("li", { text: task.title ?? task.id, state: stateOf(task.status), status: task.status })));
  }
}

function stepsOf(plan) {
  if (plan === undefined || !Array.isArray(plan.steps)) return null;
  return plan.steps.slice(0, MAX_STEPS).map((step) => {
    if (step === null || typeof step !== "object") return { text: step ?? "", state: "todo" };
    const status = typeof step.status === "string" ? step.status : "";
    return { text: step.title ?? step.step ?? step.content ?? step.description ?? step.text ?? step, state: stateOf(status), status };
  });
}

function stateOf(status) {
  const word = String(status ?? "").toLowerCase();
  if (DONE.has(word)) return "done";
  if (DOING.has(word)) return "doing";
  return word === "failed" ? "failed" : word === "cancelled" || word === "skipped" ? "dropped" : "todo";
}

function listOf(steps) {
  return h("ol.steps", {}, steps.map((step) => stepRow("li", step)));
}

const SIGNS = { done: "✓", doing: "●", failed: "✕", dropped: "–", todo: "○" };
const WORDS = { done: "done", doing: "in progress", failed: "failed", dropped: "dropped", todo: "" };

function stepRow(tag, { text, state, status }) {
  const word = WORDS[state] === "" ? String(status ?? "") : WORDS[state];
  const row = h(`${tag}.step`, { "data-state": state },
    h("span.sign", { "aria-hidden": "true" }, SIGNS[state]), h("span.step-text", {}, inline(text, 400)),
    word === "" ? null : h("span.visually-hidden", {}, ` (${inertString(word.replaceAll("_", " "), 40)})`));
  attribute(row, "aria-current", state === "doing" ? "step" : null);
  return row;
}

function inputView(input) {
  if (input === undefined || input === null) return null;
  const text = onlyText(input);
  return text === null ? valueView(input) : block(text, { first: 800 });
}
