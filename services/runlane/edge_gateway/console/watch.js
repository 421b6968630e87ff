/**
 * Watching one run for as long as somebody looks: connect, apply, and after any break go on from the last fact
 * that was applied. The model never shows a gap: a fact that does not follow is not applied, the watch starts again
 * from the last good cursor.
 *
 * `fetch` instead of `EventSource`, so that the token travels in a header, refusals can be read, and a connection
 * that fell silent is noticed.
 */

import { Problem } from "./api.js";
import { parseJson } from "./json.js";
import { REDUCER_VERSION, SequenceGap } from "./reducer.js";
import { NotUnderstood } from "./run_model.js";
import { FrameTooLarge, SseParser } from "./sse.js";

const CONNECT_TIMEOUT_MS = 15_000;
const HEARTBEATS_MISSED = 2.5; // of 12 s: 30 s of silence
const MIN_SILENCE_MS = 1000;
const BACKOFF_FIRST_MS = 400;
const BACKOFF_MAX_MS = 15_000;
const GAPS_BEFORE_SNAPSHOT = 3;
const WORK_SLICE_MS = 12;

/** Why one connection ended, and what follows: `retry`, after at least `afterMs`; `ended`; or `refused`. */
const retry = (cause, afterMs = null) => ({ next: "retry", cause, afterMs });
const ended = (cause) => ({ next: "ended", cause });
const refused = (code, cause) => ({ next: "refused", code, cause });

export class Watch {
  #api;
  #model;
  #on;
  #stop = new AbortController();
  #connection = null;
  #isResting = false;
  #wake = null;
  #attempt = 0;
  #gaps = 0;
  #connected = 0; // how often a stream was opened
  #isFromStart = false; // the server has no state to give, only facts
  #isLive = false; // caught up: what comes now has just happened
  #catchUp = null; // {from, sequence}: where this connection resumed, to say so when it is caught up

  /**
   * `on.connection({phase, …})`, `on.changed(keys | null)` (null: everything), `on.notice({kind, text})`,
   * `on.arrived(fact)` for each fact that came as it happened.
   */
  constructor(api, model, on) {
    this.#api = api;
    this.#model = model;
    this.#on = on;
  }

  /** Watch until the run is over, the server refuses, or `close` is called. */
  async run() {
    while (!this.#stop.signal.aborted) {
      if (this.#isResting) {
        this.#on.connection({ phase: "resting" });
        await this.#sleep(null);
        continue;
      }
      this.#on.connection({ phase: this.#connected === 0 ? "connecting" : "resuming" });
      const outcome = await this.#connectOnce();
      if (this.#stop.signal.aborted) return;
      if (outcome.next !== "retry") {
        this.#on.connection({ phase: outcome.next, code: outcome.code, cause: outcome.cause });
        return;
      }
      if (!this.#isResting) await this.#pause(outcome);
    }
  }

  /** Stop looking. Changes nothing about the run. */
  close() {
    this.#stop.abort();
    this.#wake?.();
  }

  /** Do not wait any longer: neither for the back-off to pass nor for the end of a rest. */
  retryNow() {
    this.#isResting = false;
    this.#wake?.();
  }

  /**
   * Give the connection back until `retryNow`: nobody looks. Coming back costs nothing, as the rest is exactly what
   * follows the last applied fact, and a browser has few connections to share among all tabs of one server.
   */
  rest() {
    this.#isResting = true;
    this.#connection?.abort();
    this.#wake?.();
  }

  async #pause(outcome) {
    const backoff = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** this.#attempt) * (0.5 + Math.random() / 2);
    // What the server asks for is spread too, or all who were sent away come back in one moment.
    const asked = outcome.afterMs === null ? 0 : outcome.afterMs * (1 + Math.random() * 0.25);
    const ms = Math.max(asked, this.#attempt === 0 && outcome.afterMs !== null ? 0 : backoff);
    this.#attempt += 1;
    this.#on.connection({ phase: "reconnecting", retryAt: Date.now() + ms, cause: outcome.cause });
    await this.#sleep(ms);
  }

  // Until the time has passed (null: for ever), or someone wakes us.
  async #sleep(ms) {
    await new Promise((resolve) => {
      const timer = ms === null ? 0 : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = null;
  }

  async #connectOnce() {
    const connection = (this.#connection = new AbortController());
    const abort = () => connection.abort();
    this.#stop.signal.addEventListener("abort", abort);
    const silence = new Silence(abort);
    try {
      silence.expect(CONNECT_TIMEOUT_MS);
      const response = await this.#api.watch(this.#model.runId, { cursor: this.#model.cursor, isFromStart: this.#isFromStart, signal: connection.signal });
      if (response.status === 204) return ended("run_terminal");
      if (!isStream(response)) return retry("the answer is not a stream of events");
      return await this.#read(response.body.getReader(), silence);
    } catch (error) {
      return this.#judge(error, silence);
    } finally {
      silence.end();
      connection.abort();
      this.#stop.signal.removeEventListener("abort", abort);
    }
  }

  #judge(error, silence) {
    if (error instanceof SequenceGap) return this.#afterGap(error);
    if (error instanceof NotUnderstood) return refused("not_understood", error.message);
    if (error instanceof Problem) return this.#afterProblem(error);
    if (silence.happened) return retry("no heartbeat: the connection fell silent");
    if (error instanceof FrameTooLarge) return refused("unreadable", error.message);
    return retry(error.name === "Unreachable" ? error.message : "the connection broke");
  }

  #afterGap(error) {
    this.#gaps += 1;
    this.#on.notice({
      kind: "gap",
      text: `#${error.expected} is missing before #${error.got}; reading again from #${this.#model.sequence}`,
    });
    // The server keeps skipping: what it holds does not continue ours. Ask for the whole state.
    if (this.#gaps >= GAPS_BEFORE_SNAPSHOT) this.#model.cursor = null;
    return retry(`a fact is missing after #${this.#model.sequence}`);
  }

