/** What can be done with a conversation: the engine's answers become actions for the state. Touches no DOM. */

import { isAbort } from "./api.js";
import { backOff, follow, patiently, pause } from "./follow.js";

const UNHEARD = new Set([0, 502, 504]); // no answer, or a proxy says that it got none: it may have been accepted

export class Chat {
  #api;
  #store;
  #onError;
  #onSessions;
  #scope = new AbortController();
  #waiting = new AbortController();

  /**
   * `store` is `{state, dispatch(action)}`; `onError(error)` shows what could not be done; `onSessions()` says that the
   * list of conversations may have changed.
   */
  constructor({ api, store, onError, onSessions }) {
    this.#api = api;
    this.#store = store;
    this.#onError = onError;
    this.#onSessions = onSessions;
  }

  /** Leaves the conversation on the screen. A turn that runs in it goes on in the engine. */
  clear() {
    this.#leave();
    this.#store.dispatch({ type: "cleared" });
  }

  /** Shows a stored conversation and joins the turn that runs in it. */
  async open(sessionId) {
    const signal = this.#leave();
    this.#store.dispatch({ type: "loading", sessionId });
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
    if (!signal.aborted && this.#store.state.phase === "loading") this.#store.dispatch({ type: "cleared" });
  }

  /** Joins the turn that runs in the conversation on the screen, begun in another tab perhaps. */
  async join() {
    const { phase, sessionId } = this.#store.state;
    if (phase !== "idle" || !sessionId) return;
    const signal = this.#leave();
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
  }

  /**
   * Sends a message with what was picked for it and follows its answer to the end; while a turn runs the message
   * waits for it. Calls `onRejected` when the message was not accepted.
   */
  async send(text, choice, onRejected) {
    if (this.#store.state.phase === "running") return this.#queue(text, choice, onRejected);
    const signal = this.#leave();
    const reject = () => {
      this.#store.dispatch({ type: "rejected" });
      onRejected();
    };
    this.#store.dispatch({ type: "submitted", text });
    await this.#attempt(signal, async () => {
      const queue = () => {
        this.#store.dispatch({ type: "rejected" });
        this.#queue(text, choice, onRejected);
      };
      const turn = await this.#begin(text, choice, signal).catch((error) =>
        this.#explain(error, { reject, queue }, signal),
      );
      this.#onSessions();
      await this.#watch(this.#store.state.sessionId, turn, signal);
    });
  }

  /** Asks the engine to stop the running turn. The stream stays open: it tells what really happened. */
  async stop() {
    const { turn } = this.#store.state;
    if (!turn || turn.stopping) return;
    this.#store.dispatch({ type: "stopping", stopping: true });
    try {
      await this.#api.cancel(turn.turnId);
    } catch (error) {
      this.#store.dispatch({ type: "stopping", stopping: false });
      this.#onError(error);
    }
  }

  /** Takes the message that waits back, unless its turn has begun. */
  takeBack() {
    this.#waiting.abort();
  }

  /** Deletes a conversation; the screen is cleared if it was the one on it. */
  async delete(sessionId) {
    try {
      await this.#api.deleteSession(sessionId);
      if (sessionId === this.#store.state.sessionId) this.clear();
    } catch (error) {
      this.#onError(error);
    }
    this.#onSessions();
  }

  #leave() {
    this.#scope.abort();
    this.#scope = new AbortController();
    return this.#scope.signal;
  }

  /** Has a message wait for the turn that runs in the conversation. It goes on waiting when the user looks elsewhere. */
  async #queue(text, choice, onRejected) {
    const { sessionId } = this.#store.state;
    const here = () => this.#store.state.sessionId === sessionId;
    this.#waiting = new AbortController();
    this.#store.dispatch({ type: "queued", text });
    try {
      const response = await this.#api.chat(sessionId, text, choice, this.#waiting.signal, "queue");
      response.body?.cancel(); // the conversation has more that is new than this turn: it is loaded as a whole
      if (!here()) return;
      this.#store.dispatch({ type: "accepted", turnId: response.headers.get("X-Turn-Id") });
    } catch (error) {
      if (here()) {
        this.#store.dispatch({ type: "unqueued" });
        onRejected();
      }
      if (!isAbort(error)) this.#onError(error);
      return;
    }
    const signal = this.#leave();
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
  }

  /** Runs `work`; what goes wrong is shown, unless the user has left in the meantime. */
  async #attempt(signal, work) {
    try {
      await work();
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      if (this.#store.state.phase === "running") this.#store.dispatch({ type: "detached" });
      this.#onError(error);
    }
  }

  /** Starts a turn. The conversation is made first, so that its id is known even if the stream never opens. */
  async #begin(text, choice, signal) {
    const { sessionId } = this.#store.state;
    if (!sessionId) {
      const made = await this.#api.createSession(signal);
      this.#store.dispatch({ type: "named", sessionId: made.sessionId });
    }
    const response = await this.#api.chat(this.#store.state.sessionId, text, choice, signal);
    return { turnId: response.headers.get("X-Turn-Id"), response };
  }

  /** After a failed start: throws, or returns null when there is a turn in the conversation to follow instead. */
  async #explain(error, { reject, queue }, signal) {
    if (signal.aborted) throw error;
    if (error.code === "TURN_RUNNING") {
      queue();
      return null;
    }
    if (UNHEARD.has(error.status) && (await this.#arrived(signal))) return null;
    reject();
    throw error;
  }

  /** Whether the message reached the engine although no answer came back. */
  async #arrived(signal) {
    const { sessionId, items } = this.#store.state;
    if (!sessionId) return false;
    const { messages } = await this.#api.messages(sessionId, signal).catch(() => ({ messages: [] }));
    return messages.filter(({ role }) => role === "user").length >= items.filter(({ kind }) => kind === "user").length;
  }

  /** Follows `turn`, or without one whatever runs in the conversation, until nothing runs in it. */
  async #watch(sessionId, turn, signal) {
    for (let attempt = 0; ; attempt += 1) {
      turn ??= await this.#load(sessionId, signal);
      if (!turn) return;
      this.#store.dispatch({ type: "attached", turnId: turn.turnId });
      const end = await follow({
        ...turn,
        api: this.#api,
        signal,
        onEvent: (event) => this.#store.dispatch({ type: "event", event }),
        onConnection: (connection) => this.#store.dispatch({ type: "connection", connection }),
      });
      this.#onSessions();
      if (end === "done") return;
      turn = null;
      await pause(backOff(attempt), signal);
    }
  }

  async #load(sessionId, signal) {
    const history = await patiently(() => this.#api.messages(sessionId, signal), signal);
    this.#store.dispatch({ type: "loaded", history });
    return history.runningTurnId ? { turnId: history.runningTurnId, response: null } : null;
  }
}
