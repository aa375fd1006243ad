/** The conversation from top to bottom: one view per turn, and below the turns what waits. */

import { useRef } from "preact/hooks";
import { type Turn, turnsOf } from "../core/turns";
import type { Queued, State } from "../core/types";
import { useKept } from "./kept";
import { type Actions, TurnView } from "./turn";

export function Conversation({ state: { items, queued, phase }, actions }: { state: State; actions: Actions }) {
  const turns = useRef<Turn[]>([]);
  turns.current = turnsOf(items, phase === "sending" || phase === "running", turns.current);
  const drawn = useKept(turns.current, (turn) => <TurnView key={turn.key} turn={turn} actions={actions} />);
  return (
    <>
      <h2 class="unseen">Messages</h2>
      <div class="conversation" id="conversation" role="log" aria-live="off" aria-label="Conversation" data-testid="conversation">
        {drawn}
        {queued && <QueuedMessage key="queued" queued={queued} takeBack={actions.takeBack} />}
      </div>
    </>
  );
}

/** A message that is queued behind the running answer. */
const QueuedMessage = ({ queued: { text, turnId }, takeBack }: { queued: Queued; takeBack: () => void }) => (
  <article class="user queued" aria-label="Your queued message" data-testid="message-queued">
    <div class="bubble" dir="auto">
      {text}
    </div>
    <p class="hint">
      Waits for the answer above.{" "}
      <button type="button" class="quiet" data-testid="take-back" hidden={turnId !== null} onClick={takeBack}>
        Take back
      </button>
    </p>
  </article>
);
