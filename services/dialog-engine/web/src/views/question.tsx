/** A question of the user: its text, its versions, and what can be done with it. */

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { UserItem } from "../core/types";
import type { Drafts } from "../page/drafts";
import type { Actions } from "../page/actions";
import { Button } from "./button";
import { CopyButton } from "./copy-button";
import { useLater } from "./loaded";

interface Props {
  item: UserItem;
  versions: string[] | undefined;
  actions: Actions;
}

const EDIT = {
  kind: "edit",
  label: "Edit your question",
  word: "Send",
  hint: "The question and its answer stay as another version.",
} as const;

export function Question({ item: { text, at, turnId }, versions, actions }: Props) {
  const { drafts, branch, show } = actions;
  const { edits, open, close, button } = useEdits(drafts, turnId);
  const { Versions, Edit } = useLater(edits);
  if (edits && turnId && Edit) {
    const send = (changed: string) => branch(turnId, changed);
    return <Edit {...EDIT} turnId={turnId} text={text} drafts={drafts} send={send} close={close} />;
  }
  return (
    <article class="user" aria-label="You" data-testid="question">
      <div class="bubble" dir="auto" title={at ? new Date(at).toLocaleString() : undefined} data-testid="message-user">
        {text}
      </div>
      <footer class="question-actions" data-testid="question-actions">
        {turnId && versions && Versions && <Versions turnId={turnId} versions={versions} show={show} />}
        <CopyButton label="Copy the question" testId="copy-question" text={() => text} small />
        {turnId && (
          <Button testId="edit-question" ref={button} onClick={open}>Edit</Button>
        )}
      </footer>
    </article>
  );
}

/**
 * The box in which a message is edited: it is open after a reload too, if something was written in it before. What another
 * tab writes meanwhile opens none here. When it is closed and not sent, the button that opened it gets the focus.
 */
export function useEdits(drafts: Drafts, turnId: string | null | undefined) {
  const [chosen, choose] = useState<boolean | null>(null);
  const { digest } = drafts;
  const written = useMemo(() => Boolean(turnId && drafts.edited(turnId)), [turnId, digest]);
  const button = useRef<HTMLButtonElement>(null);
  const back = useRef(false);
  useLayoutEffect(() => {
    if (back.current) button.current?.focus();
    back.current = false;
  });
  const close = (sent: boolean) => {
    back.current = !sent;
    choose(false);
  };
  return { edits: chosen ?? written, open: () => choose(true), close, button };
}
