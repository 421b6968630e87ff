/** Time as a slider: the record from the first fact to the newest. Off the right end is the past. */

import { attribute, h, setText, svg } from "./dom.js";
import { clock } from "./moments.js";

const SPEEDS = [1, 4, 16, 64];
const MAX_MARKS = 400;
const WIDTH = 1000;

export class Slider {
  #on;
  #max = 0;
  #at = null; // null: now
  #speed = 4;
  #isPlaying = false;
  #marksMark = "";
  #range = h("input", { type: "range", min: 1, max: 1, step: 1, value: 1, "aria-label": "Moment in the record" });
  #play = h("button.quiet", { type: "button", onClick: () => this.#on.play(!this.#isPlaying) }, "▶");
  #back = h("button.quiet", { type: "button", "aria-label": "One fact back", title: "One fact back ([)", onClick: () => this.step(-1) }, "‹");
  #forward = h("button.quiet", { type: "button", "aria-label": "One fact forward", title: "One fact forward (])", onClick: () => this.step(1) }, "›");
  #faster = h("button.quiet.speed", { type: "button", title: "How fast the record is played", onClick: () => this.#nextSpeed() });
  #place = h("span.place");
  #marks = svg("svg", { viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", "aria-hidden": "true", class: "slider-marks" });

  /** `on.move(sequence | null)`: look at that moment, or at now. `on.play(isPlaying)`. */
  constructor(on) {
    this.#on = on;
    this.#range.addEventListener("input", () => this.#moved(Number(this.#range.value)));
    this.element = h("div.slider", { role: "group", "aria-label": "Replay", hidden: true },
      this.#back, this.#play, this.#forward, this.#faster, h("div.track", {}, this.#marks, this.#range), this.#place);
    this.#nextSpeed(this.#speed);
    this.playing(false);
  }

  get speed() {
    return this.#speed;
  }

  /** Go by so many facts; over the end is now. */
  step(by) {
    if (this.#max < 1) return;
    this.#moved(Math.max(1, (this.#at ?? this.#max) + by));
  }

  playing(isPlaying) {
    this.#isPlaying = isPlaying;
    setText(this.#play, isPlaying ? "❚❚" : "▶");
    this.#play.setAttribute("aria-label", isPlaying ? "Stop playing" : "Play the record");
    this.#play.title = isPlaying ? "Stop (space)" : "Play the record";
  }

  /** The run is this long by now, and this moment of it is looked at (null: now). */
  draw(live, at, time) {
    this.#max = live.sequence;
    this.#at = at;
    this.element.hidden = live.sequence < 2;
    attribute(this.element, "data-past", at !== null);
    const shown = at ?? live.sequence;
    if (Number(this.#range.max) !== live.sequence) this.#range.max = String(live.sequence);
    if (Number(this.#range.value) !== shown) this.#range.value = String(shown);
    const text = at === null ? `now, fact ${live.sequence}` : `fact ${at} of ${live.sequence}${time ? `, ${clock(time)}` : ""}`;
    attribute(this.#range, "aria-valuetext", text);
    setText(this.#place, at === null ? "now" : `#${at.toLocaleString("en")} of ${live.sequence.toLocaleString("en")}`);
    attribute(this.#forward, "disabled", at === null);
    this.#drawMarks(live);
  }

  #moved(sequence) {
    this.#on.move(sequence >= this.#max ? null : sequence);
  }

  #nextSpeed(speed) {
    this.#speed = speed ?? SPEEDS[(SPEEDS.indexOf(this.#speed) + 1) % SPEEDS.length];
    setText(this.#faster, `${this.#speed}×`);
    this.#faster.setAttribute("aria-label", `Speed ${this.#speed} times. Change it`);
  }

  // Where it went wrong, and where somebody was asked.
  #drawMarks(live) {
    const { index, state } = live;
    const mark = `${index.failed.size}/${index.asked.size}/${state.marks.length}/${Math.floor(Math.log2(live.sequence + 1) * 8)}`;
    if (mark === this.#marksMark) return;
    this.#marksMark = mark;
    const failed = Array.from(index.failed, (key) => ["failed", state.items[key].last_sequence]);
    const asked = Array.from(index.asked, (key) => ["asked", state.items[key].first_sequence]);
    const all = [...asked.slice(-MAX_MARKS), ...failed.slice(-MAX_MARKS)];
    this.#marks.replaceChildren(...all.map(([kind, sequence]) =>
      svg("rect", { class: `mark-${kind}`, x: Math.round(((sequence - 1) / Math.max(1, live.sequence - 1)) * (WIDTH - 4)), y: 0, width: 3, height: 10 })));
  }
}
