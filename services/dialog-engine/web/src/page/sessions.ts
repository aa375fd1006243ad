/** The list of past conversations, newest first, as far as they were fetched. */

import { signal } from "@preact/signals";
import type { Api } from "../core/api";
import type { Session } from "../core/types";

/** How many conversations a page of the list has, and the most that one request brings. */
const [PAGE, MOST] = [50, 200];

export class SessionList {
  all = signal<Session[]>([]);
  /** The cursor of the page after those that are here; null when there is none. */
  next = signal<string | null>(null);

  constructor(private readonly api: Api) {}

  find(sessionId: string | null): Session | undefined {
    return this.all.value.find((session) => session.sessionId === sessionId);
  }

  /** Fetches again what the list has, so that no deleted conversation stays in it; at most the newest 200. */
  async refresh(): Promise<void> {
    const before = this.all.peek();
    const limit = Math.min(MOST, Math.ceil(before.length / PAGE) * PAGE);
    const { sessions, nextCursor } = await this.api.sessions(limit > PAGE ? { limit } : {});
    const last = sessions.at(-1)?.updatedAt ?? "";
    const kept = nextCursor && before.length > MOST ? before.filter(({ updatedAt }) => updatedAt < last) : [];
    this.all.value = [...sessions, ...kept];
    if (!kept.length) this.next.value = nextCursor;
  }

  /** Puts a conversation that has changed to its place; one that is older than the pages here comes with them. */
  put(session: Session): void {
    this.remove(session.sessionId);
    const at = this.all.value.findIndex(({ updatedAt }) => updatedAt <= session.updatedAt);
    if (at < 0 && this.next.value) return;
    this.all.value = this.all.value.toSpliced(at < 0 ? this.all.value.length : at, 0, session);
  }

  remove(sessionId: string): void {
    this.all.value = this.all.value.filter((session) => session.sessionId !== sessionId);
  }

  /** Adds the next page of older conversations. */
  async more(): Promise<void> {
    const { sessions, nextCursor } = await this.api.sessions({ before: this.next.value });
    this.all.value = [...this.all.value, ...sessions.filter(({ sessionId }) => !this.find(sessionId))];
    this.next.value = nextCursor;
  }
}
