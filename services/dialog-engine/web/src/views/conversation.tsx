/** The conversation from top to bottom: one view per item, kept as long as the item. */

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { duration, noteText } from "../core/status";
import type { ErrorItem, Item, NoteItem, Outcome, ReasoningItem, State, UserItem } from "../core/types";
import { Answer } from "./answer";
import { Icon } from "./icon";
import { type QueueActions, WaitingMessage } from "./queue";
import { Tool, type ToolActions } from "./tool";

interface Actions extends ToolActions, QueueActions {
  /** Writes the question of this turn into the message box once more. */
  again: (turnId: string) => void;
}

interface Props {
  state: State;
  actions: Actions;
}

export function Conversation({ state: { items, outcome, waiting, phase }, actions }: Props) {
  // An item that did not change keeps its node, which Preact passes over without a look at what is below it.
  const drawn = useRef(new Map<string, { item: Item; node: VNode }>());
  const next: typeof drawn.current = new Map();
  for (const item of items) {
    const known = drawn.current.get(item.key);
    next.set(item.key, known?.item === item ? known : { item, node: draw(item, actions) });
  }
  drawn.current = next;
  return (
    <>
      <div class="conversation" id="conversation" role="log" aria-live="off" aria-label="Conversation" data-testid="conversation">
        {[...next.values()].map(({ node }) => node)}
        {waiting.map((each) => (
          <WaitingMessage key={each.turnId} waiting={each} running={phase === "running"} actions={actions} />
        ))}
      </div>
      <p class="facts" data-testid="facts">
        {outcome ? facts(outcome) : ""}
      </p>
    </>
  );
}

function draw(item: Item, actions: Actions): VNode {
  const { key } = item;
  switch (item.kind) {
    case "user":
      return <Question key={key} item={item} />;
    case "reasoning":
      return <Reasoning key={key} item={item} />;
    case "answer":
      return <Answer key={key} item={item} />;
    case "tool":
      return <Tool key={key} item={item} actions={actions} />;
    case "error":
      return <Failure key={key} item={item} again={actions.again} />;
    case "note":
      return <Note key={key} item={item} />;
  }
}

function facts({ usage, ttftMs, model }: Outcome): string {
  const said = model ? [model.slice(model.indexOf(":") + 1)] : [];
  if (ttftMs !== undefined && Number.isFinite(ttftMs)) said.push(`First word after ${duration(ttftMs)}`);
  if (usage?.outputTokens) said.push(`${usage.estimated ? "≈ " : ""}${usage.inputTokens ?? 0} tokens in, ${usage.outputTokens} out`);
  return said.join(" · ");
}

const Question = ({ item: { text } }: { item: UserItem }) => (
  <article class="user" aria-label="You" data-testid="message-user">
    <div class="bubble" dir="auto">
      {text}
    </div>
  </article>
);

const Reasoning = ({ item: { text } }: { item: ReasoningItem }) => (
  <details class="reasoning" data-testid="reasoning">
    <summary>Reasoning</summary>
    <p dir="auto">{text}</p>
  </details>
);

const Failure = ({ item: { code, message, turnId }, again }: { item: ErrorItem; again: Actions["again"] }) => (
  <div class="turn-error" data-testid="turn-error">
    <Icon name="alert" />
    <div>
      <p>{message}</p>
      <code class="chip bad" data-testid="turn-error-code">
        {code}
      </code>{" "}
      {turnId && (
        <button type="button" class="outlined" data-testid="ask-again" onClick={() => again(turnId)}>
          Write the question again
        </button>
      )}
    </div>
  </div>
);

const Note = ({ item: { reason, count } }: { item: NoteItem }) => (
  <p class="note" data-testid="turn-note">
    {noteText(reason, count)}
  </p>
);
