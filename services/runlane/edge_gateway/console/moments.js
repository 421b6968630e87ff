/** Times and durations as people say them. */

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

/** `14:03:59`, in the reader's time zone. */
export function clock(timestamp) {
  const at = Date.parse(timestamp ?? "");
  return Number.isNaN(at) ? "" : CLOCK.format(at);
}

/** The whole moment, for titles. */
export function fullMoment(timestamp) {
  const at = Date.parse(timestamp ?? "");
  return Number.isNaN(at) ? "" : `${FULL.format(at)} (${timestamp})`;
}

/** `4 s`, `12 min`, `3 h`, `5 d` since `timestamp`; less than a second is one. */
export function age(timestamp, now = Date.now()) {
  const at = Date.parse(timestamp ?? "");
  return Number.isNaN(at) ? "" : now - at < 9_950 ? `${Math.max(1, Math.round((now - at) / 1000))} s` : span(now - at);
}

/** A length of time, one unit. */
export function span(ms) {
  if (ms < 950) return `${Math.round(ms)} ms`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 119_500) return `${Math.round(ms / 1000)} s`;
  if (ms < 7_170_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

/** How long something took; empty where that is not told, or not worth telling. */
export function took(start, end) {
  const ms = Date.parse(end ?? "") - Date.parse(start ?? "");
  return Number.isNaN(ms) || ms < 20 ? "" : span(ms);
}

/** `0:04`, `12:31`, `3:02:11`: time that runs. */
export function stopwatch(start, now = Date.now()) {
  const at = Date.parse(start ?? "");
  if (Number.isNaN(at)) return "";
  if (now - at >= 86_400_000) return span(now - at);
  const seconds = Math.max(0, Math.floor((now - at) / 1000));
  const parts = [Math.floor(seconds / 60) % 60, seconds % 60].map((part) => String(part).padStart(2, "0"));
  return seconds < 3600 ? `${Number(parts[0])}:${parts[1]}` : `${Math.floor(seconds / 3600)}:${parts.join(":")}`;
}

/** How long between two timestamps; empty when one is missing. */
export function between(start, end) {
  const ms = Date.parse(end ?? "") - Date.parse(start ?? "");
  return Number.isNaN(ms) || ms < 0 ? "" : span(ms);
}
