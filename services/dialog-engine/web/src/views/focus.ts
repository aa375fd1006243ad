/** The focus after a control that is gone. */

import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Returns what gives the focus to an element once it is drawn in place of the control that has it. */
export function useFocusAfter(element: RefObject<HTMLElement | null>): () => void {
  const wanted = useRef(false);
  useLayoutEffect(() => {
    if (wanted.current) element.current?.focus();
    wanted.current = false;
  });
  return () => (wanted.current = true);
}
