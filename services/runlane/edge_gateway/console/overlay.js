/**
 * What previews show until facts replace them. The overlay never touches the state: it is drawn over it.
 *
 * Each preview ends in one fate: *committed* (a fact carries its id), *superseded* (a newer preview of the same
 * item, or the item's own final fact), *abandoned* (said, or its run, item or lease ended without it). Text is
 * never joined across fragments that did not arrive: a gap stays visible as a gap.
 */

import { prettyJson } from "./json.js";
import { isOpen, isTerminal } from "./reducer.js";

const MAX_REMEMBERED = 2000;
const MAX_ENTRIES = 256;
const MAX_CHARS = 1024 * 1024;

/** One preview while it is shown. `parts` is text, and between texts that do not join, `{missing}`. */
class Entry {
  constructor(preview, key) {
    this.previewId = preview.preview_id;
    this.key = key;
    this.kind = preview.subject.kind;
    this.id = preview.subject.id;
    this.leaseEpoch = preview.lease_epoch ?? Infinity;
    this.lastSeq = 0;
    this.parts = [];
    this.value = undefined;
    this.chars = 0;
    this.lost = 0;
    this.incomplete = false;
    this.cut = false;
    this.fate = null;
    this.rebuilt = 0; // rises when `parts` changed other than by growing at its end
  }

  skip(missing) {
    if (missing <= 0) return;
    this.lost += missing;
    this.incomplete = true;
    const last = this.parts.at(-1);
    if (last?.missing !== undefined) {
      this.parts[this.parts.length - 1] = { missing: last.missing + missing };
      this.rebuilt += 1;
    } else this.parts.push({ missing });
  }

  append(text) {
    const last = this.parts.at(-1);
    if (last?.text !== undefined) last.text += text;
    else this.parts.push({ text });
    this.chars += text.length;
    if (this.chars > MAX_CHARS) this.#dropBeginning();
  }

  replace(data) {
    this.value = typeof data === "string" ? undefined : data;
    this.parts = typeof data === "string" ? [{ text: data }] : [];
    this.chars = typeof data === "string" ? data.length : 0;
    this.incomplete = false;
    this.cut = false;
    this.rebuilt += 1;
  }

  #dropBeginning() {
    const text = this.parts.map((part) => part.text ?? "").join("\n");
    this.parts = [{ text: text.slice(-MAX_CHARS / 2) }];
    this.chars = MAX_CHARS / 2;
    this.cut = true;
    this.incomplete = true;
    this.rebuilt += 1;
  }
}

export class Overlay {
  #entries = new Map(); // item key → the newest preview of that item
  #settled = new Set(); // preview ids that ended; late fragments of them are ignored
  #early = new Map(); // preview id → `preview_gap` that came before its first fragment

  constructor() {
    this.counts = { shown: 0, lost: 0, repeated: 0, late: 0, committed: 0, superseded: 0, abandoned: 0 };
  }

  /** The preview that lies over an item, if any. */
  get(key) {
    return this.#entries.get(key);
  }

