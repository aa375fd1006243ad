/** A text of the model. What is whole of it stays the same nodes: nothing flickers, and a selection in it survives. */

import { Fragment } from "preact";
import { useRef } from "preact/hooks";
import type { AnswerItem } from "../core/types";
import { Growing } from "../markdown/growing";
import { nodesOf, PlainText } from "../markdown/nodes";
import { useKept } from "./kept";

export function Answer({ item: { text, open } }: { item: AnswerItem }) {
  const growing = useRef<Growing>(null);
  growing.current ??= new Growing();
  const blocks = useKept(growing.current.update(text, open), (part) =>
    part.kind === "tokens" ? (
      <Fragment key={part.key}>{nodesOf(part.tokens, part.open)}</Fragment>
    ) : (
      <PlainText {...part} />
    ),
  );
  return <div class={open ? "prose open" : "prose"} data-testid="message-text">{blocks}</div>;
}
