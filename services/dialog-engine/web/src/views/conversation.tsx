/** The conversation from top to bottom: one view per turn, and below the turns what waits. */

import { useEffect, useRef } from "preact/hooks";
import { type Turn, turnsOf } from "../core/turns";
import type { State } from "../core/types";
import { useKept } from "./kept";
import { load, parts } from "./loaded";
import { type Actions, TurnView } from "./turn";

export function Conversation({ state: { items, waiting, phase, versions }, actions }: { state: State; actions: Actions }) {
  const turns = useRef<Turn[]>([]);
  turns.current = turnsOf(items, phase === "sending" || phase === "running", turns.current, versions);
  const drawn = useKept(turns.current, (turn) => <TurnView key={turn.key} turn={turn} actions={actions} />);
  const { WaitingMessage } = parts.value ?? {};
  const waits = waiting.length > 0;
  useEffect(() => {
    if (waits) load().catch(() => {}); // it is asked for at the beginning too
  }, [waits]);
  return (
    <>
      <h2 class="unseen">Messages</h2>
      <div class="conversation" id="conversation" role="log" aria-live="off" aria-label="Conversation" data-testid="conversation">
        {drawn}
        {WaitingMessage && waiting.map((each, at) => (
          <WaitingMessage key={each.turnId ?? `sent ${at}`} waiting={each} running={phase === "running"} actions={actions} />
        ))}
      </div>
    </>
  );
}