  /** Keys of items that only previews know of so far, oldest first. */
  *provisional(state) {
    for (const key of this.#entries.keys()) if (!(key in state.items)) yield key;
  }

  /** Take one fragment; return the key of the item it lies over, or null when it changed nothing. */
  apply(preview, state) {
    const key = `${preview.subject.kind}:${preview.subject.id}`;
    const item = state.items[key];
    const isLate =
      this.#settled.has(preview.preview_id) ||
      (preview.lease_epoch ?? Infinity) < (state.run.lease_epoch ?? 0) ||
      (item !== undefined && !isOpen(item)) ||
      isTerminal(state);
    if (isLate) {
      this.counts.late += 1;
      return null;
    }
    if (preview.fate === "abandoned") return this.#abandonById(preview.preview_id, key);
    const entry = this.#entryFor(preview, key);
    return this.#extend(entry, preview) ? key : null;
  }

  /** Take a `preview_gap`: fragments that will not come. */
  gap(frame) {
    for (const entry of this.#entries.values()) {
      if (entry.previewId !== frame.preview_id || frame.to <= entry.lastSeq) continue;
      const missing = frame.dropped ?? frame.to - Math.max(entry.lastSeq, frame.from - 1);
      entry.skip(missing);
      entry.lastSeq = frame.to;
      this.counts.lost += missing;
      return entry.key;
    }
    if (this.#settled.has(frame.preview_id)) return null;
    this.counts.lost += frame.dropped ?? frame.to - frame.from + 1;
    bounded(this.#early.set(frame.preview_id, frame));
    return null;
  }

  /** Let a fact that was just applied end the previews it ends; return the keys of the items that look different. */
  settle(fact, key, state) {
    if (fact.type.startsWith("run.")) return this.#settleRun(state);
    const entry = key === null ? undefined : this.#entries.get(key);
    if (entry === undefined) {
      if (fact.payload?.preview_id !== undefined) this.#remember(fact.payload.preview_id);
      return [];
    }
    if (fact.payload?.preview_id === entry.previewId) this.#end(entry, "committed");
    else if (isOpen(state.items[key])) return [];
    else if (fact.type.endsWith(".completed")) this.#end(entry, "superseded");
    else this.#abandon(entry);
    return [key];
  }

  /** Forget everything shown: another state takes its place. */
  clear() {
    this.#entries.clear();
    this.#early.clear();
  }

  #settleRun(state) {
    const changed = [];
    for (const entry of this.#entries.values()) {
      const stale = isTerminal(state) || state.run.status === "lost" || entry.leaseEpoch < (state.run.lease_epoch ?? 0);
      if (!stale || entry.fate !== null) continue;
      this.#abandon(entry);
      changed.push(entry.key);
    }
    return changed;
  }

  #entryFor(preview, key) {
    const entry = this.#entries.get(key);
    if (entry?.previewId === preview.preview_id) return entry;
    if (entry !== undefined) this.#end(entry, "superseded");
    const next = new Entry(preview, key);
    this.#entries.set(key, next);
    if (this.#entries.size > MAX_ENTRIES) this.#end(this.#entries.values().next().value, "superseded");
    const early = this.#early.get(preview.preview_id);
    if (early !== undefined) {
      next.skip(early.dropped ?? early.to - early.from + 1);
      next.lastSeq = early.to;
      this.#early.delete(preview.preview_id);
    }
    return next;
  }

  #extend(entry, preview) {
    const first = preview.coalesced?.first_seq ?? preview.preview_seq;
    const last = preview.preview_seq;
    if (last <= entry.lastSeq) {
      this.counts.repeated += 1;
      return false;
    }
    const missing = Math.max(0, first - entry.lastSeq - 1);
    // What was said before we came is not seen, but not lost.
    if (entry.lastSeq > 0) this.counts.lost += missing;
    this.counts.shown += 1;
    // A merged fragment that starts inside what is shown cannot be cut to fit: it starts a part of its own.
    const overlaps = first <= entry.lastSeq;
    entry.lastSeq = last;
    if (preview.coalesced?.truncated) entry.incomplete = true;
    if (preview.operation === "replace" || preview.operation === "latest_value") {
      entry.lost += missing;
      entry.replace(preview.data);
      return true;
    }
    entry.skip(missing);
    if (overlaps) entry.replace("");
    if (overlaps) entry.incomplete = true;
    if (preview.operation === "patch") entry.replace(preview.data);
    else entry.append(asText(preview.data));
    // What a patch applies to may differ from what is shown: show it, claim nothing.
    if (preview.operation === "patch") entry.incomplete = true;
    return true;
  }

  #abandonById(previewId, key) {
    const entry = this.#entries.get(key);
    if (entry?.previewId === previewId) {
      this.#abandon(entry);
      return key;
    }
    this.#remember(previewId);
    return null;
  }

  #abandon(entry) {
    if (entry.fate !== null) return;
    entry.fate = "abandoned";
    this.counts.abandoned += 1;
    this.#remember(entry.previewId);
  }

  #end(entry, fate) {
    this.#entries.delete(entry.key);
    if (entry.fate === null) this.counts[fate] += 1;
    this.#remember(entry.previewId);
  }

  #remember(previewId) {
    bounded(this.#settled.add(previewId));
  }
}

function bounded(collection) {
  if (collection.size > MAX_REMEMBERED) collection.delete(collection.keys().next().value);
}

function asText(data) {
  return typeof data === "string" ? data : prettyJson(data ?? null);
}
