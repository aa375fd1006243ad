/** What the user can do with a conversation; answers of the engine become actions for the state. Touches no DOM. */

import { type Api, ApiError, isAbort } from "./api";
import { backOff, follow, pause, withRetries } from "./follow";
import type { Store } from "./state";
import type { Choice, TurnToFollow } from "./types";

const UNANSWERED: ReadonlySet<number> = new Set([0, 502, 504]); // no answer came back: the message may have been accepted

export interface Dependencies {
  api: Api;
  store: Store;
  onError: (error: unknown) => void;
  onSessions: () => void;
}

export class Chat {
  #api: Api;
  #store: Store;
  #onError: Dependencies["onError"];
  #onSessions: Dependencies["onSessions"];
  #scope = new AbortController();
  #queueing = new AbortController();

  /** `onError(error)` shows what failed; `onSessions()` is called when the list of conversations may have changed. */
  constructor({ api, store, onError, onSessions }: Dependencies) {
    this.#api = api;
    this.#store = store;
    this.#onError = onError;
    this.#onSessions = onSessions;
  }

  /** Leaves the conversation on the screen. A running turn continues in the engine. */
  clear(): void {
    this.#leave();
    this.#store.dispatch({ type: "cleared" });
  }

  /** Shows a stored conversation and follows its running turn. */
  async open(sessionId: string): Promise<void> {
    const signal = this.#leave();
    this.#store.dispatch({ type: "loading", sessionId });
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
    if (!signal.aborted && this.#store.state.phase === "loading") this.#store.dispatch({ type: "cleared" });
  }

  /** Follows the running turn of the conversation on the screen, which another tab may have started. */
  async join(): Promise<void> {
    const { phase, sessionId } = this.#store.state;
    if (phase !== "idle" || !sessionId) return;
    const signal = this.#leave();
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
  }

  /**
   * Sends a message with the model and tool mode chosen for it, and follows its answer to the end. While a turn runs
   * the message is queued. Calls `onRejected` when the message was not accepted.
   */
  async send(text: string, choice: Choice, onRejected: () => void): Promise<void> {
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
      const { sessionId } = this.#store.state;
      if (sessionId) await this.#watch(sessionId, turn, signal);
    });
  }

  /** Asks the engine to stop the running turn. The stream stays open: it says what really happened. */
  async stop(): Promise<void> {
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

  /** Loads the messages before those on the screen. */
  async loadOlder(): Promise<void> {
    const { sessionId, older } = this.#store.state;
    if (!sessionId || !older) return;
    try {
      const history = await this.#api.messages(sessionId, undefined, older);
      const { state } = this.#store;
      if (state.sessionId === sessionId && state.older === older) this.#store.dispatch({ type: "older", history });
    } catch (error) {
      this.#onError(error);
    }
  }

  /** Takes the queued message back, unless its turn has started. */
  takeBack(): void {
    this.#queueing.abort();
  }

  /** Deletes a conversation, and clears the screen if it is shown there. */
  async delete(sessionId: string): Promise<void> {
    try {
      await this.#api.deleteSession(sessionId);
      if (sessionId === this.#store.state.sessionId) this.clear();
    } catch (error) {
      this.#onError(error);
    }
    this.#onSessions();
  }

  #leave(): AbortSignal {
    this.#scope.abort();
    this.#scope = new AbortController();
    return this.#scope.signal;
  }

  /** Queues a message behind the running turn. It stays queued when the user opens another conversation. */
  async #queue(text: string, choice: Choice, onRejected: () => void): Promise<void> {
    const { sessionId } = this.#store.state;
    const here = () => this.#store.state.sessionId === sessionId;
    this.#queueing = new AbortController();
    this.#store.dispatch({ type: "queued", text });
    try {
      const response = await this.#api.chat(sessionId, text, choice, this.#queueing.signal, "queue");
      response.body?.cancel(); // more than this turn is new: the whole conversation is loaded
      if (!here()) return;
      this.#store.dispatch({ type: "accepted", turnId: response.headers.get("X-Turn-Id") ?? "" });
    } catch (error) {
      if (here()) {
        this.#store.dispatch({ type: "unqueued" });
        onRejected();
      }
      if (!isAbort(error)) this.#onError(error);
      return;
    }
    const signal = this.#leave();
    if (sessionId) await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
  }

  /** Runs `work` and shows its error, unless the user has left in the meantime. */
  async #attempt(signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      if (this.#store.state.phase === "running") this.#store.dispatch({ type: "detached" });
      this.#onError(error);
    }
  }

  /** Starts a turn. A new conversation is created first, so that its id is known even if the stream never opens. */
  async #begin(text: string, choice: Choice, signal: AbortSignal): Promise<TurnToFollow> {
    const { sessionId } = this.#store.state;
    if (!sessionId) {
      const made = await this.#api.createSession(signal);
      this.#store.dispatch({ type: "named", sessionId: made.sessionId });
    }
    const response = await this.#api.chat(this.#store.state.sessionId, text, choice, signal);
    return { turnId: response.headers.get("X-Turn-Id") ?? "", response };
  }

  /** After a failed start: throws the error, or returns null when the conversation has a turn to follow instead. */
  async #explain(
    error: unknown,
    { reject, queue }: { reject: () => void; queue: () => void },
    signal: AbortSignal,
  ): Promise<null> {
    if (signal.aborted) throw error;
    if (error instanceof ApiError && error.code === "TURN_RUNNING") {
      queue();
      return null;
    }
    if (error instanceof ApiError && UNANSWERED.has(error.status) && (await this.#arrived(signal))) return null;
    reject();
    throw error;
  }

  /** Whether the message reached the engine although no answer came back. */
  async #arrived(signal: AbortSignal): Promise<boolean> {
    const { sessionId, items } = this.#store.state;
    if (!sessionId) return false;
    const history = await this.#api.messages(sessionId, signal).catch(() => null);
    const newest = history?.messages.findLast(({ role }) => role === "user");
    return newest !== undefined && !items.some(({ kind, turnId }) => kind === "user" && turnId === newest.turnId);
  }

  /** Follows `turn`, or without one the turn that runs in the conversation, until none runs any more. */
  async #watch(sessionId: string, turn: TurnToFollow | null, signal: AbortSignal): Promise<void> {
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

  async #load(sessionId: string, signal: AbortSignal): Promise<TurnToFollow | null> {
    const history = await withRetries(() => this.#api.messages(sessionId, signal), signal);
    this.#store.dispatch({ type: "loaded", history });
    return history.runningTurnId ? { turnId: history.runningTurnId, response: null } : null;
  }
}
