/** What the user can do with a conversation; answers of the engine become actions for the state. Touches no DOM. */

import { type Api, ApiError, isAbort } from "./api";
import { backOff, follow, pause, withRetries } from "./follow";
import type { Places } from "./places";
import { newName, Sending } from "./sending";
import type { Store } from "./state";
import type { Choice, Session, ToolChoice, TurnToFollow } from "./types";

const HAS_BEGUN: ReadonlySet<string> = new Set(["TURN_STARTED", "TURN_NOT_FOUND"]); // as is seen soon
const UNANSWERED: ReadonlySet<number> = new Set([0, 502, 504]); // no answer came back: the message may have been accepted

/** Gives back a text that was not accepted, in the conversation (null: a new one) in which it was written. */
type OnRejected = (sessionId: string | null) => void;

/** What became of something that may need the running turn to end: "runs" when it does. */
export type End = "done" | "runs" | "failed";

export class Chat {
  #scope = new AbortController();
  sending = new Sending();
  /** Whether a message that waited has begun, of which nothing is on the screen yet. */
  #begun = false;
  /** How many choices of tools have no answer yet: what is reported of a conversation meanwhile is older than they are. */
  #choosing = 0;
  /** Whether the conversation that was opened last has come, or is still asked for. */
  loads = false;

  /** `onError(error)` shows what failed; `onSessions()` is called when the list of conversations may have changed. */
  constructor(
    private readonly api: Api,
    private readonly store: Store,
    private readonly places: Pick<Places, "take">,
    private readonly onError: (error: unknown) => void,
    private readonly onSessions: () => void,
  ) {}

  /** Leaves the conversation on the screen. A running turn continues in the engine. */
  clear(): void {
    this.#leave();
    this.store.dispatch({ type: "cleared" });
  }

