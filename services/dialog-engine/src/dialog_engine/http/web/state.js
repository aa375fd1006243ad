/**
 * What the page shows, as a pure function of what happened: `reduce(state, action) -> state`.
 *
 * `items` is the conversation from top to bottom; each has a `key` that never changes and a `kind`:
 *   user      {text, turnId}                  of the turn that answers it, when that has begun
 *   reasoning {text, open, turnId}
 *   answer    {text, open, turnId, messageId} `open` while pieces still arrive; finished it has the message's id
 *   tool      {call, callKey, turnId}         a card, see `callFrom`
 *   error     {code, message}
 *   note      {reason}                        why an answer ended early
 * An item that did not change is the same object, so a view may compare by identity.
 */

import { compareIds } from "./event-id.js";
import { recognised } from "./same.js";

export const ENDED = new Set(["succeeded", "failed", "timeout", "cancelled", "unknown", "refused"]);

/** Whether a call waits for a person. */
export const needsApproval = (call) => call.approval?.status === "asked" && !ENDED.has(call.status);

export const initial = Object.freeze({
  sessionId: null,
  title: "",
  phase: "idle", // idle | loading | sending | running
  connection: "live", // live | reconnecting
  items: [],
  turn: null, // {turnId, lastEventId, stopping} while one runs
  queued: null, // {text, turnId} of a message that waits for the running turn; turnId once its own has begun
  outcome: null, // {reason, usage, ttftMs, model} of the turn that ended last
  made: 0, // how many items were ever made: the source of keys
});

const IDLE = { phase: "idle", connection: "live", turn: null };

