/** One turn: the question, one line of what was done, and the answer with all that a person is to know. */

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { answerOf } from "../core/items";
import { foldedOf, type Turn } from "../core/turns";
import { endFacts, noteText } from "../core/status";
import { turnWords } from "../core/words";
import type { EndItem, ErrorItem, Item, NoteItem, UserItem } from "../core/types";
import { Activity } from "./activity";
import { AnswerText } from "./answer-text";
import { CopyButton } from "./copy-button";
import { Icon } from "./icon";
import { useKept } from "./kept";
import { type BranchActions, Question } from "./question";
import type { QueueActions } from "./queue";
import { Tool, type ToolActions } from "./tool";

export interface Actions extends ToolActions, QueueActions, BranchActions {
  /** Writes the question of this turn into the message box once more. */
  again: (turnId: string) => void;
}

export function TurnView({ turn: { items, live, versions }, actions }: { turn: Turn; actions: Actions }) {
  const answer = useRef<HTMLElement>(null);
  const question = items.find((item) => item.kind === "user");
  const folded = foldedOf(items);
  const shown = items.filter((item) => item.kind !== "user" && !folded.includes(item));
  const drawn = useKept(shown, (item) => draw(item, actions));
  const text = answerOf(items);
  const end = items.find((item) => item.kind === "end");
  return (
    <section class={live ? "turn open" : "turn"} role="group" aria-label={nameOf(question)} data-testid="turn">
      {question && <Question item={question} versions={versions} actions={actions} />}
      {(folded.length > 0 || shown.length > 0) && (
        <article class="answer" aria-label="Answer" data-testid="message-assistant" ref={answer}>
          {folded.length > 0 && <Activity folded={folded} items={items} live={live} actions={actions} />}
          {drawn}
          <footer class="answer-actions" data-testid="answer-actions" hidden={live}>
            {text && <CopyButton label="Copy" testId="copy-answer" text={() => text} rich={() => prose(answer.current)} />}
            {question?.turnId && <Regenerate turnId={question.turnId} branch={actions.branch} />}
            <p class="facts" data-testid="facts">
              {end ? endFacts(end) : ""}
            </p>
          </footer>
        </article>
      )}
    </section>
  );
}

const MOST_NAME = 60;
const nameOf = (question: UserItem | undefined): string =>
  question ? `Question: ${question.text.slice(0, MOST_NAME)}` : "The end of an answer";

const prose = (answer: HTMLElement | null): Element[] => [...(answer?.querySelectorAll(":scope > .prose") ?? [])];

function draw(item: Item, actions: Actions): VNode {
  const { key } = item;
  switch (item.kind) {
    case "answer":
      return <AnswerText key={key} item={item} />;
    case "tool":
      return <Tool key={key} item={item} actions={actions} />;
    case "error":
      return <Failure key={key} item={item} again={actions.again} />;
    case "note":
      return <Note key={key} item={item} />;
    case "end":
      return <End key={key} item={item} />;
    default:
      return <></>;
  }
}

/** Asks for another answer to a question, of the model that is chosen in the message box. */
const Regenerate = ({ turnId, branch }: { turnId: string; branch: Actions["branch"] }) => (
  <button type="button" class="quiet copy" data-testid="regenerate" onClick={() => branch(turnId, null)}>
    Answer again
  </button>
);

const Failure = ({ item: { code, message, turnId }, again }: { item: ErrorItem; again: Actions["again"] }) => (
  <div class="turn-error" data-testid="turn-error" data-code={code}>
    <Icon name="alert" />
    <div>
      <p>{turnWords(code, message)}</p>
      {turnWords(code, message) !== message && <p class="hint">{message}</p>}
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

/** Why the answer ended early; nothing for one that is complete. */
const End = ({ item: { reason } }: { item: EndItem }) => {
  const words = noteText(reason);
  return words ? (
    <p class="note" data-testid="turn-note">
      {words}
    </p>
  ) : (
    <></>
  );
};
