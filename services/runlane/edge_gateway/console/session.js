/**
 * Who is looking: the token of this tab, which run, and which runs are listed.
 *
 * A link may bring all of it in its fragment (`#token=…&run=…`), which no server ever sees; the token is then kept for
 * the tab's session only and taken out of the address bar. After that the address is `#/runs/<id>?status=…&agent=…`.
 */

const KEY = "runlane.token";
const FILTERS = ["status", "agent", "session", "q"];
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

/** The address of a run on this page, or of the list; the list keeps its filters. */
export function runAddress(runId, filters = readFilters()) {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== "")).toString();
  return `#/${runId === null ? "" : `runs/${encodeURIComponent(runId)}`}${query === "" ? "" : `?${query}`}`;
}

/** What the list is filtered by: `{status, agent, session, q}`, each empty when it is not. */
export function readFilters() {
  const { fields } = parse();
  return Object.fromEntries(FILTERS.map((name) => [name, fields.get(name) ?? ""]));
}

/** Put filters into the address bar; nothing is navigated. */
export function writeFilters(filters) {
  history.replaceState(null, "", runAddress(parse().runId, filters));
}

/** Read the address bar; take a token out of it. Returns the run it names, or null. */
export function readAddress() {
  const { runId, fields } = parse();
  const given = fields.get("token");
  if (given !== null) {
    keepToken(given.trim() || null);
    history.replaceState(null, "", runAddress(runId));
  }
  return runId;
}

function parse() {
  const fragment = location.hash.replace(/^#/, "");
  const path = /^\/runs\/([^/?&]+)/.exec(fragment);
  const fields = new URLSearchParams(path === null ? fragment.replace(/^\/?\??/, "") : fragment.slice(path[0].length + 1));
  return { runId: path === null ? fields.get("run") : decode(path[1]), fields };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
