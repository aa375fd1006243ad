/** A message that waits for the turns before it: what holds it, and what can be done with it. */

import type { Ref } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Waiting } from "../core/types";
import { useFocusAfter } from "./focus";

export interface QueueActions {
  edit: (turnId: string, text: string) => void;
  withdraw: (turnId: string) => void;
  /** With `stop` the running turn is stopped for it. */
  sendNow: (turnId: string, stop: boolean) => void;
}

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
  actions: QueueActions;
}

export function WaitingMessage({ waiting: { turnId, message, held }, running, actions }: Props) {
  const [edited, setEdited] = useState<string | null>(null);
  const box = useRef<HTMLTextAreaElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const back = useFocusAfter(button);
  useLayoutEffect(() => box.current?.focus(), [edited === null]);
  const close = () => {
    setEdited(null);
    back();
  };
  const save = (event: Event) => {
    event.preventDefault();
    if (turnId && edited?.trim()) actions.edit(turnId, edited.trim());
    close();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || event.isComposing) return;
    event.stopPropagation(); // on the page it stops the answer
    close();
  };
  if (edited !== null)
    return (
      <form class="user queued" aria-label="Edit your waiting message" data-testid="queued-form" onSubmit={save} onKeyDown={onKeyDown}>
        <textarea
          class="bubble"
          aria-label="Waiting message"
          dir="auto"
          data-testid="queued-text"
          ref={box}
          value={edited}
          onInput={({ currentTarget }) => setEdited(currentTarget.value)}
        />
        <p class="hint">
          <Action word="Save" id="queued-save" submits />
          <Action word="Cancel" id="queued-cancel" act={close} />
        </p>
      </form>
    );
  return (
    <article class="user queued" aria-label="Your waiting message" data-testid="message-queued">
      <div class="bubble" dir="auto">
        {message}
      </div>
      {turnId && (
        <p class="hint">
          {held ? (HELD.get(held) ?? "It was not sent.") : "Waits for the answers above."}{" "}
          {running ? (
            <Action word="Stop and send" id="queued-stop-and-send" act={() => actions.sendNow(turnId, true)} />
          ) : (
            <Action word="Send now" id="queued-send" act={() => actions.sendNow(turnId, false)} />
          )}
          <Action word="Edit" id="queued-edit" button={button} act={() => setEdited(message)} />
          <Action word="Withdraw" id="queued-withdraw" act={() => actions.withdraw(turnId)} />
        </p>
      )}
    </article>
  );
}

interface ActionProps {
  word: string;
  id: string;
  act?: () => void;
  submits?: boolean;
  button?: Ref<HTMLButtonElement>;
}

const Action = ({ word, id, act, submits = false, button }: ActionProps) => (
  <button type={submits ? "submit" : "button"} class="quiet" data-testid={id} ref={button} onClick={act}>
    {word}
  </button>
);
