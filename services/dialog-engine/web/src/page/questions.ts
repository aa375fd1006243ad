/** The questions that the page asks in a dialog. A new one of a kind ends the one before. */

import { type Signal, signal } from "@preact/signals";
import type { MadeCall } from "../core/types";

/** What is asked before something is done. */
export type Doubt =
  /** Whether to delete a conversation, and to stop its running turn for that. */
  | { kind: "deletion"; title: string; runs: boolean }
  /** Whether to ask again, though these calls stay as they are. */
  | { kind: "leaving"; calls: MadeCall[]; more: boolean }
  /** Whether to let a question wait for the answer that is being written. */
  | { kind: "waiting" };

export class Question<Facts> {
  /** What is asked now; null while nothing is. */
  asked: Signal<Facts | null> = signal(null);
  #end: (confirmed: boolean) => void = () => {};

  /** Resolves to true when the dialog was confirmed, to false when it was closed. */
  ask(facts: Facts): Promise<boolean> {
    this.#end(false);
    return new Promise((resolve) => {
      this.#end = resolve;
      this.asked.value = facts;
    });
  }

  end(confirmed: boolean): void {
    this.asked.value = null;
    this.#end(confirmed);
  }
}
