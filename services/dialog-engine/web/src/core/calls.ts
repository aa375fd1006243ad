/** What can be said of a tool call from its data alone, and how its texts are shown. */

import type { Asked, Call } from "./types";

/** The statuses after which nothing of a call changes. */
export const ENDED: ReadonlySet<string> = new Set(["succeeded", "failed", "timeout", "cancelled", "unknown", "refused"]);

export const answered = (call: Call): boolean => ENDED.has(call.status);

const PROBLEMS: ReadonlySet<string> = new Set(["failed", "timeout", "unknown"]);

/** Whether the user has refused a call: that is an answer, and no failure. */
export const refusedByPerson = (call: Call): boolean => call.status === "refused" && call.approval?.status === "refused";

/** Whether a person is to know how a call ended. */
export const isProblem = (call: Call): boolean => PROBLEMS.has(call.status) || (call.status === "refused" && !refusedByPerson(call));

/** Whether a call waits for a person's approval. */
export const needsApproval = (call: Call): boolean => call.approval?.status === "asked" && !ENDED.has(call.status);

/** The questions of a call's server that a person is to answer. */
export const openQuestions = ({ status, questions = [] }: Call): Asked[] =>
  ENDED.has(status) ? [] : questions.filter((each) => each.status === "asked");

export const waitsForPerson = (call: Call): boolean => needsApproval(call) || openQuestions(call).length > 0;

/** Whether a call waits for the program that sent the message, which runs its tool. */
export const waitsForProgram = (call: Call): boolean => call.waitsFor === "client" && !ENDED.has(call.status);

/** Whether a card is open until the user closes it: a person is asked, or is to know what happened. */
export const opensItself = (call: Call): boolean =>
  waitsForPerson(call) || isProblem(call) || Boolean(call.result?.media?.length || call.stateLost);

/** What two reports of one call have in common. */
export const callKey = ({ correlationId, round, toolCallId }: Pick<Call, "correlationId" | "round" | "toolCallId">): string =>
  correlationId ?? `${round}/${toolCallId}`;

/** The call as it is shown once its turn has ended: never as if it were still running. */
export const settled = (call: Call): Call =>
  ENDED.has(call.status)
    ? call
    : {
        ...call,
        status: "unknown",
        progress: null,
        waitsFor: null,
        error: { message: "The turn ended before this call was answered." },
      };

// Controls, direction marks, joiners, unassigned and private characters; spaces other than the ordinary one; and letters
// that look like nothing. Line feeds are left: they make lines.
const UNSEEN = /(?!\n)[\p{C}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u2800]|(?! )\p{Zs}/gu;

const escaped = (character: string): string =>
  character
    .split("")
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .join("");

/** The text with an escape in place of each character that cannot be seen. JSON stays the same JSON. */
export const visible = (text: string): string => text.replace(UNSEEN, escaped);
