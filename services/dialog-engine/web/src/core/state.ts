/**
 * What the page shows, as a pure function of what happened, `reduce(state, action) -> state`, and the store of it.
 *
 * An item that did not change is the same object, so a view may compare by identity.
 */

import { callKey, ENDED, settled } from "./calls";
import { fromHistory } from "./history";
import { add, blank, close, initial, reconcile, replace } from "./items";
import { compareIds } from "./sse";
import type { Action, Approval, Call, History, Item, Outcome, State, StreamEvent } from "./types";

export { initial } from "./items";

/** Holds the state; listeners are called after every change, with the states after and before it. */
export class Store {
  state: State = initial;
  #listeners: ((state: State, before: State) => void)[] = [];

  subscribe(listener: (state: State, before: State) => void): void {
    this.#listeners.push(listener);
  }

  dispatch(action: Action): void {
    const before = this.state;
    this.state = reduce(before, action);
    if (this.state !== before) for (const listener of this.#listeners) listener(this.state, before);
  }
}

const IDLE = { phase: "idle", connection: "live", turn: null } as const;

export function reduce(state: State, action: Action): State {
  switch (action.type) {
    case "cleared":
      return blank(state);
    case "loading":
      return { ...blank(state), sessionId: action.sessionId, phase: "loading" };
    case "loaded":
      return loaded(state, action.history);
    case "older": // the messages before those on the screen
      return withOlder(state, action.history);
    case "submitted":
      return add({ ...state, phase: "sending" }, { kind: "user", text: action.text, ...(action.at && { at: action.at }) });
    case "named": // a new conversation has got its id
      return { ...state, sessionId: action.sessionId };
    case "rejected": // the message was not accepted: it goes back to where it was written
      return { ...state, phase: "idle", items: state.items.slice(0, -1) };
    case "waiting":
      return { ...state, waiting: action.waiting };
    case "tools":
      return { ...state, tools: action.tools };
    case "attached":
      return { ...state, phase: "running", turn: begin(action.turnId), items: withTurn(state, action.turnId) };
    case "detached": // the turn cannot be followed any more
      return { ...close(state), ...IDLE };
    case "connection":
      return state.connection === action.connection ? state : { ...state, connection: action.connection };
    case "stopping":
      return state.turn ? { ...state, turn: { ...state.turn, stopping: action.stopping } } : state;
    case "event":
      return onEvent(state, action.event);
    default:
      throw new Error(`unknown action ${(action as Action).type}`);
  }
}

const begin = (turnId: string): NonNullable<State["turn"]> => ({ turnId, lastEventId: null, stopping: false });

/** The items, with the id of the turn on the question that it answers. */
function withTurn({ items }: State, turnId: string): Item[] {
  const at = items.findLastIndex((item) => item.kind === "user");
  const question = items[at];
  return !question || question.turnId ? items : items.with(at, { ...question, turnId });
}

const loaded = (state: State, history: History): State =>
  reconciled(state, { ...fromHistory(blank(state), history), waiting: history.waiting ?? [], tools: history.tools ?? null });

/** The state `next`, in which items that were in `state` keep their identity. */
function reconciled(state: State, next: State): State {
  if (state.sessionId !== next.sessionId) return next;
  const items = reconcile(state.items, next.items);
  // The newest page was loaded again: what stands before its first turn stays.
  const first = next.older === null ? -1 : state.items.findIndex(({ turnId }) => turnId && turnId === items[0]?.turnId);
  if (first <= 0) return { ...next, items };
  const versions = { ...state.versions, ...next.versions };
  return { ...next, items: [...state.items.slice(0, first), ...items], older: state.older, versions };
}

/** The state with an older page of the conversation above what it shows. */
function withOlder(state: State, history: History): State {
  const following = state.items.find(({ turnId }) => turnId)?.turnId ?? undefined;
  const start = { ...blank(state), versions: state.versions };
  const { items, created, older, versions } = fromHistory(start, history, following);
  return { ...state, items: [...items, ...state.items], created, older, versions };
}

/** One event of the running turn. An id that was seen already changes nothing: a replay never shows anything twice. */
function onEvent(state: State, { id, type, data }: StreamEvent): State {
  const { turn } = state;
  if (!turn || (id && turn.lastEventId && compareIds(id, turn.lastEventId) <= 0)) return state;
  return take({ ...state, turn: { ...turn, lastEventId: id ?? turn.lastEventId } }, type, data);
}

function take(next: State, type: string, data: StreamEvent["data"]): State {
  switch (type) {
    case "text":
      return append(next, "answer", data.delta);
    case "reasoning":
      return append(next, "reasoning", data.delta);
    case "message":
      return onMessage(next, data);
    case "control":
      return CONTROLS.get(data.type)?.(next, data) ?? next;
    case "reset":
      return onReset(next, data);
    case "error":
      return add(next, { kind: "error", code: data.code, message: data.message });
    case "done":
      return onDone(next, data);
    default: // a newer server may send events that this page does not know
      return next;
  }
}

const CONTROLS = new Map<string, (state: State, data: StreamEvent["data"]) => State>([
  ["tool", onTool],
  ["approval", onApproval],
  ["question", onQuestion],
  ["decision", onDecision],
]);

/** The model was not sent the whole conversation. */
function onDecision(state: State, { messagesLeftOut: count }: { messagesLeftOut: number }): State {
  const ours = state.turn?.turnId;
  const at = state.items.findIndex((item) => item.kind === "note" && item.reason === "left_out" && item.turnId === ours);
  return at < 0 ? add(state, { kind: "note", reason: "left_out", count }) : replace(state, at, { count });
}

type Replayed = { event: string; data: unknown }[];

/**
 * The server sends the whole turn again, in one event: what is still true keeps its place, the rest is removed.
 * `told` is the name of `events` in an engine 0.1.0.
 */
function onReset(state: State, { told = [], events = told }: { events?: Replayed; told?: Replayed }): State {
  const others = state.items.filter(({ kind, turnId }) => kind === "user" || turnId !== state.turn?.turnId);
  const start: State = { ...state, items: others };
  return reconciled(state, events.reduce((sofar, { event, data }) => take(sofar, event, data), start));
}

function append(state: State, kind: "answer" | "reasoning", delta: string): State {
  const at = state.items.findLastIndex((item) => item.kind === kind && item.open);
  const item = state.items[at];
  if (item?.kind !== kind) return add(state, { kind, text: delta, open: true });
  return replace(state, at, { text: item.text + delta });
}

/** A finished assistant message: its content replaces the open text, and stands above the cards of its calls. */
function onMessage(
  state: State,
  { messageId, content, toolCalls = [] }: { messageId: number; content: string; toolCalls?: Call[] },
): State {
  const at = state.items.findIndex((item) => item.kind === "answer" && item.open);
  if (at >= 0 && content) return close(replace(state, at, { text: content, messageId }));
  const closed = close(at < 0 ? state : { ...state, items: state.items.toSpliced(at, 1) });
  if (!content) return closed;
  const calls = new Set(toolCalls.map(callKey));
  const card = closed.items.findIndex((item) => item.kind === "tool" && calls.has(item.callKey));
  return add(closed, { kind: "answer", text: content, open: false, messageId }, card < 0 ? closed.items.length : card);
}

const callAt = (state: State, key: string): number =>
  state.items.findIndex((item) => item.kind === "tool" && item.callKey === key);

function onTool(state: State, data: Call & { type: string }): State {
  const key = callKey(data);
  const at = callAt(state, key);
  const item = state.items[at];
  if (item?.kind !== "tool") return add(state, { kind: "tool", callKey: key, call: { ...callFrom(null, data), began: state.began[key] } });
  return ENDED.has(item.call.status) ? state : replace(state, at, { call: callFrom(item.call, data) });
}

/** The arguments of the event are those that are asked about, or with which the call is run. */
function onApproval(
  state: State,
  { status, policy, hash, expiresAt, decidedAt, reason, tool, ...data }: Call & Approval,
): State {
  const at = callAt(state, callKey(data));
  const item = state.items[at];
  if (item?.kind !== "tool" || ENDED.has(item.call.status)) return state;
  const { call } = item;
  const approval = { status, policy, hash, expiresAt, decidedAt, reason, tool: tool ?? call.approval?.tool };
  return replace(state, at, { call: { ...call, approval, arguments: data.arguments ?? call.arguments } });
}

/** The server of a call asks a person, or such a question has ended. */
function onQuestion(state: State, { type: _, toolName: _tool, server: _server, ...data }: StreamEvent["data"]): State {
  const { toolCallId: _call, correlationId: _id, round: _round, ...asked } = data;
  const at = callAt(state, callKey(data));
  const item = state.items[at];
  if (item?.kind !== "tool") return state;
  const { questions = [] } = item.call;
  const known = questions.findIndex(({ questionId }) => questionId === asked.questionId);
  const next = known < 0 ? [...questions, asked] : questions.with(known, asked);
  return replace(state, at, { call: { ...item.call, questions: next } });
}

/** What a card shows, after one more step. Progress belongs to the running attempt, `waitsFor` to the step. */
function callFrom(call: Call | null, { type: _, ...step }: StreamEvent["data"]): Call {
  const running = step.status === "progress";
  const progress = running ? { value: step.progress, total: step.total, message: step.message } : null;
  return { ...call, ...step, status: running ? "running" : step.status, progress, waitsFor: step.waitsFor ?? null };
}

function onDone(state: State, { reason, usage, ttftMs, model }: Outcome): State {
  const items = state.items.map((item) => (item.kind === "tool" ? { ...item, call: settled(item.call) } : item));
  const ended = add(close({ ...state, items }), { kind: "end", reason, usage, ttftMs, model });
  return { ...ended, ...IDLE };
}
