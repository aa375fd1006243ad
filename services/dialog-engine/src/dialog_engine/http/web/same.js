/** What is told again is recognised: it keeps its key, and so its place on the screen and whether it was opened. */

import { ENDED } from "./state.js";

/** `items` where those that were among `before` have the keys from there, and are the same objects if nothing changed. */
export function recognised(before, items) {
  const known = new Map(before.map((item) => [identity(item), item]));
  return items.map((item) => {
    const earlier = known.get(identity(item));
    return earlier === undefined || identity(item) === null ? item : merged(earlier, item);
  });
}

/** What an item is, whoever tells of it; null for what has no name of its own. */
function identity({ kind, turnId, messageId, callKey }) {
  if (kind === "user" && turnId) return `user ${turnId}`;
  if (kind === "answer" && messageId) return `answer ${messageId}`;
  return kind === "tool" ? `tool ${callKey}` : null;
}

function merged(earlier, item) {
  const next = { ...item, key: earlier.key };
  // That a call is not answered yet is no news about one of which more is known, but for what it waited for.
  if (item.kind === "tool" && item.call.status === "pending" && !ENDED.has(earlier.call.status)) {
    const { approval, arguments: asked, waitsFor } = item.call;
    next.call = { ...earlier.call, waitsFor, ...(approval && { approval, arguments: asked }) };
  }
  return same(earlier, next) ? earlier : next;
}

const same = (left, right) => JSON.stringify(sorted(left)) === JSON.stringify(sorted(right));
const sorted = (item) => Object.entries(item).sort(([left], [right]) => (left < right ? -1 : 1));
