/** Matches items that are received again with those on the screen: they keep their key, their place and their open state. */

import { ENDED } from "./calls";
import type { Item } from "./types";

/** `items`, where those that were among `before` have their old keys, and are the same objects when nothing changed. */
export function reconcile(before: Item[], items: Item[]): Item[] {
  const known = new Map(before.map((item) => [identity(item), item]));
  return items.map((item) => {
    const earlier = known.get(identity(item));
    return earlier === undefined || identity(item) === null ? item : merged(earlier, item);
  });
}

/** The identity of an item, wherever it comes from; null for kinds without one. */
function identity(item: Item): string | null {
  if (item.kind === "user" && item.turnId) return `user ${item.turnId}`;
  if (item.kind === "answer" && item.messageId) return `answer ${item.messageId}`;
  if (item.kind === "end" && item.turnId) return `end ${item.turnId}`;
  return item.kind === "tool" ? `tool ${item.callKey}` : null;
}

function merged(earlier: Item, item: Item): Item {
  const next: Item = { ...item, key: earlier.key };
  // A replayed `pending` step says less than what is shown of a running call, except what the call waits for.
  if (next.kind === "tool" && earlier.kind === "tool" && next.call.status === "pending" && !ENDED.has(earlier.call.status)) {
    const { approval, arguments: asked, waitsFor } = next.call;
    next.call = { ...earlier.call, waitsFor, ...(approval && { approval, arguments: asked }) };
  }
  return same(earlier, next) ? earlier : next;
}

const same = (left: Item, right: Item): boolean => JSON.stringify(sorted(left)) === JSON.stringify(sorted(right));
const sorted = (item: Item) => Object.entries(item).sort(([left], [right]) => (left < right ? -1 : 1));