  /** Shows a stored conversation and follows its running turn. */
  async open(sessionId: string): Promise<void> {
    const signal = this.#leave();
    this.loads = true;
    this.store.dispatch({ type: "loading", sessionId });
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal), (error) => {
      this.loads = false;
      // Without a key or a sign-in it stays what is to be opened: it is, once there is one.
      const needsKey = error instanceof ApiError && error.status === 401;
      if (this.store.state.phase === "loading" && !needsKey) this.store.dispatch({ type: "cleared" });
    });
  }

  /** Follows this turn of the conversation on the screen, which another tab may have started, unless its end is seen. */
  async join(turnId?: string | null): Promise<void> {
    const { phase, sessionId, items } = this.store.state;
    const ended = items.some((item) => item.kind === "end" && item.turnId === turnId);
    if (phase === "idle" && sessionId && !ended) await this.#reload(sessionId);
  }

  /**
   * Sends a message with the model and tool mode chosen for it, and follows its answer to the end. While a turn runs
   * or other messages wait the message is queued; with `decline` what that turn asks its person is refused, and the
   * message takes its place. Calls `onRejected` when the message was not accepted.
   */
  async send(text: string, choice: Choice, onRejected: OnRejected, decline = false): Promise<void> {
    const { phase, waiting, sessionId } = this.store.state;
    if (phase === "running" || waiting.length) return this.#queue(text, choice, onRejected, decline);
    const signal = this.#leave();
    this.store.dispatch({ type: "submitted", text, at: Date.now() });
    await this.#attempt(signal, async () => {
      const turn = await this.#begin(sessionId, text, choice, signal).catch((error) => {
        if (!signal.aborted) this.store.dispatch({ type: "rejected" });
        if (signal.aborted || !isRunning(error)) {
          onRejected(sessionId); // the text stays where it was written, also when another conversation was opened
          throw error;
        }
        this.#queue(text, choice, onRejected);
        return null;
      });
      this.onSessions();
      signal.throwIfAborted();
      const named = this.store.state.sessionId;
      if (named) await this.#watch(named, turn, signal);
    });
  }

  /**
   * Answers another text in the place of a question, or (null) the same one once more: a branch, which is shown from then
   * on. With `queue` it waits for the turn that runs; otherwise that is a reason to refuse.
   */
  async branch(turnId: string, text: string | null, choice: Choice, queue: boolean): Promise<End> {
    const { sessionId } = this.store.state;
    if (!sessionId) return "failed";
    const { signal } = new AbortController(); // it is sent also when another conversation is opened
    const end = await this.#endOf(queue, async () => {
      const { parentTurnId } = text === null ? {} : await this.api.turn(turnId);
      const asked = text === null ? { regenerateOf: turnId } : { message: text, parentTurnId };
      const body = { ...asked, ...choice, ...(queue && { onBusy: "queue" }), clientMessageId: newName() };
      await withRetries(() => this.api.begin(sessionId, body), signal, this.onError);
    });
    if (end === "done" && queue) this.sync();
    else if (end === "done") this.#reload(sessionId);
    return end;
  }

  /** Chooses the tools of the conversation on the screen; a new one has them from its first message on. */
  async chooseTools(tools: ToolChoice | null): Promise<void> {
    const { sessionId, tools: before } = this.store.state;
    this.store.dispatch({ type: "tools", tools });
    this.#choosing += 1;
    const chosen = !sessionId || (await this.#try(() => this.api.chooseTools(sessionId, tools)));
    this.#choosing -= 1;
    if (!chosen && this.store.state.sessionId === sessionId) this.store.dispatch({ type: "tools", tools: before });
  }

  /** Shows another version of a turn, here and in every other tab. */
  async show(turnId: string): Promise<void> {
    const { sessionId } = this.store.state;
    if (!sessionId) return;
    await this.#try(async () => {
      await this.api.moveLeaf(sessionId, turnId);
      await this.#reload(sessionId);
    });
  }

  /** The conversation on the screen has changed: here, in another tab, on another device or at another engine. */
  changed({ waiting, leafTurnId, runningTurnId, tools = null }: Session): void {
    const { sessionId, phase, connection, turn, items, waiting: before } = this.store.state;
    if (!sessionId) return;
    const shown = items.findLast(({ kind }) => kind === "user")?.turnId;
    const settled = phase === "idle" || phase === "running"; // not while something is sent or loaded
    const unseen = connection === "waiting" && turn !== null && turn.turnId !== runningTurnId;
    if (!this.#choosing) this.store.dispatch({ type: "tools", tools });
    if (waiting || before.length) this.sync();
    else if (unseen || (settled && leafTurnId && shown !== leafTurnId)) this.#reload(sessionId);
    else if (runningTurnId && runningTurnId === leafTurnId) this.join(runningTurnId);
  }

  /** Asks the engine to stop the running turn. The stream stays open: it says what really happened. */
  async stop(): Promise<void> {
    const { turn } = this.store.state;
    if (!turn || turn.stopping) return;
    this.store.dispatch({ type: "stopping", stopping: true });
    if (!(await this.#try(() => this.api.cancel(turn.turnId)))) this.store.dispatch({ type: "stopping", stopping: false });
  }

  /** Loads the messages before those on the screen. */
  async loadOlder(): Promise<void> {
    const { sessionId, older } = this.store.state;
    if (!sessionId || !older) return;
    await this.#try(async () => {
      const history = await this.api.messages(sessionId, undefined, older);
      const { state } = this.store;
      if (state.sessionId === sessionId && state.older === older) this.store.dispatch({ type: "older", history });
    });
  }

  /** Changes a message that waits, or sends or withdraws it: `change` asks the engine for it. False when it was not done. */
  async change(change: () => Promise<unknown>): Promise<boolean> {
    const error = await change().then(() => null, (reason: unknown) => reason);
    if (error && !(error instanceof ApiError && HAS_BEGUN.has(error.code))) this.onError(error);
    await this.sync();
    return !error;
  }

  /** Shows what waits in the conversation now, and follows its running turn. */
  async sync(): Promise<void> {
    const { sessionId } = this.store.state;
    if (!sessionId) return;
    await this.#try(async () => {
      const { waiting = [], runningTurnId } = await this.api.newest(sessionId);
      if (this.store.state.sessionId !== sessionId) return;
      const waits = new Set(waiting.map(({ turnId }) => turnId));
      this.#begun ||= this.store.state.waiting.some(({ turnId }) => turnId && !waits.has(turnId));
      this.store.dispatch({ type: "waiting", waiting });
      if (runningTurnId || this.#begun) await this.join();
    });
  }

  /** Deletes a conversation, and clears the screen if it is shown there. With `stop` its running turn is stopped first. */
  async delete(sessionId: string, stop: boolean): Promise<End> {
    const end = await this.#endOf(stop, () => this.api.deleteSession(sessionId, stop));
    if (end === "done" && sessionId === this.store.state.sessionId) this.clear();
    return end;
  }

  /** Shows the conversation as it is now, and follows its running turn. */
  async #reload(sessionId: string): Promise<void> {
    if (this.store.state.sessionId !== sessionId) return;
    const signal = this.#leave();
    await this.#attempt(signal, () => this.#watch(sessionId, null, signal));
  }

  #leave(): AbortSignal {
    this.#scope.abort();
    this.#scope = new AbortController();
    return this.#scope.signal;
  }

  /** Queues a message behind the running turn: the engine keeps it from then on, and every tab shows it. */
  async #queue(text: string, choice: Choice, onRejected: OnRejected, decline = false): Promise<void> {
    const { sessionId, waiting, phase } = this.store.state;
    if (!sessionId) return onRejected(sessionId);
    this.store.dispatch({ type: "waiting", waiting: [...waiting, { turnId: null, message: text, held: null }] });
    const { signal } = new AbortController(); // it is sent also when another conversation is opened
    const retried = <T>(request: () => Promise<T>) => withRetries(request, signal, this.onError);
    const sent = this.sending.named(sessionId, text, choice, async (named) => {
      const place = phase === "running" ? {} : await retried(() => this.#besideRunning(sessionId));
      const open = decline && { onOpenQuestion: "decline" };
      await retried(() => this.api.begin(sessionId, { ...named, ...place, onBusy: "queue", ...open }));
    });
    if (!(await this.#try(() => sent))) onRejected(sessionId);
    await this.sync();
  }

  /** Where a message belongs that is written while a turn of another path runs: to the path that is shown. */
  async #besideRunning(sessionId: string): Promise<{ parentTurnId?: string }> {
    const { runningTurnId, leafTurnId } = await this.api.newest(sessionId);
    return runningTurnId && leafTurnId && runningTurnId !== leafTurnId ? { parentTurnId: leafTurnId } : {};
  }

  /** Runs `work` and shows its error, unless the user has left in the meantime; `also` is done then, too. */
  async #attempt(signal: AbortSignal, work: () => Promise<void>, also = (_: unknown) => {}): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      if (this.store.state.phase === "running") this.store.dispatch({ type: "detached" });
      also(error);
      this.onError(error);
    }
  }

  /** What becomes of `work`, which is refused while a turn runs, unless it is `forced`. */
  async #endOf(forced: boolean, work: () => Promise<unknown>): Promise<End> {
    try {
      await work();
      return "done";
    } catch (error) {
      if (!forced && isRunning(error)) return "runs";
      this.onError(error);
      return "failed";
    }
  }

  /** Whether `work` was done. Its error is shown. */
  async #try(work: () => Promise<unknown>): Promise<boolean> {
    return (await this.#endOf(true, work)) === "done";
  }

  /** Starts a turn, without an answer once more. It goes on when the user opens another conversation meanwhile. */
  async #begin(sessionId: string | null, text: string, choice: Choice, signal: AbortSignal): Promise<TurnToFollow> {
    const { tools } = this.store.state; // of a new conversation
    const chosen = sessionId || !tools ? choice : { ...choice, tools };
    const response = await this.sending.named(sessionId, text, chosen, (named) => {
      const send = () => this.api.chat({ sessionId, ...named });
      return send().catch((error) => {
        if (error instanceof ApiError && UNANSWERED.has(error.status)) return send();
        throw error;
      });
    });
    const begun = response.headers.get("X-Session-Id") ?? "";
    if (!sessionId && tools) this.#try(() => this.api.chooseTools(begun, tools));
    if (signal.aborted) response.body?.cancel();
    else if (!sessionId) this.store.dispatch({ type: "named", sessionId: begun });
    return { turnId: response.headers.get("X-Turn-Id") ?? "", response };
  }

  /** Follows `turn`, or without one the turn that runs in the conversation, until none runs any more. */
  async #watch(sessionId: string, turn: TurnToFollow | null, signal: AbortSignal): Promise<void> {
    for (let attempt = 0; ; attempt += 1) {
      turn ??= await this.#load(sessionId, signal);
      if (!turn) return;
      this.store.dispatch({ type: "attached", turnId: turn.turnId });
      const end = await follow({
        ...turn,
        api: this.api,
        places: this.places,
        signal,
        onEvent: (event) => this.store.dispatch({ type: "event", event }),
        onConnection: (connection) => this.store.dispatch({ type: "connection", connection }),
      });
      this.onSessions();
      if (end === "done" && !this.#begun && !this.store.state.waiting.length) return;
      turn = null;
      if (end !== "done") await pause(backOff(attempt), signal);
    }
  }

  async #load(sessionId: string, signal: AbortSignal): Promise<TurnToFollow | null> {
    this.#begun = false;
    const history = await withRetries(() => this.api.messages(sessionId, signal), signal, this.onError);
    this.store.dispatch({ type: "loaded", history });
    const { runningTurnId, leafTurnId = runningTurnId } = history; // a turn of another path is not followed
    return runningTurnId && runningTurnId === leafTurnId ? { turnId: runningTurnId, response: null } : null;
  }
}

const isRunning = (error: unknown): boolean => error instanceof ApiError && error.code === "TURN_RUNNING";
