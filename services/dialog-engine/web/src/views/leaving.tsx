/** What stays as it is when a question is asked again. It is loaded later. */

import type { Page } from "../page/page";
import { Dialog } from "./dialogs";

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