  #afterProblem(problem) {
    if (problem.isPassing) return retry(`${problem.code}: ${problem.message}`, problem.retryAfterMs);
    const cursorIsBad = problem.status === 422 || problem.status === 410;
    if (cursorIsBad && this.#model.cursor !== null) {
      this.#model.cursor = null;
      this.#on.notice({ kind: "reset", text: `the cursor was refused (${problem.code}); taking a snapshot` });
      return retry(problem.code, 0);
    }
    if (problem.code === "view_quarantined" && !this.#isFromStart) {
      this.#isFromStart = true;
      this.#on.notice({ kind: "gap", text: `the server's own view of this run is quarantined (${problem.message}); reading the facts from the first on` });
      return retry(problem.code, 0);
    }
    return refused(problem.code, problem.message);
  }

  async #read(reader, silence) {
    const decoder = new TextDecoder();
    const parser = new SseParser();
    silence.expect(CONNECT_TIMEOUT_MS);
    let sliceEnds = performance.now() + WORK_SLICE_MS;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return retry("the connection was cut");
      silence.heard();
      for (const frame of parser.push(decoder.decode(value, { stream: true }))) {
        if (frame.comment !== undefined) continue;
        const outcome = await this.#take(frame, silence);
        if (outcome !== null) return outcome;
        if (performance.now() > sliceEnds) {
          await new Promise((resolve) => setTimeout(resolve));
          silence.heard();
          sliceEnds = performance.now() + WORK_SLICE_MS;
        }
      }
    }
  }

  async #take(frame, silence) {
    const data = parseJson(frame.data);
    switch (frame.event) {
      case "hello":
        this.#greet(data, silence);
        return null;
      case "snapshot":
        await this.#restore(data, frame.id);
        return null;
      case "fact":
        this.#apply(data, frame.id);
        return null;
      case "synced":
        this.#synced();
        return null;
      case "preview":
        this.#changed(this.#model.overlay.apply(data, this.#model.state));
        return null;
      case "preview_gap":
        this.#changed(this.#model.overlay.gap(data));
        return null;
      case "end":
        return this.#end(data);
      default:
        return null; // a newer server says more; what matters has a name we know
    }
  }

  #greet(hello, silence) {
    silence.expect(Math.max(MIN_SILENCE_MS, (hello.heartbeat_s || 12) * 1000 * HEARTBEATS_MISSED));
    if (hello.reducer_version > REDUCER_VERSION) throw new NotUnderstood(`Reducer version ${hello.reducer_version}`);
    const { sequence } = this.#model;
    this.#connected += 1;
    this.#isLive = false;
    this.#catchUp = null;
    if (hello.outcome === "reset_required") {
      this.#on.notice({ kind: "reset", text: `reset (${hello.reason ?? "no reason given"}): taking a snapshot` });
    } else if (hello.outcome !== "snapshot" && sequence > 0 && hello.baseline.sequence === sequence) {
      this.#catchUp = { from: sequence, to: hello.high_water.sequence };
    }
    this.#on.connection({ phase: "catching_up", highWater: hello.high_water.sequence });
  }

  async #restore(frame, cursor) {
    const isFirst = this.#model.isEmpty;
    const agreed = await this.#model.restore(frame, cursor ?? frame.cursor ?? null);
    if (!isFirst) this.#on.notice({ kind: "reset", text: `reset: snapshot taken at #${this.#model.sequence}` });
    if (agreed === false) {
      this.#on.notice({ kind: "gap", text: `the snapshot's checksum does not match its state at #${this.#model.sequence}` });
    }
    this.#on.changed(null);
  }

  #apply(fact, cursor) {
    const keys = this.#model.apply(fact, cursor);
    if (this.#isLive) this.#on.arrived(fact);
    if (this.#catchUp !== null && this.#model.sequence >= this.#catchUp.to) this.#announceResumed();
    this.#on.changed(keys);
  }

  #changed(key) {
    if (key !== null) this.#on.changed([key]);
  }

  #synced() {
    this.#attempt = 0;
    this.#gaps = 0;
    this.#isLive = true;
    this.#announceResumed();
    this.#on.connection({ phase: "live" });
  }

  #announceResumed() {
    if (this.#catchUp === null) return;
    const { from } = this.#catchUp;
    const caughtUp = this.#model.sequence - from;
    this.#catchUp = null;
    const rest = caughtUp > 0 ? `; caught up to #${this.#model.sequence}` : "; nothing was missed";
    this.#on.notice({ kind: "resumed", text: `resumed without a gap at #${from}${rest}` });
  }

  #end(data) {
    switch (data.reason) {
      case "run_terminal":
        this.#announceResumed();
        return ended("run_terminal");
      case "unauthorized":
        return refused("unauthenticated", "the token is no longer accepted");
      default:
        return retry(`the server closed the stream: ${data.reason}`, data.retry_after_ms ?? 0);
    }
  }
}

function isStream(response) {
  return response.body !== null && (response.headers.get("Content-Type") ?? "").startsWith("text/event-stream");
}

/** Notices that nothing is heard any more, not even a heartbeat. */
class Silence {
  #onSilence;
  #ms = 0;
  #timer = 0;
  happened = false;

  constructor(onSilence) {
    this.#onSilence = onSilence;
  }

  expect(ms) {
    this.#ms = ms;
    this.heard();
  }

  heard() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.happened = true;
      this.#onSilence();
    }, this.#ms);
  }

  end() {
    clearTimeout(this.#timer);
  }
}
