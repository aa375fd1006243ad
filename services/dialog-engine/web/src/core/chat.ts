/** What the user can do with a conversation; answers of the engine become actions for the state. Touches no DOM. */

import { type Api, ApiError, isAbort } from "./api";
import { follow, withRetries } from "./follow";
import { backOff, pause } from "./pause";
import type { Places } from "./places";
import type { Store } from "./state";
import type { Choice, TurnToFollow } from "./types";

const HAS_BEGUN: ReadonlySet<string> = new Set(["TURN_STARTED", "TURN_NOT_FOUND"]); // as is seen soon

const UNANSWERED: ReadonlySet<number> = new Set([0, 502, 504]); // no answer came back: the message may have been accepted

/** Gives back a text that was not accepted, in the conversation (null: a new one) in which it was written. */
type OnRejected = (sessionId: string | null) => void;

export interface Dependencies {
  api: Api;
  store: Store;
  places: Pick<Places, "take">;
  onError: (error: unknown) => void;
  onSessions: () => void;
}

export class Chat {
  #api: Api;
  #store: Store;
  #places: Dependencies["places"];
  #onError: Dependencies["onError"];
  #onSessions: Dependencies["onSessions"];
  #scope = new AbortController();
  /** The messages that are being queued, of which the engine has not said yet that it has them. */
  unanswered = new Set<{ sessionId: string | null; text: string }>();
  /** The names of texts of which it is not known whether the engine has them: sent again, each is accepted once. */
  #names = new Map<string, string>();
  /** Whether a message that waited has begun, of which nothing is on the screen yet. */
  #begun = false;
  /** Whether the conversation that was opened last has come, or is still asked for. */
  loads = false;

  /** `onError(error)` shows what failed; `onSessions()` is called when the list of conversations may have changed. */
  constructor({ api, store, places, onError, onSessions }: Dependencies) {
    this.#api = api;
    this.#store = store;
    this.#places = places;
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
    this.loads = true;
    this.#store.dispatch({ type: "loading", sessionId });
    try {
      await this.#watch(sessionId, null, signal);
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      this.loads = false;
      this.#onError(error);
      const { phase } = this.#store.state;
      if (phase === "running") this.#store.dispatch({ type: "detached" });
      // Without a key or a sign-in it stays what is to be opened: it is, once there is one.
      else if (phase === "loading" && !needsKey(error)) this.#store.dispatch({ type: "cleared" });
    }
  }

  /** Follows the running turn of the conversation on the screen, which another tab may have started. */
  async join(): Promise<void> {
    const { phase, sessionId } = this.#store.state;
    if (phase !== "idle" || !sessionId) return;
    await this.#reload(sessionId);
  }

