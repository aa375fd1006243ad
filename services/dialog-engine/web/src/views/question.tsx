/** A question of the user: its text, its versions, and the box in which it is edited. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { UserItem } from "../core/types";
import { byTouch } from "../page/pointer";
import { CopyButton } from "./copy-button";
import { Versions } from "./versions";

export interface BranchActions {
  /** Answers another text in the place of a question, or (null) the same one once more. False when it was not accepted. */
  branch: (turnId: string, text: string | null) => Promise<boolean>;
  /** Shows another version of a turn. */
  show: (turnId: string) => void;
}

interface Props {
  item: UserItem;
  versions: string[] | undefined;
  actions: BranchActions;
}

export function Question({ item: { text, at, turnId }, versions, actions }: Props) {
  const [edits, setEdits] = useState(false);
  const [sends, setSends] = useState(false);
  if (edits && turnId) {
    const send = async (changed: string) => {
      setSends(true);
      if (await actions.branch(turnId, changed)) setEdits(false);
      setSends(false);
    };
    return <Edit text={text} busy={sends} send={send} cancel={() => setEdits(false)} />;
  }
  return (
    <article class="user" aria-label="You" data-testid="question">
      <div class="bubble" dir="auto" title={at ? new Date(at).toLocaleString() : undefined} data-testid="message-user">
        {text}
      </div>
      <footer class="question-actions" data-testid="question-actions">
        {turnId && versions && <Versions turnId={turnId} versions={versions} show={actions.show} />}
        <CopyButton label="Copy the question" testId="copy-question" text={() => text} small />
        {turnId && (
          <button type="button" class="quiet" data-testid="edit-question" onClick={() => setEdits(true)}>
            Edit
          </button>
        )}
      </footer>
    </article>
  );
}

interface EditProps {
  text: string;
  busy: boolean;
  send: (text: string) => void;
  cancel: () => void;
}

function Edit({ text, busy, send, cancel }: EditProps) {
  const box = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    box.current?.focus();
    box.current?.setSelectionRange(text.length, text.length);
  }, []);
  const submit = (event: Event) => {
    event.preventDefault();
    const changed = box.current?.value.trim();
    if (changed && !busy) send(changed);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !byTouch()) submit(event);
    if (event.key !== "Escape") return;
    event.stopPropagation(); // on the page it stops the answer
    cancel();
  };
  return (
    <form class="user editing" aria-label="Edit your question" data-testid="edit-form" onSubmit={submit} onKeyDown={onKeyDown}>
      <textarea class="bubble" aria-label="Question" dir="auto" rows={3} defaultValue={text} data-testid="edit-text" ref={box} />
      <p class="hint">The question and its answer stay as another version.</p>
      <div class="dialog-actions">
        <button type="button" class="outlined" data-testid="edit-cancel" onClick={cancel}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={busy} data-testid="edit-send">
          Send
        </button>
      </div>
    </form>
  );
}
