/** Looking at the past of a run: which moment, how it was then, and playing on from there. It changes nothing. */

const LONGEST_STEP_MS = 1200;
const SHORTEST_STEP_MS = 40;
const MOST_AT_ONCE = 50;
const BATCH_AHEAD = 200;

export class Replay {
  #record;
  #live;
  #on;
  #at = null;
  #asked = null; // the moment that is being read
  #abort = null;
  #timer = 0;
  #isPlaying = false;
  #times = new Map(); // sequence → when

  /** `on.shown(picture | null)` (null: now); `on.playing(isPlaying)`; `on.failed(error)`; `on.speed()`. */
  constructor(record, live, on) {
    this.#record = record;
    this.#live = live;
    this.#on = on;
  }

  get isPast() {
    return this.#asked !== null;
  }

  /** The moment that is looked at, or null for now. */
  get sequence() {
    return this.#asked;
  }

  close() {
    this.stop();
    this.#abort?.abort();
  }

  /** Look at a moment; null, or the newest fact, is now. While one is read, only the last one asked for counts. */
  async go(sequence) {
    if (sequence === null || sequence >= this.#live.sequence) return this.#toNow();
    this.#asked = Math.max(1, sequence);
    if (this.#abort !== null) return;
    this.#abort = new AbortController();
    try {
      while (this.#asked !== null && this.#asked !== this.#at) {
        const at = this.#asked;
        const picture = await this.#record.at(at, this.#live.sequence, this.#live, this.#abort.signal);
        if (this.#asked === null) return;
        this.#at = at;
        this.#on.shown(picture);
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        this.#toNow();
        this.#on.failed(error);
      }
    } finally {
      this.#abort = null;
    }
  }

  /** Play on from the moment that is looked at; from the first fact when that is now. */
  async play() {
    this.#isPlaying = true;
    this.#on.playing(true);
    if (this.#asked === null) await this.go(1);
    this.#next();
  }

  stop() {
    clearTimeout(this.#timer);
    if (!this.#isPlaying) return;
    this.#isPlaying = false;
    this.#on.playing(false);
  }

  async #next() {
    if (!this.#isPlaying || this.#asked === null) return this.stop();
    const from = this.#asked;
    try {
      await this.#learnTimes(from + 1);
    } catch (error) {
      this.stop();
      return this.#on.failed(error);
    }
    const ms = Math.min(LONGEST_STEP_MS, Math.max(SHORTEST_STEP_MS, this.#passed(from, from + 1) / this.#on.speed()));
    let next = from + 1;
    // What happened in one moment is shown in one.
    while (next - from < MOST_AT_ONCE && this.#times.has(next + 1) && this.#passed(from + 1, next + 1) < SHORTEST_STEP_MS * this.#on.speed()) next += 1;
    this.#timer = setTimeout(async () => {
      await this.go(next);
      this.#next();
    }, ms);
  }

  #passed(from, to) {
    return (this.#times.get(to) ?? 0) - (this.#times.get(from) ?? 0);
  }

  async #learnTimes(sequence) {
    if (this.#times.has(sequence) || sequence > this.#live.sequence) return;
    const last = Math.min(this.#live.sequence, sequence + BATCH_AHEAD);
    for (const fact of await this.#record.facts(Math.max(1, sequence - 1), last)) {
      this.#times.set(fact.sequence, Date.parse(fact.recorded_at ?? fact.occurred_at));
    }
  }

  #toNow() {
    this.stop();
    this.#asked = null;
    this.#at = null;
    this.#on.shown(null);
  }
}
