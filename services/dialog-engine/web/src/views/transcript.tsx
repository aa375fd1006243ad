/**
 * The conversation from top to bottom: of each turn the question, one line of what was done, and the answer with all that a
 * person is to know; and below the turns what waits.
 */

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { answerOf } from "../core/items";
import { foldedOf, type Turn, turnsOf } from "../core/turns";
import { endFacts, noteText } from "../core/status";
import { wordsOf } from "../core/words";
import type { AnswerItem, ErrorItem, Item, State, UserItem } from "../core/types";
import type { Actions } from "../page/actions";
import { Activity } from "./activity";
import { Button } from "./button";
import { CopyButton } from "./copy-button";
import { Icon } from "./icon";
import { useKept } from "./kept";
import { missing, useLater } from "./loaded";
import { Question } from "./question";
import { Tool } from "./tool";

export function Conversation({ state: { items, waiting, phase, versions }, actions }: { state: State; actions: Actions }) {
  const turns = useRef<Turn[]>([]);
  turns.current = turnsOf(items, phase === "sending" || phase === "running", turns.current, versions);
  const drawn = useKept(turns.current, (turn) => <TurnView key={turn.key} turn={turn} actions={actions} />);
  const { WaitingMessage } = useLater(waiting.length > 0);
  return (
    <>
      <h2 class="unseen">Messages</h2>
      <div class="conversation" id="conversation" role="log" aria-live="off" aria-label="Conversation" data-testid="conversation">
        {drawn}
        {WaitingMessage &&
          waiting.map((each, at) => (
            <WaitingMessage key={each.turnId ?? `sent ${at}`} waiting={each} running={phase === "running"} actions={actions} />
          ))}
      </div>
    </>
  );
}

function TurnView({ turn: { items, live, versions }, actions }: { turn: Turn; actions: Actions }) {
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
            {question?.turnId && (
              <Button kind="quiet copy" testId="regenerate" onClick={() => actions.branch(question.turnId ?? "", null)}>
                Answer again
              </Button>
            )}
            <p class="facts" data-testid="facts">{end ? endFacts(end) : ""}</p>
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
    case "end": {
      const words = noteText(item.reason, item.kind === "note" ? item.count : 0); // empty for an answer that is complete
      return words ? <p key={key} class="note" data-testid="turn-note">{words}</p> : <></>;
    }
    default:
      return <></>;
  }
}

const Failure = ({ item: { code, message, turnId }, again }: { item: ErrorItem; again: Actions["again"] }) => (
  <div class="turn-error" data-testid="turn-error" data-code={code}>
    <Icon name="alert" />
    <div>
      <p>{wordsOf(code, message)}</p>
      {wordsOf(code, message) !== message && <p class="hint">{message}</p>}
      {turnId && (
        <Button kind="outlined" testId="ask-again" onClick={() => again(turnId)}>Write the question again</Button>
      )}
    </div>
  </div>
);

/** A text of the model: laid out as soon as that part of the page is there, and as it was written where it is missing. */
function AnswerText({ item }: { item: AnswerItem }) {
  const { Answer } = useLater(true);
  if (Answer) return <Answer item={item} />;
  return (
    <div class={item.open ? "prose open" : "prose"} data-testid="message-text">
      <div class="plain-text" dir="auto">{missing.value && item.text}</div>
    </div>
  );
}
