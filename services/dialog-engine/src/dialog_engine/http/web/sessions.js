// @ts-check
/** The list of past conversations, newest first, as far as they were fetched. */

export class SessionList {
  /** @type {Session[]} */
  all = [];
  /** @type {string | null} */
  #next = null;
  #api;
  #onChange;

  /** @param {import("./api.js").Api} api @param {() => void} onChange */
  constructor(api, onChange) {
    this.#api = api;
    this.#onChange = onChange;
  }

  get hasMore() {
    return this.#next !== null;
  }

  /** @param {string | null} sessionId */
  titleOf(sessionId) {
    return this.all.find((session) => session.sessionId === sessionId)?.title ?? "";
  }

  /** @param {string | null} sessionId */
  runsIn(sessionId) {
    return this.all.some((session) => session.sessionId === sessionId && session.runningTurnId);
  }

  /** Fetches the newest page again. Older ones are dropped, so that no deleted conversation stays in the list. */
  async refresh() {
    const { sessions, nextCursor } = await this.#api.sessions();
    this.#set(sessions, nextCursor);
  }

  /** Adds the next page of older conversations. */
  async more() {
    const { sessions, nextCursor } = await this.#api.sessions(this.#next);
    const known = new Set(this.all.map(({ sessionId }) => sessionId));
    this.#set([...this.all, ...sessions.filter(({ sessionId }) => !known.has(sessionId))], nextCursor);
  }

  /** @param {Session[]} sessions @param {string | null} next */
  #set(sessions, next) {
    this.all = sessions;
    this.#next = next;
    this.#onChange();
  }
}
