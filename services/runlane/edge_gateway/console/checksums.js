/**
 * The checksum of a state that keeps changing. The canonical text of each item is kept until the item changes, so in a
 * run of many thousand items one more fact costs about one item, not all of them.
 */

import { canonicalJson, sortedKeys } from "./json.js";
import { hashText } from "./reducer.js";

export class Checksums {
  #texts = new Map(); // item key → {item, at, text}

  /** `sha256:<hex>` of the state as it is now; the same as `checksum(state)` of the reducer. */
  of(state) {
    const { items } = state;
    const parts = sortedKeys(items).map((key) => `${JSON.stringify(key)}:${this.#textOf(key, items[key])}`);
    if (this.#texts.size > parts.length) this.#forgetAllBut(items);
    return hashText(
      `{"items":{${parts.join(",")}},"marks":${canonicalJson(state.marks)},"run":${canonicalJson(state.run)},"through_sequence":${state.through_sequence}}`,
    );
  }

  #textOf(key, item) {
    const kept = this.#texts.get(key);
    if (kept !== undefined && kept.item === item && kept.at === item.last_sequence) return kept.text;
    const text = canonicalJson(item);
    this.#texts.set(key, { item, at: item.last_sequence, text });
    return text;
  }

  #forgetAllBut(items) {
    for (const key of this.#texts.keys()) if (!(key in items)) this.#texts.delete(key);
  }
}
