/** A text of the model: laid out as soon as that part of the page is there, and as it was written where it is missing. */

import { useEffect } from "preact/hooks";
import type { AnswerItem } from "../core/types";
import { load, missing, parts } from "./loaded";

export function AnswerText({ item }: { item: AnswerItem }) {
  const loaded = parts.value;
  useEffect(() => {
    if (!loaded) load().catch(() => {});
  }, [loaded]);
  if (loaded) return <loaded.Answer item={item} />;
  return (
    <div class={item.open ? "prose open" : "prose"} data-testid="message-text">
      {missing.value && (
        <div class="plain-text" dir="auto">
          {item.text}
        </div>
      )}
    </div>
  );
}
