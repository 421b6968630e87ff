/** The keys of the page, and the help that shows them. Nothing decides at one key: a decision is focused, then pressed. */

import { h } from "./dom.js";

/** Key → `[action, what it does]`, by where it works. */
export const KEYS = {
  "In a run": [
    ["n", "need", "to what needs you, and the next one"],
    ["j", "next", "next row"], ["k", "previous", "row before"], ["o", "unfold", "open or close the row"],
    ["f", "find", "find in this run"], ["G", "newest", "newest row, and follow"],
    ["m", "message", "write a message"],
    ["[", "back", "one fact back in time"], ["]", "forward", "one fact forward"], ["Escape", "live", "from the past back to now"],
  ],
  "Among runs": [
    ["/", "search", "search the runs"], ["J", "nextRun", "next run"], ["K", "previousRun", "run before"], ["u", "list", "to the list"],
  ],
  "Everywhere": [["t", "theme", "light, dark, or as the system"], ["?", "help", "this help"]],
};

const ACTIONS = new Map(Object.values(KEYS).flat().map(([key, action]) => [key, action]));

/** Call `act(action)` for a key that means one; it returns whether it did something. */
export function listenToKeys(act) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const field = event.target.closest?.("input:not([type=range], [type=radio], [type=checkbox]), textarea, select");
    if (event.target.closest?.("dialog") !== null) return;
    if (field !== null && field !== undefined) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const action = ACTIONS.get(event.key);
    if (action !== undefined && act(action)) event.preventDefault();
  });
}

/** The overlay with all keys. */
export class Help {
  constructor() {
    this.element = h("dialog.help", { "aria-labelledby": "help-title" },
      h("form", { method: "dialog" },
        h("header.head", {}, h("h2", { id: "help-title" }, "Keys"), h("span.spring"), h("button.quiet", { type: "submit" }, "Close")),
        h("div.key-groups", {}, Object.entries(KEYS).map(([place, keys]) =>
          h("section", {}, h("h3", {}, place), h("dl", {}, keys.map(([key, , text]) => h("div", {}, h("dt", {}, h("kbd", {}, key === "Escape" ? "Esc" : key)), h("dd", {}, text)))))))));
  }

  open() {
    if (!this.element.open) this.element.showModal();
  }
}