  /**
   * Sends a message with the model and tool mode chosen for it, and follows its answer to the end. While a turn runs
   * or other messages wait the message is queued. Calls `onRejected` when the message was not accepted.
   */
  async send(text: string, choice: Choice, onRejected: OnRejected): Promise<void> {
    const { phase, waiting } = this.#store.state;
    if (phase === "running" || waiting.length) return this.#queue(text, choice, onRejected);
    const signal = this.#leave();
    const sent = { from: this.#store.state.sessionId };
    const reject = () => {
      if (!signal.aborted) this.#store.dispatch({ type: "rejected" });
      onRejected(signal.aborted ? sent.from : this.#store.state.sessionId);
    };
    this.#store.dispatch({ type: "submitted", text, at: Date.now() });
    await this.#attempt(signal, async () => {
      const queue = () => {
        this.#store.dispatch({ type: "rejected" });
        this.#queue(text, choice, onRejected);
      };
      const turn = await this.#begin(text, choice, signal).catch((error) =>
        this.#explain(error, { reject, queue }, signal),
      );
      this.#onSessions();
      signal.throwIfAborted();
      const { sessionId } = this.#store.state;
      if (sessionId) await this.#watch(sessionId, turn, signal);
    });
  }

  /**
   * Answers another text in the place of a question, or (null) the same one once more: a branch, which is shown from then
   * on. False when it was not accepted.
   */
  async branch(turnId: string, text: string | null, choice: Choice): Promise<boolean> {
    const { sessionId } = this.#store.state;
    if (!sessionId) return false;
    const { signal } = new AbortController(); // it is sent also when another conversation is opened
    try {
      const { parentTurnId } = text === null ? {} : await this.#api.turn(turnId, signal);
      const asked = text === null ? { regenerateOf: turnId } : { message: text, parentTurnId };
      const body = { ...asked, ...choice, clientMessageId: newName() };
      await withRetries(() => this.#api.branch(sessionId, body), signal, this.#onError);
    } catch (error) {
      this.#onError(error);
      return false;
    }
    this.#reload(sessionId);
    return true;
  }

  /** Shows another version of a turn, here and in every other tab. */
  async show(turnId: string): Promise<void> {
    const { sessionId } = this.#store.state;
    if (!sessionId) return;
    try {
      await this.#api.moveLeaf(sessionId, turnId);
      await this.#reload(sessionId);
    } catch (error) {
      this.#onError(error);
    }
  }

  /** Shows the path of the conversation that ends with this turn by now, if it is not what is shown. */
  async turnTo(leafTurnId: string): Promise<void> {
    const { sessionId, phase, items } = this.#store.state;
    if (!sessionId || (phase !== "idle" && phase !== "running")) return;
    if (items.findLast(({ kind }) => kind === "user")?.turnId !== leafTurnId) await this.#reload(sessionId);
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

  /** Changes a message that waits, or sends or withdraws it: `change` asks the engine for it. */
  async change(change: () => Promise<unknown>): Promise<void> {
    try {
      await change();
    } catch (error) {
      if (!(error instanceof ApiError && HAS_BEGUN.has(error.code))) this.#onError(error);
    }
    await this.sync();
  }

  /** Shows what waits in the conversation now, and follows its running turn. */
  async sync(): Promise<void> {
    const { sessionId } = this.#store.state;
    if (!sessionId) return;
    try {
      const { waiting = [], runningTurnId } = await this.#api.newest(sessionId);
      if (this.#store.state.sessionId !== sessionId) return;
      const waits = new Set(waiting.map(({ turnId }) => turnId));
      this.#begun ||= this.#store.state.waiting.some(({ turnId }) => turnId && !waits.has(turnId));
      this.#store.dispatch({ type: "waiting", waiting });
      if (runningTurnId || this.#begun) await this.join();
    } catch (error) {
      this.#onError(error);
    }
  }

  /**
   * Deletes a conversation, and clears the screen if it is shown there. With `stop` its running turn is stopped first.
   * Returns "runs" when that would be needed, "done" or "failed".
   */
  async delete(sessionId: string, stop: boolean): Promise<"done" | "runs" | "failed"> {
    try {
      await this.#api.deleteSession(sessionId, stop);
      if (sessionId === this.#store.state.sessionId) this.clear();
      return "done";
    } catch (error) {
      if (!stop && error instanceof ApiError && error.code === "TURN_RUNNING") return "runs";
      this.#onError(error);
      return "failed";
    } finally {
      this.#onSessions();
    }
  }

  /** Shows the conversation as it is now, and follows its running turn. */
  async #reload(sessionId: string): Promise<void> {
    if (this.#store.state.sessionId !== sessionId) return;
    const signal = this.#leave();
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
  }

  #leave(): AbortSignal {
    this.#scope.abort();
    this.#scope = new AbortController();
    return this.#scope.signal;
  }

  /** Queues a message behind the running turn: the engine keeps it from then on, and every tab shows it. */
  async #queue(text: string, choice: Choice, onRejected: OnRejected): Promise<void> {
    const { sessionId } = this.#store.state;
    if (!sessionId) return onRejected(sessionId);
    const sent = { sessionId, text };
    const name = this.#nameOf(text);
    const { waiting } = this.#store.state;
    this.#store.dispatch({ type: "waiting", waiting: [...waiting, { turnId: null, message: text, held: null }] });
    const { signal } = new AbortController(); // it is sent also when another conversation is opened
    this.unanswered.add(sent);
    try {
      await withRetries(() => this.#api.queue(sessionId, text, choice, name), signal, this.#onError);
      this.#names.delete(text);
    } catch (error) {
      onRejected(sessionId);
      this.#onError(error);
    } finally {
      this.unanswered.delete(sent);
    }
    await this.sync();
  }

  #nameOf(text: string): string {
    const name = this.#names.get(text) ?? crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    this.#names.set(text, name);
    return name;
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

  /**
   * Starts a turn. A new conversation is created first, so that its id is known even if the stream never opens. What
   * has begun goes on when the user opens another conversation meanwhile.
   */
  async #begin(text: string, choice: Choice, signal: AbortSignal): Promise<TurnToFollow> {
    let { sessionId } = this.#store.state;
    if (!sessionId) {
      ({ sessionId } = await this.#api.createSession());
      if (!signal.aborted) this.#store.dispatch({ type: "named", sessionId });
    }
    const response = await this.#api.chat(sessionId, text, choice, this.#nameOf(text));
    this.#names.delete(text);
    if (signal.aborted) response.body?.cancel();
    return { turnId: response.headers.get("X-Turn-Id") ?? "", response };
  }

  /** After a failed start: throws the error, or returns null when the conversation has a turn to follow instead. */
  async #explain(
    error: unknown,
    { reject, queue }: { reject: () => void; queue: () => void },
    signal: AbortSignal,
  ): Promise<null> {
    if (signal.aborted) {
      reject(); // the user has opened another conversation, and finds the text where it was written
      throw error;
    }
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
        places: this.#places,
        signal,
        onEvent: (event) => this.#store.dispatch({ type: "event", event }),
        onConnection: (connection) => this.#store.dispatch({ type: "connection", connection }),
      });
      this.#onSessions();
      if (end === "done" && !this.#begun && !this.#store.state.waiting.length) return;
      turn = null;
      if (end !== "done") await pause(backOff(attempt), signal);
    }
  }

  async #load(sessionId: string, signal: AbortSignal): Promise<TurnToFollow | null> {
    this.#begun = false;
    const history = await withRetries(() => this.#api.messages(sessionId, signal), signal, this.#onError);
    this.#store.dispatch({ type: "loaded", history });
    const { runningTurnId, leafTurnId = runningTurnId } = history; // a turn of another path is not followed
    return runningTurnId && runningTurnId === leafTurnId ? { turnId: runningTurnId, response: null } : null;
  }
}

/** A client's name of a message: one that is sent again is accepted once. */
const newName = (): string => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
const needsKey = (error: unknown): boolean => error instanceof ApiError && error.status === 401;