export function reduce(state, action) {
  switch (action.type) {
    case "cleared":
      return blank(state);
    case "loading":
      return { ...blank(state), sessionId: action.sessionId, phase: "loading" };
    case "loaded":
      return recognise(state, { ...fromHistory(blank(state), action.history), queued: stillQueued(state, action.history) });
    case "submitted":
      return add({ ...state, phase: "sending", outcome: null }, { kind: "user", text: action.text });
    case "named": // a new conversation has its id
      return { ...state, sessionId: action.sessionId };
    case "rejected": // the message was not accepted: it goes back to where it was written
      return { ...state, phase: "idle", items: state.items.slice(0, -1) };
    case "queued":
      return { ...state, queued: { text: action.text, turnId: null } };
    case "accepted": // the turn of the message that waited has begun: the history has it
      return state.queued ? { ...state, queued: { ...state.queued, turnId: action.turnId } } : state;
    case "unqueued": // it was taken back, or not accepted
      return { ...state, queued: null };
    case "attached":
      return { ...state, phase: "running", outcome: null, turn: begin(action.turnId), items: asked(state, action) };
    case "detached": // the turn can be followed no longer
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

/** Nothing on the screen. The count goes on, so that no two items ever share a key. */
const blank = ({ made }) => ({ ...initial, made });

const begin = (turnId) => ({ turnId, lastEventId: null, stopping: false });

/** The items, with the question that the turn answers known as its own. */
function asked({ items }, { turnId }) {
  const at = items.findLastIndex((item) => item.kind === "user");
  return at < 0 || items[at].turnId ? items : items.with(at, { ...items[at], turnId });
}

const stillQueued = ({ queued }, { messages }) =>
  queued && messages.some(({ turnId }) => turnId === queued.turnId) ? null : queued;

/** The screen of `next`, where what was on that of `state` stays what it is. */
const recognise = (state, next) =>
  state.sessionId === next.sessionId ? { ...next, items: recognised(state.items, next.items) } : next;

/** One event of the running turn. An id that was seen already changes nothing: a replay never shows anything twice. */
function onEvent(state, { id, type, data }) {
  const { turn } = state;
  if (!turn || (id && turn.lastEventId && compareIds(id, turn.lastEventId) <= 0)) return state;
  return take({ ...state, turn: { ...turn, lastEventId: id ?? turn.lastEventId } }, type, data);
}

function take(next, type, data) {
  switch (type) {
    case "text":
      return append(next, "answer", data.delta);
    case "reasoning":
      return append(next, "reasoning", data.delta);
    case "message":
      return onMessage(next, data);
    case "control":
      return data.type === "tool" ? onTool(next, data) : data.type === "approval" ? onApproval(next, data) : next;
    case "reset":
      return onReset(next, data);
    case "error":
      return add(next, { kind: "error", code: data.code, message: data.message });
    case "done":
      return onDone(next, data);
    default: // a newer server may say more than this page knows
      return next;
  }
}

/** Everything of the turn is told again, at once: what is still true stays where it is, the rest goes. */
function onReset(state, { told = [] }) {
  const others = state.items.filter(({ kind, turnId }) => kind === "user" || turnId !== state.turn.turnId);
  const anew = told.reduce((sofar, { event, data }) => take(sofar, event, data), { ...state, items: others });
  return recognise(state, anew);
}

function append(state, kind, delta) {
  const at = state.items.findLastIndex((item) => item.kind === kind && item.open);
  if (at < 0) return add(state, { kind, text: delta, open: true });
  return replace(state, at, { text: state.items[at].text + delta });
}

/** A finished assistant message: its content replaces the open text, and stands above the cards of its calls. */
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

function onTool(state, data) {
  const key = callKey(data);
  const at = state.items.findIndex((item) => item.callKey === key);
  if (at < 0) return add(state, { kind: "tool", callKey: key, call: callFrom({}, data) });
  const { call } = state.items[at];
  return ENDED.has(call.status) ? state : replace(state, at, { call: callFrom(call, data) });
}

/** The arguments are those that are asked about, or with which it is run. */
function onApproval(state, { status, policy, hash, expiresAt, decidedAt, reason, ...data }) {
  const at = state.items.findIndex((item) => item.callKey === callKey(data));
  if (at < 0 || ENDED.has(state.items[at].call.status)) return state;
  const { call } = state.items[at];
  const approval = { status, policy, hash, expiresAt, decidedAt, reason };
  return replace(state, at, { call: { ...call, approval, arguments: data.arguments ?? call.arguments } });
}

/** What a card shows, after one more step. Progress belongs to the attempt that is running, what it waits for to the step. */
function callFrom(call, { type, ...step }) {
  const running = step.status === "progress";
  const progress = running ? { value: step.progress, total: step.total, message: step.message } : null;
  return { ...call, ...step, status: running ? "running" : step.status, progress, waitsFor: step.waitsFor ?? null };
}

const callKey = ({ correlationId, round, toolCallId }) => correlationId ?? `${round}/${toolCallId}`;

function onDone(state, { reason, usage, ttftMs, model }) {
  const items = state.items.map((item) => (item.kind === "tool" ? { ...item, call: settled(item.call) } : item));
  const ended = { ...close({ ...state, items }), ...IDLE, outcome: { reason, usage, ttftMs, model } };
  return endedEarly(reason) ? add(ended, { kind: "note", reason }) : ended;
}

/** No call is left looking busy once its turn has ended. */
const settled = (call) =>
  ENDED.has(call.status)
    ? call
    : {
        ...call,
        status: "unknown",
        progress: null,
        waitsFor: null,
        error: { message: "Its turn ended before the call was answered." },
      };

function close(state) {
  return { ...state, items: state.items.map((item) => (item.open ? { ...item, open: false } : item)) };
}

function add(state, item, at = state.items.length) {
  const made = state.made + 1;
  const mine = state.turn ? { turnId: state.turn.turnId } : {};
  return { ...state, made, items: state.items.toSpliced(at, 0, { key: `item-${made}`, ...mine, ...item }) };
}

function replace(state, at, changes) {
  return { ...state, items: state.items.with(at, { ...state.items[at], ...changes }) };
}

/** Stored messages as items. What the running turn said is left out: its events tell it again from the start. */
function fromHistory(state, { sessionId, title, runningTurnId, messages, turns = [] }) {
  const told = messages.filter((message) => message.role === "user" || message.turnId !== runningTurnId);
  const turn = new Map(turns.map((each) => [each.turnId, each]));
  const items = told.flatMap((message, at) => {
    const last = told[at + 1]?.turnId !== message.turnId && message.turnId !== runningTurnId;
    return [...itemsOf(message), ...(last ? endOf(message, turn.get(message.turnId)) : [])];
  });
  const outcome = runningTurnId ? null : outcomeOf(turns.at(-1));
  return items.reduce((sofar, item) => add(sofar, item), { ...state, sessionId, title: title ?? "", outcome });
}

/** What is told below the last message of an ended turn: why it failed or ended early, or that it has no answer. */
function endOf({ role, interrupted }, turn) {
  if (turn?.error) return [{ kind: "error", ...turn.error }];
  if (role === "user") return [{ kind: "note", reason: "unanswered" }];
  return interrupted || !endedEarly(turn?.reason) ? [] : [{ kind: "note", reason: turn.reason }];
}

const endedEarly = (reason) => Boolean(reason) && reason !== "stop" && reason !== "error";

const outcomeOf = (turn) =>
  turn?.reason ? { reason: turn.reason, usage: turn.usage, ttftMs: turn.ttftMs, model: turn.model } : null;

function itemsOf({ role, content, turnId, messageId, toolCalls = [], interrupted }) {
  if (role === "user") return [{ kind: "user", text: content, turnId }];
  if (role !== "assistant") return [];
  return [
    ...(content ? [{ kind: "answer", text: content, open: false, turnId, messageId }] : []),
    ...toolCalls.map((call) => ({ kind: "tool", callKey: callKey(call), call: settled({ ...call, past: true }), turnId })),
    ...(interrupted ? [{ kind: "note", reason: "interrupted" }] : []),
  ];
}
