/**
 * The timeline's rows: neighbours that are alike become one row with a count. What went wrong, is still open, was
 * retried or was decided by somebody is never folded away; each row names the facts it came from.
 */

import { isFailed } from "./item_index.js";
import { isOpen } from "./reducer.js";

const ALIKE_AT_LEAST = 3;

/** What an item is folded by, or null when it stands alone: calls of one tool, or facts of one type nobody knows. */
export function alikeAs(item) {
  if (isFailed(item) || isOpen(item) || item.attempt > 1 || item.retry_of || item.outcome !== undefined) return null;
  if (item.kind === "tool" && item.status === "completed") return `tool ${item.name ?? ""} ${item.turn_id ?? ""} ${item.parent_id ?? ""}`;
  if (item.type !== undefined) return `type ${item.type}`;
  return null;
}

/**
 * Rows of these entries (`{key, item?}`, by sequence). A group is `{key, type: "group", items, name, first, last}`;
 * one that `isOpened(key)` is followed by its members, `isNested`.
 */
export function rowsOf(entries, isOpened, isFolding = true) {
  const rows = [];
  for (let at = 0; at < entries.length; ) {
    const end = isFolding ? endOfAlike(entries, at) : at + 1;
    if (end - at < ALIKE_AT_LEAST) {
      for (; at < end; at += 1) rows.push(entries[at]);
      continue;
    }
    const members = entries.slice(at, end);
    const group = groupOf(members);
    rows.push(group);
    if (isOpened(group.key)) for (const one of members) rows.push({ ...one, isNested: true });
    at = end;
  }
  return rows;
}

function endOfAlike(entries, from) {
  const first = entries[from].item;
  const alike = first === undefined ? null : alikeAs(first);
  let end = from + 1;
  if (alike === null) return end;
  while (end < entries.length && entries[end].item !== undefined && alikeAs(entries[end].item) === alike) end += 1;
  return end;
}

function groupOf(members) {
  const items = members.map((one) => one.item);
  return {
    key: `group ${members[0].key}`,
    type: "group",
    sequence: members[0].sequence,
    items,
    name: items[0].name ?? items[0].type ?? items[0].kind,
    first: items[0].first_sequence,
    last: Math.max(...items.map((item) => item.last_sequence)),
  };
}
