/** The small form that asks for a token when there is none, or it is not accepted. */

import { Api, Problem } from "./api.js";
import { h } from "./dom.js";
import { inertString } from "./text.js";

/** `onToken(token)` is called with a token the server accepted. */
export function signIn(reason, onToken) {
  const field = h("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false", "aria-label": "Token" });
  const answer = h("p.answer", { role: "alert", "data-kind": "failed" }, reason);
  const button = h("button.approve", { type: "submit" }, "Sign in");
  const form = h("form.sign-in", {
    onSubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      answer.textContent = "";
      const refusal = await tryToken(field.value.trim());
      button.disabled = false;
      if (refusal === null) onToken(field.value.trim());
      else {
        answer.textContent = refusal;
        field.select();
      }
    },
  },
  h("h1", {}, "Sign in"),
  h("p", {}, "Give a token. ", h("code", {}, "runlane up"), " prints a link that brings one along."),
  h("div.buttons", {}, field, button), answer);
  queueMicrotask(() => field.focus());
  return form;
}

async function tryToken(token) {
  try {
    await new Api(token).runs({ limit: 1 });
    return null;
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return "This token is not accepted.";
    return `The server did not say yes: ${inertString(error.message)}`;
  }
}
