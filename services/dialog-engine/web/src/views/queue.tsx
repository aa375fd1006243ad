/** A message that waits for the turns before it: what holds it, and what can be done with it. */

import type { Waiting } from "../core/types";
import type { Actions } from "../page/actions";
import { Button } from "./button";
import { Edit } from "./edit";
import { useEdits } from "./question";

const HELD = new Map([
  ["STOPPED", "You stopped the answer before it, so it was not sent."],
  ["FAILED", "The answer before it failed, so it was not sent."],
  ["CREDENTIAL_REVOKED", "The key or token that wrote it is not valid any more, so it was not sent."],
  ["CREDENTIAL_EXPIRED", "The sign-in with which it was written has ended, so it was not sent."],
  ["LIMIT_EXCEEDED", "The tokens for today are used up, so it was not sent."],
  ["RESTORED", "The server was restored from a backup: look whether it was sent before."],
]);

interface Props {
  waiting: Waiting;
  running: boolean;
  actions: Actions;
}

export function WaitingMessage({ waiting: { turnId, message, held }, running, actions }: Props) {
  const { drafts } = actions;
  const { edits, open, close, button } = useEdits(drafts, turnId);
  if (edits && turnId) {
    const send = (text: string) => actions.edit(turnId, text);
    const words = { kind: "queued", label: "Edit your waiting message", word: "Save" } as const;
    return <Edit {...words} turnId={turnId} text={message} drafts={drafts} send={send} close={() => close(false)} />;
  }
  return (
    <article class="user queued" aria-label="Your waiting message" data-testid="message-queued">
      <div class="bubble" dir="auto">{message}</div>
      {turnId && (
        <p class="hint">
          {held ? (HELD.get(held) ?? "It was not sent.") : "Waits for the answers above."}{" "}
          <Button testId={running ? "queued-stop-and-send" : "queued-send"} onClick={() => actions.sendNow(turnId, running)}>
            {running ? "Stop and send" : "Send now"}
          </Button>
          <Button testId="queued-edit" ref={button} onClick={open}>Edit</Button>
          <Button testId="queued-withdraw" onClick={() => actions.withdraw(turnId)}>Withdraw</Button>
        </p>
      )}
    </article>
  );
}
