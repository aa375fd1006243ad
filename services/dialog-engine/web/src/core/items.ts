/**
 * Changes of the list of items, each of which leaves the other items as they are. Items that are received again are matched
 * with those on the screen: they keep their key, their place and their open state.
 */

import { ENDED } from "./calls";
import type { Item, NewItem, State } from "./types";

export const initial: Readonly<State> = Object.freeze({
  sessionId: null,
  title: "",
  phase: "idle",
  connection: "live",
  items: [],
  turn: null,
  tools: null,
  waiting: [],
  versions: {},
  began: {},
  older: null,
  created: 0,
});

/** Nothing on the screen. The counter continues, so that no two items ever share a key. */
export const blank = ({ created }: State): State => ({ ...initial, created });

/** Nothing more arrives for any item. */
export const close = (state: State): State => ({
  ...state,
  items: state.items.map((item) => ("open" in item && item.open ? { ...item, open: false } : item)),
});

export function add(state: State, item: NewItem, at = state.items.length): State {
  const created = state.created + 1;
  const turn = state.turn ? { turnId: state.turn.turnId } : {};
  const made = { key: `item-${created}`, ...turn, ...item } as Item;
  return { ...state, created, items: state.items.toSpliced(at, 0, made) };
}

export const replace = (state: State, at: number, changes: object): State => ({
  ...state,
  items: state.items.with(at, { ...state.items[at], ...changes } as Item),
});

/** The text of the answer among these items of a turn, in Markdown. */
export const answerOf = (items: Item[]): string =>
  items.flatMap((item) => (item.kind === "answer" ? [item.text] : [])).join("\n\n");

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
    const { approval, arguments: asked, waitsFor, questions } = next.call;
    next.call = { ...earlier.call, waitsFor, ...(approval && { approval, arguments: asked }), ...(questions && { questions }) };
  }
  return same(earlier, next) ? earlier : next;
}

const same = (left: Item, right: Item): boolean => JSON.stringify(sorted(left)) === JSON.stringify(sorted(right));
const sorted = (item: Item) => Object.entries(item).sort(([left], [right]) => (left < right ? -1 : 1));
