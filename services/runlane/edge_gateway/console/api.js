/** The HTTP side of the protocol: one place that knows paths, headers and problem documents. */

import { canonicalJson, parseJson } from "./json.js";

const READ_TIMEOUT_MS = 15_000;
const COMMAND_TIMEOUT_MS = 20_000;
const CONTENT_TIMEOUT_MS = 120_000;

/** The server said no, with a stable code. */
export class Problem extends Error {
  #retryable;

  constructor(status, document, retryAfterMs) {
    super(document.detail || document.title || `HTTP ${status}`);
    this.name = "Problem";
    this.status = status;
    this.code = document.code ?? `http_${status}`;
    this.recorded = document.recorded ?? null;
    this.retryAfterMs = retryAfterMs;
    this.#retryable = document.retryable;
  }

  /** Whether the very same request may succeed later. */
  get isPassing() {
    return typeof this.#retryable === "boolean" ? this.#retryable : this.status === 429 || this.status >= 500;
  }
}

/** No answer came: the request may or may not have been received. */
export class Unreachable extends Error {
  constructor(cause) {
    super("the server does not answer", { cause });
    this.name = "Unreachable";
  }
}

export class Api {
  constructor(token) {
    this.token = token;
  }

  runs({ status = "", agent = "", session = "", pageToken = "", limit = 50, signal } = {}) {
    return this.#get("/v1/runs", { status, agent, session_id: session, page_token: pageToken, limit }, signal);
  }

  run(runId, { signal } = {}) {
    return this.#get(`/v1/runs/${encodeURIComponent(runId)}`, {}, signal);
  }

  waitingApprovals({ signal } = {}) {
    return this.#get("/v1/approvals", { status: "waiting" }, signal);
  }

  events(runId, { cursor = "", types = "", limit = 100, signal } = {}) {
    return this.#get(`/v1/runs/${encodeURIComponent(runId)}/events`, { cursor, types, limit }, signal);
  }

  snapshot(runId, { atSequence, signal } = {}) {
    return this.#get(`/v1/runs/${encodeURIComponent(runId)}/snapshot`, { at_sequence: atSequence }, signal);
  }

  commandByKey(idempotencyKey, { signal } = {}) {
    return this.#get("/v1/commands", { idempotency_key: idempotencyKey }, signal);
  }

  /** Content that was too large for a fact: `{blob, type, shown, isPart}`. `first`: only so many bytes, if there are more. */
  async content(ref, { first = null, signal } = {}) {
    const path = ref.startsWith("/v1/content/") ? ref : `/v1/content/${encodeURIComponent(ref)}`;
    const timeout = AbortSignal.timeout(CONTENT_TIMEOUT_MS);
    const response = await this.#fetch(path, {
      headers: first === null ? {} : { Range: `bytes=0-${first - 1}` },
      signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
    });
    const whole = Number(/\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1] ?? 0);
    const blob = await response.blob();
    const type = response.headers.get("Content-Type") ?? "";
    return { blob, type, shown: response.headers.get("Runlane-Content") ?? "", isPart: response.status === 206 && blob.size < whole };
  }

  /** Ask for something; the answer is the outcome, or the ledger entry when it takes longer than the server waits. */
  async command(runId, type, payload, idempotencyKey) {
    const response = await this.#fetch(`/v1/runs/${encodeURIComponent(runId)}/commands`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": idempotencyKey, Prefer: "wait=5" },
      body: canonicalJson({ type, payload }),
      signal: AbortSignal.timeout(COMMAND_TIMEOUT_MS),
    });
    return { status: response.status, body: await readJson(response) };
  }

  /** Open a watch; the caller reads its body. Answers that are not a stream are returned or thrown as they are. */
  watch(runId, { cursor, isFromStart, signal }) {
    const query = new URLSearchParams({ previews: "true" });
    if (cursor === null) query.set("from", isFromStart ? "start" : "snapshot");
    const headers = { Accept: "text/event-stream" };
    if (cursor !== null) headers["Last-Event-ID"] = cursor;
    return this.#fetch(`/v1/runs/${encodeURIComponent(runId)}/watch?${query}`, { headers, signal });
  }

  async #get(path, fields, signal) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(fields)) {
      if (value !== "" && value !== undefined && value !== null) query.set(name, value);
    }
    const timeout = AbortSignal.timeout(READ_TIMEOUT_MS);
    const response = await this.#fetch(`${path}?${query}`, {
      signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
    });
    return readJson(response);
  }

  async #fetch(path, init) {
    const headers = { ...init.headers };
    if (this.token !== null) headers.Authorization = `Bearer ${this.token}`;
    let response;
    try {
      response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "same-origin", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unreachable(error);
    }
    if (response.ok) return response;
    throw new Problem(response.status, await problemDocument(response), retryAfterMs(response));
  }
}

/** A fresh idempotency key. `crypto.randomUUID` is there in secure contexts only. */
export function newKey() {
  if (crypto.randomUUID !== undefined) return crypto.randomUUID();
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function readJson(response) {
  try {
    return parseJson(await response.text());
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable(error);
  }
}

async function problemDocument(response) {
  try {
    const document = parseJson(await response.text());
    return document !== null && typeof document === "object" ? document : {};
  } catch {
    return {};
  }
}

function retryAfterMs(response) {
  const seconds = Number(response.headers.get("Retry-After") ?? Number.NaN);
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : null;
}
