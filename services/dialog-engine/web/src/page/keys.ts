/** The API key, kept until the tab is closed. Requests that ask for it at the same time share one dialog. */

import { signal } from "@preact/signals";
import type { KeySource } from "../core/api";
import { Question } from "./questions";

const STORED = "callstream.key";

export class Keys implements KeySource {
  question = new Question<{ rejected: boolean; signIn: boolean }>();
  held = signal(this.current() !== null);
  /** What was written into the dialog. */
  entered = "";
  #asking: Promise<boolean> | null = null;

  current(): string | null {
    return sessionStorage.getItem(STORED);
  }

  /**
   * Resolves to true when the user entered a key. `rejected` says that the current one was not accepted, `signIn` that
   * people can sign in instead: then they leave the page, and come back to it.
   */
  ask(rejected: boolean, signIn: boolean): Promise<boolean> {
    this.#asking ??= this.#prompt(rejected, signIn).finally(() => (this.#asking = null));
    return this.#asking;
  }

  forget(): void {
    sessionStorage.removeItem(STORED);
    this.held.value = false;
  }

  async #prompt(rejected: boolean, signIn: boolean): Promise<boolean> {
    this.entered = "";
    const confirmed = await this.question.ask({ rejected, signIn });
    const key = this.entered.trim();
    this.entered = "";
    if (!confirmed || !key) return false;
    sessionStorage.setItem(STORED, key);
    this.held.value = true;
    return true;
  }
}
