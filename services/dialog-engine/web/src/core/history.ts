/** Stored messages as items of the conversation: the same as those of the events of their turns. */

import { callKey, settled } from "./calls";
import { add } from "./items";
import type { History, NewItem, State, StoredMessage, StoredTurn } from "./types";

/**
 * Stored messages as items. Answers of the running turn are left out: its events are read from the start.
 * `following` is the turn of what stands below them.
 */
export function fromHistory(
  state: State,
  { sessionId, title, runningTurnId, messages, turns = [], nextCursor = null, aheadMs = 0 }: History,
  following?: string,
): State {
  const shown = messages.filter((message) => message.role === "user" || message.turnId !== runningTurnId);
  const turn = new Map(turns.map((each) => [each.turnId, each]));
  const running = messages.filter(({ turnId }) => turnId === runningTurnId);
  const began = running.flatMap(({ toolCalls = [], createdAt = "" }) =>
    toolCalls.map((call) => [callKey(call), Date.parse(createdAt) + aheadMs] as const),
  );
  const items = shown.flatMap((message, at) => {
    const next = shown[at + 1]?.turnId ?? following;
    const last = next !== message.turnId && message.turnId !== runningTurnId;
    const ended = message.turnId === runningTurnId ? undefined : turn.get(message.turnId);
    return [...itemsOf(message, ended), ...(last ? endOf(message, ended) : [])];
  });
  const several = turns.flatMap(({ turnId, siblings = [] }) => (siblings.length > 1 ? [[turnId, siblings] as const] : []));
  const versions = { ...state.versions, ...Object.fromEntries(several) };
  const start: State = { ...state, sessionId, title: title ?? "", older: nextCursor, versions, began: Object.fromEntries(began) };
  return items.reduce((sofar, item) => add(sofar, item), start);
}

/** What stands below the last message of an ended turn: why it failed, its end, or that it has no answer. */
function endOf({ role }: StoredMessage, turn: StoredTurn | undefined): NewItem[] {
  if (!turn?.reason) return role === "user" ? [{ kind: "note", reason: "unanswered" }] : [];
  const { turnId, reason, usage, ttftMs, model, error } = turn;
  return [
    ...(error ? [{ kind: "error" as const, ...error, turnId }] : []),
    { kind: "end", turnId, reason, usage, ttftMs, model },
  ];
}

function itemsOf(message: StoredMessage, turn: StoredTurn | undefined): NewItem[] {
  const { role, content, reasoning, turnId, messageId, toolCalls = [], interrupted, createdAt } = message;
  const leftOut = turn?.messagesLeftOut;
  if (role === "user")
    return [
      { kind: "user", text: content, turnId, ...(createdAt && { at: Date.parse(createdAt) }) },
      ...(leftOut ? [{ kind: "note" as const, reason: "left_out", count: leftOut, turnId }] : []),
    ];
  if (role !== "assistant") return [];
  return [
    ...(reasoning ? [{ kind: "reasoning" as const, text: reasoning, open: false, turnId }] : []),
    ...(content ? [{ kind: "answer" as const, text: content, open: false, turnId, messageId }] : []),
    ...toolCalls.map((call) => ({
      kind: "tool" as const,
      callKey: callKey(call),
      call: settled({ ...call, past: true, round: messageId }), // a message has the calls of one round
      turnId,
    })),
    ...(interrupted && !turn?.reason ? [{ kind: "note" as const, reason: "interrupted", turnId }] : []),
  ];
}
