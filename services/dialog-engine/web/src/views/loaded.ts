/** The parts of the page that are loaded after its first picture, as one file. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

type Parts = typeof import("./later");

const parts = signal<Parts | null>(null);
/** Whether they could not be fetched. */
export const missing = signal(false);
let coming: Promise<Parts> | null = null;

/** The parts, which are asked for once; after a failure again. */
export function load(): Promise<Parts> {
  coming ??= import("./later").then(
    (loaded) => (parts.value = loaded),
    (error: unknown) => {
      coming = null;
      missing.value = true;
      throw error;
    },
  );
  return coming;
}

/** The parts that have come. They are asked for when they are needed, once more after a failure. */
export function useLater(needed: unknown): Partial<Parts> {
  useEffect(() => {
    if (needed) load().catch(() => {});
  }, [needed]);
  return parts.value ?? {};
}
