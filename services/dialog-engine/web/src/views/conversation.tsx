/** The conversation from top to bottom: one view per turn, and below the turns what waits. */

import { useRef } from "preact/hooks";
import { type Turn, turnsOf } from "../core/turns";
import type { State } from "../core/types";
import type { Actions } from "../page/page";
import { useKept } from "./kept";
import { useLater } from "./loaded";
import { TurnView } from "./turn";

export function Conversation({ state: { items, waiting, phase, versions }, actions }: { state: State; actions: Actions }) {
  const turns = useRef<Turn[]>([]);
  turns.current = turnsOf(items, phase === "sending" || phase === "running", turns.current, versions);
  const drawn = useKept(turns.current, (turn) => <TurnView key={turn.key} turn={turn} actions={actions} />);
  const { WaitingMessage } = useLater(waiting.length > 0);
  return (
    <>
      <h2 class="unseen">Messages</h2>
      <div class="conversation" id="conversation" role="log" aria-live="off" aria-label="Conversation" data-testid="conversation">
        {drawn}
        {WaitingMessage &&
          waiting.map((each, at) => (
            <WaitingMessage key={each.turnId ?? `sent ${at}`} waiting={each} running={phase === "running"} actions={actions} />
          ))}
      </div>
    </>
  );
}
