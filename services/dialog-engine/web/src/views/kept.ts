/** What a view keeps while it is drawn again, and how it is drawn again as the time passes. */

import { useComputed } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { State } from "../core/types";
import type { Page } from "../page/page";

/** Nodes that are kept for as long as what they show is the same object: Preact passes over them without a look below. */
export function useKept<Thing extends { key: string }>(things: Thing[], draw: (thing: Thing) => VNode): VNode[] {
  const drawn = useRef(new Map<string, { thing: Thing; node: VNode }>());
  const next: typeof drawn.current = new Map();
  for (const thing of things) {
    const known = drawn.current.get(thing.key);
    next.set(thing.key, known?.thing === thing ? known : { thing, node: draw(thing) });
  }
  drawn.current = next;
  return [...next.values()].map(({ node }) => node);
}

/** A part of the state: the view is drawn again when that has changed, and not with every word of an answer. */
export const usePart = <Part>({ state }: Page, part: (state: State) => Part): Part =>
  useComputed(() => part(state.value)).value;

/** The time in Unix milliseconds, each `ms`. */
export function useNow(ms = 1_000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const clock = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(clock);
  }, []);
  return now;
}
