/** Light, dark, or as the system has it: a button that goes round, remembered in this browser. */

import { h, setText } from "./dom.js";

const KEY = "runlane.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SIGNS = { auto: "◐", light: "○", dark: "●" };

export class ThemeButton {
  #sign = h("span", { "aria-hidden": "true" });
  #word = h("span.wide-only");

  constructor() {
    this.element = h("button.quiet", { type: "button", onClick: () => this.next() }, this.#sign, " ", this.#word);
    this.#draw();
  }

  /** Go on to the next theme. */
  next() {
    const theme = NEXT[current()];
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      if (theme === "auto") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, theme);
    } catch {
      // It holds for this page, then.
    }
    this.#draw();
  }

  #draw() {
    const theme = current();
    setText(this.#sign, SIGNS[theme]);
    setText(this.#word, theme);
    this.element.setAttribute("aria-label", `Theme: ${theme}. Change it`);
    this.element.title = "Theme (t)";
  }
}

function current() {
  return document.documentElement.dataset.theme ?? "auto";
}
