// @ts-check
/**
 * What the page shows, as a pure function of what happened, `reduce(state, action) -> state`, and the store of it.
 *
 * `items` is the conversation from top to bottom; each has a `key` that never changes and a `kind`:
 *   user      {text, turnId}                  `turnId` is that of its answer, once known
 *   reasoning {text, open, turnId}
 *   answer    {text, open, turnId, messageId} `open` while pieces still arrive, then with the id of the message
 *   tool      {call, callKey, turnId}         a card, see `callFrom`
 *   error     {code, message}
 *   note      {reason, count}                 why an answer ended early; or that `count` messages were left out
 * An item that did not change is the same object, so a view may compare by identity.
 */

import { reconcile } from "./reconcile.js";
import { compareIds } from "./sse.js";

export const ENDED = new Set(["succeeded", "failed", "timeout", "cancelled", "unknown", "refused"]);

/**
 * Whether a call waits for a person.
 * @param {Call} call
 */
export const needsApproval = (call) => call.approval?.status === "asked" && !ENDED.has(call.status);

/** @type {Readonly<State>} */
export const initial = Object.freeze({
  sessionId: null,
  title: "",
  phase: "idle",
  connection: "live",
  items: [],
  turn: null, // while one runs
  queued: null, // the message that waits for the running turn; its turnId once its own turn has started
  outcome: null, // of the turn that ended last
  older: null, // the cursor of the messages before those on the screen
  created: 0,
});

/** Holds the state; listeners are called after every change, with the states after and before it. */
export class Store {
  state = initial;
  /** @type {((state: State, before: State) => void)[]} */
  #listeners = [];

  /** @param {(state: State, before: State) => void} listener */
  subscribe(listener) {
    this.#listeners.push(listener);
  }

