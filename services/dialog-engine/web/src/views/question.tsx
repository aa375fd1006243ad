/** A question of the user: its text, its versions, and what can be done with it. */

import { useEffect, useState } from "preact/hooks";
import type { UserItem } from "../core/types";
import type { Drafts } from "../page/drafts";
import type { Actions } from "../page/page";
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
  const [edits, setEdits] = useEdits(drafts, turnId);
  const { Versions, Edit } = useLater(edits);
  if (edits && turnId && Edit) {
    const send = (changed: string) => branch(turnId, changed);
    return <Edit {...EDIT} turnId={turnId} text={text} drafts={drafts} send={send} close={() => setEdits(false)} />;
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
          <Button testId="edit-question" onClick={() => setEdits(true)}>Edit</Button>
        )}
      </footer>
    </article>
  );
}

/** Whether the box is open in which a message is edited: after a reload too, if something was written in it. */
export function useEdits(drafts: Drafts, turnId: string | null | undefined): [boolean, (edits: boolean) => void] {
  const [chosen, choose] = useState<boolean | null>(null);
  const written = Boolean(turnId && drafts.edited(turnId));
  useEffect(() => {
    if (written) choose(true);
  }, [written]);
  return [chosen ?? written, choose];
}
