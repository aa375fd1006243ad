/** A text of the model. What is whole of it stays the same nodes: nothing flickers, and a selection in it survives. */

import { useRef } from "preact/hooks";
import type { AnswerItem } from "../core/types";
import { Growing, type Part } from "../markdown/growing";
import { nodesOf, PlainText } from "../markdown/nodes";
import { useKept } from "./kept";

export function Answer({ item: { text, open } }: { item: AnswerItem }) {
  const growing = useRef<Growing>(null);
  growing.current ??= new Growing();
  const blocks = useKept(growing.current.update(text, open), (part) => <Block key={part.key} part={part} />);
  return (
    <div class={open ? "prose open" : "prose"} data-testid="message-text">{blocks}</div>
  );
}

function Block({ part }: { part: Part }) {
  return part.kind === "tokens" ? <>{nodesOf(part.tokens, part.open)}</> : <PlainText {...part} />;
}
