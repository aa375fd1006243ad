/** What is done or was done for an answer, in one line; opened, each call has a line. */

import { useState } from "preact/hooks";
import { duration } from "../core/status";
import { runningLine, runningOf, summaryOf } from "../core/turns";
import type { Item } from "../core/types";
import type { Actions } from "../page/actions";
import { Icon } from "./icon";
import { useKept, useNow } from "./kept";
import { Bar, Tool } from "./tool";

interface Props {
  /** What is in it when it is open. */
  folded: Item[];
  /** All of the turn. */
  items: Item[];
  live: boolean;
  actions: Actions;
}

export function Activity({ folded, items, live, actions }: Props) {
  const running = live ? runningOf(folded) : null;
  const lines = useKept(folded, (item) =>
    item.kind === "tool" ? (
      <Tool key={item.key} item={item} actions={actions} />
    ) : (
      <p key={item.key} class="reasoning" dir="auto" data-testid="reasoning">{"text" in item && item.text}</p>
    ),
  );
  return (
    <details class="activity" aria-label="What was done" data-testid="activity">
      <summary data-testid="activity-summary">
        {running ? (
          <>
            <Icon name="busy" />
            <bdi>{runningLine(running)}</bdi>
            <Clock key={running.item.key} began={running.item.call.began} />
            <span class="hint">{running.item.call.progress?.message}</span>
          </>
        ) : (
          <span>{summaryOf(items)}</span>
        )}
        <Icon name="chevron" />
        {running && <Bar call={running.item.call} testId="activity-progress" />}
      </summary>
      <div class="activity-lines">{lines}</div>
    </details>
  );
}

/** The time since the call began, or else since it is on the screen, in whole seconds. */
function Clock({ began }: { began: number | undefined }) {
  const now = useNow();
  const [seen] = useState(now);
  const seconds = Math.max(0, Math.floor((now - (began ?? seen)) / 1_000));
  return <span class="clock">{seconds ? duration(seconds * 1_000).replace(".0 s", " s") : ""}</span>;
}