  /** @param {Action} action */
  dispatch(action) {
    const before = this.state;
    this.state = reduce(before, action);
    if (this.state !== before) for (const listener of this.#listeners) listener(this.state, before);
  }
}

const IDLE = /** @type {const} */ ({ phase: "idle", connection: "live", turn: null });

/**
 * @param {State} state
 * @param {Action} action
 * @returns {State}
 */
export function reduce(state, action) {
  switch (action.type) {
    case "cleared":
      return blank(state);
    case "loading":
      return { ...blank(state), sessionId: action.sessionId, phase: "loading" };
    case "loaded":
      return reconciled(state, { ...fromHistory(blank(state), action.history), queued: stillQueued(state, action.history) });
    case "older": // the messages before those on the screen
      return withOlder(state, action.history);
    case "submitted":
      return add({ ...state, phase: "sending", outcome: null }, { kind: "user", text: action.text });
    case "named": // a new conversation has got its id
      return { ...state, sessionId: action.sessionId };
    case "rejected": // the message was not accepted: it goes back to where it was written
      return { ...state, phase: "idle", items: state.items.slice(0, -1) };
    case "queued":
      return { ...state, queued: { text: action.text, turnId: null } };
    case "accepted": // the turn of the queued message has started: the history has it
      return state.queued ? { ...state, queued: { ...state.queued, turnId: action.turnId } } : state;
    case "unqueued": // the queued message was taken back, or not accepted
      return { ...state, queued: null };
    case "attached":
      return { ...state, phase: "running", outcome: null, turn: begin(action.turnId), items: withTurn(state, action) };
    case "detached": // the turn cannot be followed any more
      return { ...close(state), ...IDLE };
    case "connection":
      return state.connection === action.connection ? state : { ...state, connection: action.connection };
    case "stopping":
      return state.turn ? { ...state, turn: { ...state.turn, stopping: action.stopping } } : state;
    case "event":
      return onEvent(state, action.event);
    default:
      throw new Error(`unknown action ${action.type}`);
  }
}

/**
 * Nothing on the screen. The counter continues, so that no two items ever share a key.
 * @param {State} state
 * @returns {State}
 */
const blank = ({ created }) => ({ ...initial, created });

/** @param {string} turnId */
const begin = (turnId) => ({ turnId, lastEventId: null, stopping: false });

/**
 * The items, with the id of the turn on the question that it answers.
 * @param {State} state
 * @param {Action} action
 */
function withTurn({ items }, { turnId }) {
  const at = items.findLastIndex((item) => item.kind === "user");
  return at < 0 || items[at].turnId ? items : items.with(at, { ...items[at], turnId });
}

/** @param {State} state @param {History} history */
const stillQueued = ({ queued }, { messages }) =>
  queued && messages.some(({ turnId }) => turnId === queued.turnId) ? null : queued;

/**
 * The state `next`, in which items that were in `state` keep their identity.
 * @param {State} state
 * @param {State} next
 */
function reconciled(state, next) {
  if (state.sessionId !== next.sessionId) return next;
  const items = reconcile(state.items, next.items);
  // The newest page was loaded again: what stands before its first turn stays.
  const first = next.older === null ? -1 : state.items.findIndex(({ turnId }) => turnId && turnId === items[0]?.turnId);
  return first > 0 ? { ...next, items: [...state.items.slice(0, first), ...items], older: state.older } : { ...next, items };
}

/**
 * The state with an older page of the conversation above what it shows.
 * @param {State} state
 * @param {History} history
 */
function withOlder(state, history) {
  const following = state.items.find(({ turnId }) => turnId)?.turnId ?? undefined;
  const { items, created, older } = fromHistory(blank(state), history, following);
  return { ...state, items: [...items, ...state.items], created, older };
}

/**
 * One event of the running turn. An id that was seen already changes nothing: a replay never shows anything twice.
 * @param {State} state
 * @param {StreamEvent} event
 */
function onEvent(state, { id, type, data }) {
  const { turn } = state;
  if (!turn || (id && turn.lastEventId && compareIds(id, turn.lastEventId) <= 0)) return state;
  return take({ ...state, turn: { ...turn, lastEventId: id ?? turn.lastEventId } }, type, data);
}

/**
 * @param {State} next
 * @param {string} type
 * @param {any} data
 * @returns {State}
 */
function take(next, type, data) {
  switch (type) {
    case "text":
      return append(next, "answer", data.delta);
    case "reasoning":
      return append(next, "reasoning", data.delta);
    case "message":
      return onMessage(next, data);
    case "control":
      return CONTROLS[data.type]?.(next, data) ?? next;
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

/** @type {Record<string, (state: State, data: any) => State>} */
const CONTROLS = { tool: onTool, approval: onApproval, decision: onDecision };

/**
 * The model was not sent the whole conversation.
 * @param {State} state
 * @param {{messagesLeftOut: number}} data
 */
function onDecision(state, { messagesLeftOut: count }) {
  const ours = state.turn?.turnId;
  const at = state.items.findIndex(({ reason, turnId }) => reason === "left_out" && turnId === ours);
  return at < 0 ? add(state, { kind: "note", reason: "left_out", count }) : replace(state, at, { count });
}

/**
 * The server sends the whole turn again, in one event: what is still true keeps its place, the rest is removed.
 * @param {State} state
 * @param {{events?: {event: string, data: any}[], told?: {event: string, data: any}[]}} data `told`: from an engine 0.1.0
 */
function onReset(state, { told = [], events = told }) {
  const others = state.items.filter(({ kind, turnId }) => kind === "user" || turnId !== state.turn?.turnId);
  /** @type {State} */
  const start = { ...state, items: others };
  return reconciled(state, events.reduce((sofar, { event, data }) => take(sofar, event, data), start));
}

/** @param {State} state @param {string} kind @param {string} delta */
function append(state, kind, delta) {
  const at = state.items.findLastIndex((item) => item.kind === kind && item.open);
  if (at < 0) return add(state, { kind, text: delta, open: true });
  return replace(state, at, { text: state.items[at].text + delta });
}

/**
 * A finished assistant message: its content replaces the open text, and stands above the cards of its calls.
 * @param {State} state
 * @param {{messageId: number, content: string, toolCalls?: Call[]}} data
 */
function onMessage(state, { messageId, content, toolCalls = [] }) {
  const at = state.items.findIndex((item) => item.kind === "answer" && item.open);
  if (at >= 0 && content) return close(replace(state, at, { text: content, messageId }));
  const closed = close(at < 0 ? state : { ...state, items: state.items.toSpliced(at, 1) });
  if (!content) return closed;
  const calls = new Set(toolCalls.map(callKey));
  const card = closed.items.findIndex((item) => calls.has(item.callKey));
  const answer = { kind: "answer", text: content, open: false, messageId };
  return add(closed, answer, card < 0 ? closed.items.length : card);
}

/** @param {State} state @param {Call & {type: string}} data */
function onTool(state, data) {
  const key = callKey(data);
  const at = state.items.findIndex((item) => item.callKey === key);
  if (at < 0) return add(state, { kind: "tool", callKey: key, call: callFrom(null, data) });
  const { call } = state.items[at];
  return ENDED.has(call.status) ? state : replace(state, at, { call: callFrom(call, data) });
}

/**
 * The arguments of the event are those that are asked about, or with which the call is run.
 * @param {State} state
 * @param {Call & Approval} data
 */
function onApproval(state, { status, policy, hash, expiresAt, decidedAt, reason, tool, ...data }) {
  const at = state.items.findIndex((item) => item.callKey === callKey(data));
  if (at < 0 || ENDED.has(state.items[at].call.status)) return state;
  const { call } = state.items[at];
  const approval = { status, policy, hash, expiresAt, decidedAt, reason, tool: tool ?? call.approval?.tool };
  return replace(state, at, { call: { ...call, approval, arguments: data.arguments ?? call.arguments } });
}

/**
 * What a card shows, after one more step. Progress belongs to the running attempt, `waitsFor` to the step.
 * @param {Call | null} call
 * @param {any} data
 * @returns {Call}
 */
function callFrom(call, { type: _, ...step }) {
  const running = step.status === "progress";
  const progress = running ? { value: step.progress, total: step.total, message: step.message } : null;
  return { ...call, ...step, status: running ? "running" : step.status, progress, waitsFor: step.waitsFor ?? null };
}

/** @param {Pick<Call, "correlationId" | "round" | "toolCallId">} call */
const callKey = ({ correlationId, round, toolCallId }) => correlationId ?? `${round}/${toolCallId}`;

/** @param {State} state @param {Outcome} data */
function onDone(state, { reason, usage, ttftMs, model }) {
  const items = state.items.map((item) => (item.kind === "tool" ? { ...item, call: settled(item.call) } : item));
  /** @type {State} */
  const ended = { ...close({ ...state, items }), ...IDLE, outcome: { reason, usage, ttftMs, model } };
  return endedEarly(reason) ? add(ended, { kind: "note", reason }) : ended;
}

/**
 * The call as it is shown once its turn has ended: never as if it were still running.
 * @param {Call} call
 * @returns {Call}
 */
const settled = (call) =>
  ENDED.has(call.status)
    ? call
    : {
        ...call,
        status: "unknown",
        progress: null,
        waitsFor: null,
        error: { message: "The turn ended before this call was answered." },
      };

/** @param {State} state @returns {State} */
function close(state) {
  return { ...state, items: state.items.map((item) => (item.open ? { ...item, open: false } : item)) };
}

/** @param {State} state @param {NewItem} item @returns {State} */
function add(state, item, at = state.items.length) {
  const created = state.created + 1;
  const turn = state.turn ? { turnId: state.turn.turnId } : {};
  const made = /** @type {Item} */ ({ key: `item-${created}`, ...turn, ...item });
  return { ...state, created, items: state.items.toSpliced(at, 0, made) };
}

/** @param {State} state @param {number} at @param {Partial<Item>} changes @returns {State} */
function replace(state, at, changes) {
  return { ...state, items: state.items.with(at, { ...state.items[at], ...changes }) };
}

/**
 * Stored messages as items. Answers of the running turn are left out: its events are read from the start.
 * @param {State} state
 * @param {History} history
 * @param {string} [following] The turn of what stands below them.
 */
function fromHistory(state, { sessionId, title, runningTurnId, messages, turns = [], nextCursor = null }, following) {
  const shown = messages.filter((message) => message.role === "user" || message.turnId !== runningTurnId);
  const turn = new Map(turns.map((each) => [each.turnId, each]));
  const items = shown.flatMap((message, at) => {
    const next = at + 1 < shown.length ? shown[at + 1].turnId : following;
    const last = next !== message.turnId && message.turnId !== runningTurnId;
    return [...itemsOf(message), ...(last ? endOf(message, turn.get(message.turnId)) : [])];
  });
  const outcome = runningTurnId ? null : outcomeOf(turns.at(-1));
  /** @type {State} */
  const start = { ...state, sessionId, title: title ?? "", outcome, older: nextCursor };
  return items.reduce((sofar, item) => add(sofar, item), start);
}

/**
 * What stands below the last message of an ended turn: why it failed or ended early, or that it has no answer.
 * @param {StoredMessage} message
 * @param {StoredTurn | undefined} turn
 * @returns {NewItem[]}
 */
function endOf({ role, interrupted }, turn) {
  if (turn?.error) return [{ kind: "error", ...turn.error }];
  if (role === "user") return [{ kind: "note", reason: "unanswered" }];
  return interrupted || !turn || !endedEarly(turn.reason) ? [] : [{ kind: "note", reason: turn.reason }];
}

/** @param {string | undefined} reason */
const endedEarly = (reason) => Boolean(reason) && reason !== "stop" && reason !== "error";

/** @param {StoredTurn | undefined} turn */
const outcomeOf = (turn) =>
  turn?.reason ? { reason: turn.reason, usage: turn.usage, ttftMs: turn.ttftMs, model: turn.model } : null;

/** @param {StoredMessage} message @returns {NewItem[]} */
function itemsOf({ role, content, turnId, messageId, toolCalls = [], interrupted }) {
  if (role === "user") return [{ kind: "user", text: content, turnId }];
  if (role !== "assistant") return [];
  return [
    ...(content ? [{ kind: "answer", text: content, open: false, turnId, messageId }] : []),
    ...toolCalls.map((call) => ({ kind: "tool", callKey: callKey(call), call: settled({ ...call, past: true }), turnId })),
    ...(interrupted ? [{ kind: "note", reason: "interrupted" }] : []),
  ];
}
