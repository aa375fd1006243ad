/** The list of past conversations, newest first, as far as they were fetched. */

import type { Api } from "./api";
import type { Session } from "./types";

export class SessionList {
  all: Session[] = [];
  #next: string | null = null;
  #api: Api;
  #onChange: () => void;

  constructor(api: Api, onChange: () => void) {
    this.#api = api;
    this.#onChange = onChange;
  }

  get hasMore(): boolean {
    return this.#next !== null;
  }

  titleOf(sessionId: string | null): string {
    return this.all.find((session) => session.sessionId === sessionId)?.title ?? "";
  }

  runsIn(sessionId: string | null): boolean {
    return this.all.some((session) => session.sessionId === sessionId && session.runningTurnId);
  }

  /** Fetches the newest page again. Older ones are dropped, so that no deleted conversation stays in the list. */
  async refresh(): Promise<void> {
    const { sessions, nextCursor } = await this.#api.sessions();
    this.#set(sessions, nextCursor);
  }

  /** Adds the next page of older conversations. */
  async more(): Promise<void> {
    const { sessions, nextCursor } = await this.#api.sessions(this.#next);
    const known = new Set(this.all.map(({ sessionId }) => sessionId));
    this.#set([...this.all, ...sessions.filter(({ sessionId }) => !known.has(sessionId))], nextCursor);
  }

  #set(sessions: Session[], next: string | null): void {
    this.all = sessions;
    this.#next = next;
    this.#onChange();
  }
}
