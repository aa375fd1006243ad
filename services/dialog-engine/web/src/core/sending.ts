/** The messages on their way to the engine, each under a name by which it is accepted once, however often it is sent. */

import type { Choice } from "./types";

export class Sending {
  /** Those of which the engine has not said yet that it has them. */
  unanswered = new Set<{ sessionId: string | null; text: string }>();
  /** The names of those of which it is not known whether the engine has them. */
  #names = new Map<string, string>();

  /** Sends a message under a name, which is the same for as long as `send` has not succeeded. */
  async named<T>(
    sessionId: string | null,
    text: string,
    choice: Choice,
    send: (named: { message: string; clientMessageId: string } & Choice) => Promise<T>,
  ): Promise<T> {
    const key = JSON.stringify([text, choice]);
    const name = this.#names.get(key) ?? newName();
    const unanswered = { sessionId, text };
    this.#names.set(key, name);
    this.unanswered.add(unanswered);
    try {
      const answer = await send({ message: text, clientMessageId: name, ...choice });
      this.#names.delete(key);
      return answer;
    } finally {
      this.unanswered.delete(unanswered);
    }
  }
}

/** A client's name of a message. */
export const newName = (): string => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
