/**
 * Who is looking: the token of this tab, and which run.
 *
 * A link may bring both in its fragment (`#token=…&run=…`), which no server ever sees; the token is then kept for
 * the tab's session only and taken out of the address bar.
 */

const KEY = "runlane.token";
let held = null; // also here, for browsers that deny storage

/** The token of this tab, or null. */
export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? held;
  } catch {
    return held;
  }
}

/** Keep a token for this tab; null forgets it. */
export function keepToken(value) {
  held = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // Storage is denied: the token lives as long as the page.
  }
}

/** The address of a run on this page. */
export function runAddress(runId) {
  return `#/runs/${encodeURIComponent(runId)}`;
}

/** Read the address bar; take a token out of it. Returns the run it names, or null. */
export function readAddress() {
  const fragment = location.hash.replace(/^#/, "");
  const path = /^\/runs\/([^/?&]+)/.exec(fragment);
  let runId = path === null ? null : decode(path[1]);
  const fields = new URLSearchParams(path === null ? fragment.replace(/^\/?\??/, "") : fragment.slice(path[0].length + 1));
  const given = fields.get("token");
  runId ??= fields.get("run");
  if (given !== null) {
    keepToken(given.trim() || null);
    history.replaceState(null, "", runId === null ? "#/" : runAddress(runId));
  }
  return runId;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
