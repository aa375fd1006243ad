/** The dialogs that ask before something is done: a deletion, or a question that is asked again. */

import type { Page } from "../page/page";
import { Dialog } from "./dialogs";

export function DeleteDialog({ page: { deletion } }: { page: Page }) {
  const { title = "", runs = false } = deletion.asked.value ?? {};
  return (
    <Dialog question={deletion} testId="confirm-dialog" title="confirm-head">
      <h2 id="confirm-head">Delete this conversation?</h2>
      <p>
        “<bdi>{title}</bdi>” and its tool results will be gone for good.
        {runs && " An answer is being written in it: it is stopped first. A tool call that has begun may take effect all the same."}
      </p>
      <div class="dialog-actions">
        <button type="button" class="outlined" data-testid="confirm-cancel" onClick={() => deletion.end(false)}>
          Keep it
        </button>
        <button type="submit" class="primary danger" data-testid="confirm-delete">
          {runs ? "Stop and delete" : "Delete"}
        </button>
      </div>
    </Dialog>
  );
}

export function LeavingDialog({ page: { leaving } }: { page: Page }) {
  const { calls = [], more = false } = leaving.asked.value ?? {};
  return (
    <Dialog question={leaving} testId="leaving-dialog" title="leaving-head">
      <h2 id="leaving-head">Ask again?</h2>
      <p>The answers from here on stay as another version. Nothing that their tools did is undone, and it may be done once more:</p>
      <ul data-testid="leaving-calls">
        {calls.map(({ correlationId, toolName, status }) => (
          <li key={correlationId}>
            <bdi>{toolName}</bdi> {MADE.get(status) ?? "may have taken effect"}
          </li>
        ))}
        {more && <li>and more</li>}
      </ul>
      <p class="hint">Approvals are asked for again. What the servers of the tools remember stays as it is.</p>
      <div class="dialog-actions">
        <button type="button" class="outlined" data-testid="leaving-cancel" onClick={() => leaving.end(false)}>
          Cancel
        </button>
        <button type="submit" class="primary" data-testid="leaving-confirm">
          Ask again
        </button>
      </div>
    </Dialog>
  );
}

const MADE = new Map([
  ["succeeded", "was done"],
  ["failed", "failed, a part of it may have taken effect"],
  ["pending", "is being run"],
]);
