/** A part of an answer that is shown as it was written, and why. */

import type { Part } from "./growing";

type Reason = Extract<Part, { kind: "text" }>["reason"];

const WHY: Record<Reason, string> = {
  size: "The rest of this answer is shown as text, because it is very long.",
  cells: "This table is shown as text, because it is very large.",
  levels: "This part is shown as text, because it is nested very deeply.",
  long: "This part is shown as text, because it is very long.",
  time: "This part is shown as text, because its layout would take too long.",
};

export function PlainText({ text, reason }: { text: string; reason: Reason }) {
  return (
    <div class="plain" data-testid="plain-text">
      <p class="hint">{WHY[reason]}</p>
      <div class="plain-text" dir="auto">{text}</div>
    </div>
  );
}
