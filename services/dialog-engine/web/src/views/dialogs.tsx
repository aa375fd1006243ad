/** The dialog of the API key, and what all dialogs of the page have in common. They are native modal dialogs. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Page } from "../page/page";
import type { Question } from "../page/questions";
import { Button } from "./button";

export function KeyDialog({ page }: { page: Page }) {
  const { question } = page.keys;
  const { problem = "", signIn = false } = question.asked.value ?? {};
  const notNow = <Button kind="outlined" onClick={() => question.end(false)}>Not now</Button>;
  return (
    <Dialog question={question} testId="key-dialog" title={signIn ? "Sign in" : "API key needed"}>
      <p class="bad-text" role="alert" data-testid="key-rejected" hidden={!problem}>{problem}</p>
      {signIn ? (
        <>
          <p>Sign in to go on. You come back to this conversation, and what you wrote is kept.</p>
          <div class="dialog-actions">
            {notNow}
            <Button kind="primary" testId="sign-in" onClick={() => page.signIn()}>Sign in</Button>
          </div>
          <details>
            <summary>Use an API key instead</summary>
            <KeyField page={page} />
          </details>
        </>
      ) : (
        <>
          <p>This server needs an API key. The key is kept until you close this tab.</p>
          <KeyField page={page}>{notNow}</KeyField>
        </>
      )}
    </Dialog>
  );
}

const KeyField = ({ page: { keys }, children }: { page: Page; children?: ComponentChildren }) => (
  <div class="key-field">
    <label for="key-input">API key</label>
    <input
      id="key-input" type="password" autocomplete="off" spellcheck={false} required data-testid="key-input"
      onInput={({ currentTarget }) => (keys.entered = currentTarget.value)}
    />
    <div class="dialog-actions">
      {children}
      <Button kind="primary" type="submit" testId="key-submit">Use this key</Button>
    </div>
  </div>
);

interface Props<Facts> {
  question: Question<Facts>;
  testId: string;
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
      data-testid={testId} aria-labelledby={`${testId}-title`} ref={dialog}
      onClose={({ currentTarget }) => !currentTarget.open && question.asked.value !== null && question.end(false)}
    >
      <form method="dialog" ref={form} onSubmit={submit}>
        <h2 id={`${testId}-title`}>{title}</h2>
        {children}
      </form>
    </dialog>
  );
}
