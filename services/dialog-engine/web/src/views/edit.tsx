/** The box in which a question, or a message that waits, is edited. What is written in it is a draft, until it is sent. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Drafts } from "../page/drafts";
import { byTouch } from "../page/device";
import { Button } from "./button";

interface Props {
  /** Of the turn that the message has, or becomes. */
  turnId: string;
  text: string;
  drafts: Drafts;
  /** "edit" or "queued": the beginning of the test ids. */
  kind: "edit" | "queued";
  /** What the form is for, and the word on its button. */
  label: string;
  word: string;
  hint?: string;
  /** False when the text was not accepted, which then stays here. */
  send: (text: string) => Promise<boolean>;
  /** `sent`: the text was accepted, otherwise it was given up. */
  close: (sent: boolean) => void;
}

export function Edit({ turnId, text, drafts, kind, label, word, hint, send, close }: Props) {
  const [busy, setBusy] = useState(false);
  const box = useRef<HTMLTextAreaElement>(null);
  const [draft] = useState(() => drafts.edited(turnId));
  useLayoutEffect(() => {
    if (draft) return; // it is open since the page was loaded: nothing gets the focus then
    box.current?.focus();
    box.current?.setSelectionRange(text.length, text.length);
  }, []);
  const end = (sent: boolean) => {
    drafts.keepEdited(turnId, "");
    close(sent);
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    const changed = box.current?.value.trim();
    if (!changed || busy) return;
    setBusy(true);
    if (await send(changed)) end(true);
    else setBusy(false);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !byTouch()) submit(event);
    if (event.key !== "Escape") return;
    event.stopPropagation(); // on the page it stops the answer
    end(false);
  };
  return (
    <form class="user editing" aria-label={label} data-testid={`${kind}-form`} onSubmit={submit} onKeyDown={onKeyDown}>
      <textarea
        class="bubble" aria-label="Text" dir="auto" rows={3} defaultValue={draft || text} data-testid={`${kind}-text`}
        ref={box} onInput={({ currentTarget }) => drafts.keepEdited(turnId, currentTarget.value)}
      />
      {hint && <p class="hint">{hint}</p>}
      <div class="dialog-actions">
        <Button kind="outlined" testId={`${kind}-cancel`} onClick={() => end(false)}>Cancel</Button>
        <Button kind="primary" type="submit" disabled={busy} testId={`${kind}-${word.toLowerCase()}`}>{word}</Button>
      </div>
    </form>
  );
}
