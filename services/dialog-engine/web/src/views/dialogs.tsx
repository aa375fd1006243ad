/** The dialog of the API key, and what all dialogs of the page have in common. They are native modal dialogs. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Page } from "../page/page";
import type { Question } from "../page/questions";

export function KeyDialog({ page }: { page: Page }) {
  const { keys } = page;
  const { problem = "", signIn = false } = keys.question.asked.value ?? {};
  return (
    <Dialog question={keys.question} testId="key-dialog" title="key-title">
      <h2 id="key-title">{signIn ? "Sign in" : "API key needed"}</h2>
      <p class="bad-text" role="alert" data-testid="key-rejected" hidden={!problem}>
        {problem}
      </p>
      {signIn ? (
        <>
          <p>Sign in to go on. You come back to this conversation, and what you wrote is kept.</p>
          <div class="dialog-actions">
            <NotNow page={page} />
            <button type="button" class="primary" data-testid="sign-in" onClick={() => page.signIn()}>
              Sign in
            </button>
          </div>
          <details>
            <summary>Use an API key instead</summary>
            <KeyField page={page} />
          </details>
        </>
      ) : (
        <>
          <p>This server needs an API key. The key is kept until you close this tab.</p>
          <KeyField page={page}>
            <NotNow page={page} />
          </KeyField>
        </>
      )}
    </Dialog>
  );
}

const NotNow = ({ page: { keys } }: { page: Page }) => (
  <button type="button" class="outlined" onClick={() => keys.question.end(false)}>
    Not now
  </button>
);

const KeyField = ({ page: { keys }, children }: { page: Page; children?: ComponentChildren }) => (
  <div class="key-field">
    <label for="key-input">API key</label>
    <input
      id="key-input"
      type="password"
      autocomplete="off"
      spellcheck={false}
      required
      data-testid="key-input"
      onInput={({ currentTarget }) => (keys.entered = currentTarget.value)}
    />
    <div class="dialog-actions">
      {children}
      <button type="submit" class="primary" data-testid="key-submit">
        Use this key
      </button>
    </div>
  </div>
);

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
export function Dialog<Facts>({ question, testId, title, children }: Props<Facts>) {
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
