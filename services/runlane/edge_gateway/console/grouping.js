/**
 * The timeline's rows, by the rule of `runlane_contracts/timeline.py`: calls of one tool that stand alike are one row with
 * a count, as are stretches of reasoning and turns, folded across each other and nothing else. A failure is a row of its
 * own, and so is, other than there, what is still open: it is shown where it moves.
 */

import { isFailed } from "./item_index.js";
import { isOpen } from "./reducer.js";

const FOLDED = new Set(["tool", "reasoning", "turn"]);
const NAMES = ["name", "role", "agent", "worker_id", "title"];
const MAX_FOLDED = 500;

/** Whether an entry of the timeline stands alone, and ends what may be folded. */
function standsAlone({ item }) {
  return item === undefined || !FOLDED.has(item.kind) || isFailed(item) || item.outcome !== undefined;
}

/** What an item is called in a row. */
export function nameOf(item) {
  const name = NAMES.find((one) => typeof item[one] === "string" && item[one] !== "");
  return name === undefined ? "" : item[name].slice(0, 100);
}

/**
 * Rows of these entries (`{key, item?}`, by sequence). A group is `{key, type: "group", items, name, first, last}`;
 * one that `isOpened(key)` is followed by its members, `isNested`.
 */
export function rowsOf(entries, isOpened, isFolding = true) {
  if (!isFolding) return entries.slice();
  const rows = [];
  for (const members of groupsOf(entries)) {
    if (members.length === 1) rows.push(members[0]);
    else {
      const group = groupOf(members);
      rows.push(group);
      if (isOpened(group.key)) for (const one of members) rows.push({ ...one, isNested: true });
    }
  }
  return rows;
}

function groupsOf(entries) {
  const groups = [];
  const like = new Map();
  for (const entry of entries) {
    if (standsAlone(entry)) like.clear();
    const { item } = entry;
    const mark = standsAlone(entry) || isOpen(item) ? null : `${item.kind}\n${nameOf(item)}\n${item.status}`;
    const group = mark === null ? undefined : like.get(mark);
    if (group !== undefined && group.length < MAX_FOLDED) group.push(entry);
    else {
      groups.push([entry]);
      if (mark !== null) like.set(mark, groups.at(-1));
    }
  }
  return groups;
}

function groupOf(members) {
  const items = members.map((one) => one.item);
  return {
    key: `group ${members[0].key}`,
    type: "group",
    sequence: members[0].sequence,
    items,
    kind: items[0].kind,
    name: nameOf(items[0]) || items[0].kind,
    status: items[0].status,
    first: items[0].first_sequence,
    last: Math.max(...items.map((item) => item.last_sequence)),
  };
}
