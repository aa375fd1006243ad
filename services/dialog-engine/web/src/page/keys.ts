/** The API key, kept until the tab is closed. Requests that ask for it at the same time share one dialog. */

import { signal } from "@preact/signals";
import { ApiError, type KeySource } from "../core/api";
import { Question } from "./questions";

const STORED = "callstream.key";
const REJECTED = "The server did not accept this key.";

export class Keys implements KeySource {
  /** `problem` says why what was tried before did not do; `signIn` that people can sign in instead. */
  question = new Question<{ problem: string; signIn: boolean }>();
  held = signal(this.current() !== null);
  /** What was written into the dialog. */
  entered = "";
  /** Why the sign-in, or the last key, was refused; empty when it was not. */
  problem = "";
  /** Whether the person has closed the dialog: then nothing asks but what they do. */
  declined = false;
  #asking: Promise<boolean> | null = null;

  /** `check(key)` asks the engine once, and throws its refusal. */
  constructor(private readonly check: (key: string) => Promise<void>) {}

  current(): string | null {
    return sessionStorage.getItem(STORED);
  }

  rejected(key: string): void {
    if (this.current() !== key) return;
    this.forget();
    this.problem = REJECTED;
  }

  /** Resolves to true when the user entered a key that fits. To sign in, people leave the page, and come back to it. */
  ask(signIn: boolean): Promise<boolean> {
    this.#asking ??= this.#prompt(signIn).finally(() => (this.#asking = null));
    return this.#asking;
  }

  forget(): void {
    sessionStorage.removeItem(STORED);
    this.held.value = false;
  }

  /** A key is kept once it fits: one with a mistake is sent once, and stands before nothing. */
  async #prompt(signIn: boolean): Promise<boolean> {
    for (;;) {
      this.entered = "";
      const confirmed = await this.question.ask({ problem: this.problem, signIn });
      const key = this.entered.trim();
      this.entered = "";
      this.declined = !confirmed || !key;
      if (this.declined) return false;
      this.problem = await this.#problemOf(key);
      if (this.problem) continue;
      sessionStorage.setItem(STORED, key);
      this.held.value = true;
      return true;
    }
  }

  async #problemOf(key: string): Promise<string> {
    if (!/^[!-~]+$/.test(key)) return "A key has no spaces, and only letters, digits and signs of a plain keyboard.";
    try {
      await this.check(key);
      return "";
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return error.status === 401 ? REJECTED : `The key could not be tried: ${error.message}`;
    }
  }
}
