// @ts-check
/** Matches items that are received again with those on the screen: they keep their key, their place and their open state. */

import { ENDED } from "./state.js";

/**
 * `items`, where those that were among `before` have their old keys, and are the same objects when nothing changed.
 * @param {Item[]} before
 * @param {Item[]} items
 */
export function reconcile(before, items) {
  const known = new Map(before.map((item) => [identity(item), item]));
  return items.map((item) => {
    const earlier = known.get(identity(item));
    return earlier === undefined || identity(item) === null ? item : merged(earlier, item);
  });
}

/**
 * The identity of an item, wherever it comes from; null for kinds without one.
 * @param {Item} item
 */
function identity({ kind, turnId, messageId, callKey }) {
  if (kind === "user" && turnId) return `user ${turnId}`;
  if (kind === "answer" && messageId) return `answer ${messageId}`;
  return kind === "tool" ? `tool ${callKey}` : null;
}

/** @param {Item} earlier @param {Item} item */
function merged(earlier, item) {
  const next = { ...item, key: earlier.key };
  // A replayed `pending` step says less than what is shown of a running call, except what the call waits for.
  if (item.kind === "tool" && item.call.status === "pending" && !ENDED.has(earlier.call.status)) {
    const { approval, arguments: asked, waitsFor } = item.call;
    next.call = { ...earlier.call, waitsFor, ...(approval && { approval, arguments: asked }) };
  }
  return same(earlier, next) ? earlier : next;
}

/** @param {Item} left @param {Item} right */
const same = (left, right) => JSON.stringify(sorted(left)) === JSON.stringify(sorted(right));
/** @param {Item} item */
const sorted = (item) => Object.entries(item).sort(([left], [right]) => (left < right ? -1 : 1));
