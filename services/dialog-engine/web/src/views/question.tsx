/** A question of the user: its text, its versions, and what can be done with it. */

import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import type { UserItem } from "../core/types";
import { CopyButton } from "./copy-button";
import { useFocusAfter } from "./focus";
import { load, parts } from "./loaded";

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
  const { Versions } = parts.value ?? {};
  const [editor, setEditor] = useState<VNode | null>(null);
  const button = useRef<HTMLButtonElement>(null);
  const back = useFocusAfter(button);
  if (editor) return editor;
  const edit = async (turnId: string) => {
    const { Edit } = await load();
    const close = (sent: boolean) => {
      setEditor(null);
      if (!sent) back();
    };
    setEditor(<Edit text={text} send={(changed) => actions.branch(turnId, changed)} close={close} />);
  };
  return (
    <article class="user" aria-label="You" data-testid="question">
      <div class="bubble" dir="auto" title={at ? new Date(at).toLocaleString() : undefined} data-testid="message-user">
        {text}
      </div>
      <footer class="question-actions" data-testid="question-actions">
        {turnId && versions && Versions && <Versions turnId={turnId} versions={versions} show={actions.show} />}
        <CopyButton label="Copy the question" testId="copy-question" text={() => text} small />
        {turnId && (
          <button type="button" class="quiet" data-testid="edit-question" ref={button} onClick={() => edit(turnId)}>
            Edit
          </button>
        )}
      </footer>
    </article>
  );
}
