/** The list of past conversations, newest first, as far as it was fetched. */

const PAGE = 50; // how many the server sends at once

export class SessionList {
  all = [];
  hasMore = false;
  #api;
  #onChange;

  constructor(api, onChange) {
    this.#api = api;
    this.#onChange = onChange;
  }

  titleOf(sessionId) {
    return this.all.find((session) => session.sessionId === sessionId)?.title ?? "";
  }

  runsIn(sessionId) {
    return this.all.some((session) => session.sessionId === sessionId && session.runningTurnId);
  }

  /** Fetches the newest again. What was fetched of older ones is dropped, so that a deleted one never stays. */
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

  #set(sessions, page) {
    this.all = sessions;
    this.hasMore = page.length === PAGE;
    this.#onChange();
  }
}
