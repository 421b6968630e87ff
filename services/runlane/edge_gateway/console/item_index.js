/** Which items of a state matter for a question, kept up to date fact by fact, so that no question costs a scan. */

import { isOpen } from "./reducer.js";

const FAILED = new Set(["failed", "outcome_unknown", "expired", "revoked"]);

export class ItemIndex {
  open = new Set(); // keys of items that may still change by themselves
  failed = new Set(); // keys of items that went wrong, or about which nobody knows
  asked = new Set(); // keys of approvals and inputs
  tasks = new Set(); // keys of tasks
  retried = new Set(); // ids of tool calls that a later call took the place of

  constructor(state) {
    for (const key of Object.keys(state.items)) this.note(key, state.items[key]);
  }

  /** An item is now like this. */
  note(key, item) {
    put(this.open, key, isOpen(item));
    put(this.failed, key, isFailed(item));
    if (item.kind === "approval" || item.kind === "input") this.asked.add(key);
    if (item.kind === "task") this.tasks.add(key);
    if (item.kind === "tool" && item.retry_of) this.retried.add(item.retry_of);
  }
}

/** Whether something went wrong with an item, so that it may never be folded away. */
export function isFailed(item) {
  return FAILED.has(item.status) || (item.error !== undefined && item.error !== null);
}

function put(set, key, isIn) {
  if (isIn) set.add(key);
  else set.delete(key);
}
