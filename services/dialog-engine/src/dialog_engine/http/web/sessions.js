// @ts-check
/** The list of past conversations, newest first, as far as they were fetched. */

const PAGE = 50; // as many as the server sends at once

export class SessionList {
  /** @type {Session[]} */
  all = [];
  hasMore = false;
  #api;
  #onChange;

  /** @param {import("./api.js").Api} api @param {() => void} onChange */
  constructor(api, onChange) {
    this.#api = api;
    this.#onChange = onChange;
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
    const { sessions } = await this.#api.sessions();
    this.#set(sessions, sessions);
  }

  /** Adds the next page of older conversations. */
  async more() {
    const { sessions } = await this.#api.sessions(this.all.at(-1)?.updatedAt);
    const known = new Set(this.all.map(({ sessionId }) => sessionId));
    this.#set([...this.all, ...sessions.filter(({ sessionId }) => !known.has(sessionId))], sessions);
  }

  /** @param {Session[]} sessions @param {Session[]} page */
  #set(sessions, page) {
    this.all = sessions;
    this.hasMore = page.length === PAGE;
    this.#onChange();
  }
}
