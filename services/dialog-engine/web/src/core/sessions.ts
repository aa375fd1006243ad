/** The list of past conversations, newest first, as far as they were fetched. */

import type { Api } from "./api";
import type { Session } from "./types";

/** How many conversations a page of the list has, and the most that one request brings. */
const PAGE = 50;
const MOST = 200;

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

  runsIn(sessionId: string | null): boolean {
    return this.all.some((session) => session.sessionId === sessionId && session.runningTurnId);
  }

  /** Fetches again what the list has, so that no deleted conversation stays in it; at most the newest 200. */
  async refresh(): Promise<void> {
    const limit = Math.min(MOST, Math.ceil(this.all.length / PAGE) * PAGE);
    const { sessions, nextCursor } = await this.#api.sessions(limit > PAGE ? { limit } : {});
    const last = sessions.at(-1)?.updatedAt ?? "";
    const kept = nextCursor && this.all.length > MOST ? this.all.filter(({ updatedAt }) => updatedAt < last) : [];
    this.#set([...sessions, ...kept], kept.length ? this.#next : nextCursor);
  }

  /** Puts a conversation that has changed to its place; one that is older than the pages here comes with them. */
  put(session: Session): void {
    const others = this.all.filter(({ sessionId }) => sessionId !== session.sessionId);
    const at = others.findIndex(({ updatedAt }) => updatedAt <= session.updatedAt);
    if (at < 0 && this.hasMore) return this.#set(others, this.#next);
    this.#set(others.toSpliced(at < 0 ? others.length : at, 0, session), this.#next);
  }

  remove(sessionId: string): void {
    this.#set(
      this.all.filter((session) => session.sessionId !== sessionId),
      this.#next,
    );
  }

  /** Adds the next page of older conversations. */
  async more(): Promise<void> {
    const { sessions, nextCursor } = await this.#api.sessions({ before: this.#next });
    const known = new Set(this.all.map(({ sessionId }) => sessionId));
    this.#set([...this.all, ...sessions.filter(({ sessionId }) => !known.has(sessionId))], nextCursor);
  }

  #set(sessions: Session[], next: string | null): void {
    this.all = sessions;
    this.#next = next;
    this.#onChange();
  }
}
