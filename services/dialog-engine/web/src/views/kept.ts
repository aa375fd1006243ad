/** Nodes that are kept for as long as what they show is the same object: Preact passes over them without a look below. */

import type { VNode } from "preact";
import { useRef } from "preact/hooks";

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
