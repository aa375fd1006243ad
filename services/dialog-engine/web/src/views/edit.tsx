/** The box in which a question is edited. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { byTouch } from "../page/pointer";

interface Props {
  text: string;
  /** False when the text was not accepted, which then stays here. */
  send: (text: string) => Promise<boolean>;
  /** `sent`: the text was accepted, otherwise it was given up. */
  close: (sent: boolean) => void;
}

export function Edit({ text, send, close }: Props) {
  const [busy, setBusy] = useState(false);
  const box = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    box.current?.focus();
    box.current?.setSelectionRange(text.length, text.length);
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    const changed = box.current?.value.trim();
    if (!changed || busy) return;
    setBusy(true);
    if (await send(changed)) close(true);
    else setBusy(false);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !byTouch()) submit(event);
    if (event.key !== "Escape") return;
    event.stopPropagation(); // on the page it stops the answer
    close(false);
  };
  return (
    <form class="user editing" aria-label="Edit your question" data-testid="edit-form" onSubmit={submit} onKeyDown={onKeyDown}>
      <textarea class="bubble" aria-label="Question" dir="auto" rows={3} defaultValue={text} data-testid="edit-text" ref={box} />
      <p class="hint">The question and its answer stay as another version.</p>
      <div class="dialog-actions">
        <button type="button" class="outlined" data-testid="edit-cancel" onClick={() => close(false)}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={busy} data-testid="edit-send">
          Send
        </button>
      </div>
    </form>
  );
}
