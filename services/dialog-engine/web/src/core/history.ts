/** Stored messages as items of the conversation. */

import { callKey, settled } from "./calls";
import { add } from "./items";
import type { History, NewItem, Outcome, State, StoredMessage, StoredTurn } from "./types";

/**
 * Stored messages as items. Answers of the running turn are left out: its events are read from the start.
 * `following` is the turn of what stands below them.
 */
export function fromHistory(
  state: State,
  { sessionId, title, runningTurnId, messages, turns = [], nextCursor = null }: History,
  following?: string,
): State {
  const shown = messages.filter((message) => message.role === "user" || message.turnId !== runningTurnId);
  const turn = new Map(turns.map((each) => [each.turnId, each]));
  const items = shown.flatMap((message, at) => {
    const next = shown[at + 1]?.turnId ?? following;
    const last = next !== message.turnId && message.turnId !== runningTurnId;
    return [...itemsOf(message), ...(last ? endOf(message, turn.get(message.turnId)) : [])];
  });
  const outcome = runningTurnId ? null : outcomeOf(turns.at(-1));
  const start: State = { ...state, sessionId, title: title ?? "", outcome, older: nextCursor };
  return items.reduce((sofar, item) => add(sofar, item), start);
}

/** What stands below the last message of an ended turn: why it failed or ended early, or that it has no answer. */
function endOf({ role, interrupted }: StoredMessage, turn: StoredTurn | undefined): NewItem[] {
  if (turn?.error) return [{ kind: "error", ...turn.error, turnId: turn.turnId }];
  if (role === "user") return [{ kind: "note", reason: "unanswered" }];
  return interrupted || !turn || !endedEarly(turn.reason) ? [] : [{ kind: "note", reason: turn.reason }];
}

/** Whether this reason of an end is to be explained. */
export const endedEarly = (reason: string | undefined): boolean =>
  Boolean(reason) && reason !== "stop" && reason !== "error";

const outcomeOf = (turn: StoredTurn | undefined): Outcome | null =>
  turn?.reason ? { reason: turn.reason, usage: turn.usage, ttftMs: turn.ttftMs, model: turn.model } : null;

function itemsOf({ role, content, turnId, messageId, toolCalls = [], interrupted }: StoredMessage): NewItem[] {
  if (role === "user") return [{ kind: "user", text: content, turnId }];
  if (role !== "assistant") return [];
  return [
    ...(content ? [{ kind: "answer" as const, text: content, open: false, turnId, messageId }] : []),
    ...toolCalls.map((call) => ({
      kind: "tool" as const,
      callKey: callKey(call),
      call: settled({ ...call, past: true }),
      turnId,
    })),
    ...(interrupted ? [{ kind: "note" as const, reason: "interrupted" }] : []),
  ];
}
