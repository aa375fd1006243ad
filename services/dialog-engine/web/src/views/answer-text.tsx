/** A text of the model: laid out as soon as that part of the page is there, and as it was written where it is missing. */

import type { AnswerItem } from "../core/types";
import { missing, useLater } from "./loaded";

export function AnswerText({ item }: { item: AnswerItem }) {
  const { Answer } = useLater(true);
  if (Answer) return <Answer item={item} />;
  return (
    <div class={item.open ? "prose open" : "prose"} data-testid="message-text">
      <div class="plain-text" dir="auto">{missing.value && item.text}</div>
    </div>
  );
}
