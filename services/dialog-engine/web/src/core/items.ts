/** Changes of the list of items, each of which leaves the other items as they are. */

import type { Item, NewItem, State } from "./types";

export const initial: Readonly<State> = Object.freeze({
  sessionId: null,
  title: "",
  phase: "idle",
  connection: "live",
  items: [],
  turn: null,
  waiting: [],
  versions: {},
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
