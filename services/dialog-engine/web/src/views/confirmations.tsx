/** The dialog that asks before something is done. */

import type { Page } from "../page/page";
import type { Doubt } from "../page/questions";
import { Button } from "./button";
import { Dialog } from "./dialogs";

/** Per kind: the beginning of test ids, the heading, and the words that close and that confirm. */
const WORDS = {
  deletion: ["confirm", "Delete this conversation?", "Keep it", "Delete"],
  leaving: ["leaving", "Ask again?", "Cancel", "Ask again"],
  waiting: ["waiting", "Ask after this answer?", "Cancel", "Ask afterwards"],
} as const;

export function DoubtDialog({ page: { doubt } }: { page: Page }) {
  const asked = doubt.asked.value;
  const [id, title, close, confirm] = WORDS[asked?.kind ?? "deletion"];
  const deletes = asked?.kind === "deletion";
  return (
    <Dialog question={doubt} testId={`${id}-dialog`} title={title}>
      {asked && <Reasons doubt={asked} />}
      <div class="dialog-actions">
        <Button kind="outlined" testId={`${id}-cancel`} onClick={() => doubt.end(false)}>{close}</Button>
        <Button kind={deletes ? "primary danger" : "primary"} type="submit" testId={deletes ? "confirm-delete" : `${id}-confirm`}>
          {deletes && asked.runs ? "Stop and delete" : confirm}
        </Button>
      </div>
    </Dialog>
  );
}

const MADE = new Map([
  ["succeeded", "was done"],
  ["failed", "failed, a part of it may have taken effect"],
  ["pending", "is being run"],
]);

function Reasons({ doubt }: { doubt: Doubt }) {
  if (doubt.kind === "waiting")
    return <p>An answer is being written in this conversation. The question can wait for its end, and be withdrawn until then.</p>;
  if (doubt.kind === "deletion")
    return (
      <p>
        “<bdi>{doubt.title}</bdi>” and its tool results will be gone for good.
        {doubt.runs && " An answer is being written in it: it is stopped first. A tool call that has begun may take effect all the same."}
      </p>
    );
  return (
    <>
      <p>The answers from here on stay as another version. Nothing that their tools did is undone, and it may be done once more:</p>
      <ul data-testid="leaving-calls">
        {doubt.calls.map(({ correlationId, toolName, status }) => (
          <li key={correlationId}><bdi>{toolName}</bdi> {MADE.get(status) ?? "may have taken effect"}</li>
        ))}
        {doubt.more && <li>and more</li>}
      </ul>
      <p class="hint">Approvals are asked for again. What the servers of the tools remember stays as it is.</p>
    </>
  );
}
