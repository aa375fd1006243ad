/** What an item of the conversation can do. */

import type { Page } from "./page";

export type Actions = ReturnType<typeof actionsOf>;

/** Of one page; it stays the same object. */
export const actionsOf = (page: Page) => ({
  media: page.api.media,
  /** Sends a decision on a call that waits for approval; throws the ApiError of a refusal. */
  decide: page.api.decide,
  /** Answers a question of a server; throws the ApiError of a refusal. */
  answer: page.api.answer,
  /** Changes, withdraws or sends a message that waits: false when that was not accepted. */
  edit: (turnId: string, text: string) => page.chat.change(() => page.api.edit(turnId, text)),
  withdraw: (turnId: string) => {
    page.keepFocus();
    page.chat.change(() => page.api.withdraw(turnId));
  },
  sendNow: (turnId: string, stop: boolean) => {
    page.keepFocus();
    page.chat.change(() => page.api.sendNow(turnId, stop));
  },
  again: (turnId: string) => again(page, turnId),
  branch: (turnId: string, text: string | null) => branch(page, turnId, text),
  /** Shows another version of a turn. */
  show: (turnId: string) => void page.chat.show(turnId),
  drafts: page.drafts,
});

/** Writes a question into the box once more: the person sends it, since what its turn has done with tools is done. */
function again(page: Page, turnId: string): void {
  const asked = page.store.state.items.find((item) => item.kind === "user" && item.turnId === turnId);
  if (asked?.kind === "user") page.drafts.write(page.drafts.text.value || asked.text);
  page.focusComposer();
}

/**
 * Answers another text in the place of a question, or (null) the same one once more. Asks first, if calls of the answers
 * that are left have taken effect, or may have, and if another turn runs. False when it was not accepted.
 */
async function branch(page: Page, turnId: string, text: string | null): Promise<boolean> {
  const left = await page.shown(page.api.effects(turnId));
  if (!left || (left.calls.length && !(await page.doubt.ask({ kind: "leaving", ...left })))) return false;
  page.notices.dismiss();
  let end = await page.chat.branch(turnId, text, page.choices.chosen, false);
  if (end === "runs" && (await page.doubt.ask({ kind: "waiting" })))
    end = await page.chat.branch(turnId, text, page.choices.chosen, true);
  if (end === "done") page.keepFocus();
  return end === "done";
}
