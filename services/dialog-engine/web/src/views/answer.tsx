/** An answer of the model. What is whole of it stays the same nodes: nothing flickers, and a selection in it survives. */

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import type { AnswerItem } from "../core/types";
import { Growing, type Part } from "../markdown/growing";
import { nodesOf } from "../markdown/nodes";
import { PlainText } from "../markdown/plain-text";
import { CopyButton } from "./copy-button";

export function Answer({ item: { text, open } }: { item: AnswerItem }) {
  const growing = useRef<Growing>(null);
  growing.current ??= new Growing();
  const drawn = useRef(new Map<string, { part: Part; node: VNode }>());
  const next: typeof drawn.current = new Map();
  const parts = growing.current.update(text, open);
  for (const part of parts) {
    const known = drawn.current.get(part.key);
    next.set(part.key, known?.part === part ? known : { part, node: <Block key={part.key} part={part} /> });
  }
  drawn.current = next;
  return (
    <article class={open ? "answer open" : "answer"} aria-label="Answer" data-testid="message-assistant">
      <div class="prose" data-testid="message-text">
        {[...next.values()].map(({ node }) => node)}
      </div>
      <div class="answer-tools" hidden={open}>
        <CopyButton label="Copy" testId="copy-answer" text={() => text} />
      </div>
    </article>
  );
}

function Block({ part }: { part: Part }) {
  return part.kind === "tokens" ? <>{nodesOf(part.tokens, part.open)}</> : <PlainText {...part} />;
}
