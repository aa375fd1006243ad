/** The dialogs of the page: the API key, and the confirmation of a deletion. Both are native modal dialogs. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Page } from "../page/page";
import type { Question } from "../page/questions";

export function KeyDialog({ page: { keys } }: { page: Page }) {
  const input = useRef<HTMLInputElement>(null);
  const asked = keys.question.asked.value;
  return (
    <Dialog question={keys.question} testId="key-dialog" title="key-title">
      <h2 id="key-title">API key needed</h2>
      <p class="bad-text" role="alert" data-testid="key-rejected" hidden={!asked?.rejected}>
        The server did not accept this key.
      </p>
      <p hidden={!asked?.signIn}>
        <button type="button" class="primary" data-testid="sign-in" onClick={() => location.assign("/sign-in")}>
          Sign in
        </button>
      </p>
      <p>This server needs an API key. The key is kept until you close this tab.</p>
      <label for="key-input">API key</label>
      <input
        id="key-input"
        type="password"
        autocomplete="off"
        spellcheck={false}
        required
        data-testid="key-input"
        ref={input}
        onInput={({ currentTarget }) => (keys.entered = currentTarget.value)}
      />
      <div class="dialog-actions">
        <button type="button" class="outlined" onClick={() => keys.question.end(false)}>
          Not now
        </button>
        <button type="submit" class="primary" data-testid="key-submit">
          Use this key
        </button>
      </div>
    </Dialog>
  );
}

export function DeleteDialog({ page: { deletion } }: { page: Page }) {
  return (
    <Dialog question={deletion} testId="confirm-dialog" title="confirm-head">
      <h2 id="confirm-head">Delete this conversation?</h2>
      <p>
        “<bdi>{deletion.asked.value?.title}</bdi>” and its tool results will be gone for good.
      </p>
      <div class="dialog-actions">
        <button type="button" class="outlined" data-testid="confirm-cancel" onClick={() => deletion.end(false)}>
          Keep it
        </button>
        <button type="submit" class="primary danger" data-testid="confirm-delete">
          Delete
        </button>
      </div>
    </Dialog>
  );
}

interface Props<Facts> {
  question: Question<Facts>;
  testId: string;
  /** The id of the heading. */
  title: string;
  children: ComponentChildren;
}

/**
 * Open while its question is asked. The `close` event of a dialog is dispatched later: by then it may be open again for
 * another question, which must not take the event for its own end.
 */
function Dialog<Facts>({ question, testId, title, children }: Props<Facts>) {
  const dialog = useRef<HTMLDialogElement>(null);
  const form = useRef<HTMLFormElement>(null);
  const asked = question.asked.value;
  useLayoutEffect(() => {
    if (asked === null) dialog.current?.close();
    else {
      form.current?.reset();
      if (!dialog.current?.open) dialog.current?.showModal();
    }
  }, [asked]);
  const submit = (event: Event) => {
    event.preventDefault();
    question.end(true);
  };
  return (
    <dialog
      data-testid={testId}
      aria-labelledby={title}
      ref={dialog}
      onClose={({ currentTarget }) => !currentTarget.open && question.asked.value !== null && question.end(false)}
    >
      <form method="dialog" ref={form} onSubmit={submit}>
        {children}
      </form>
    </dialog>
  );
}
