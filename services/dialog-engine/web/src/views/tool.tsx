/** One tool call as a card: its arguments, its state and its result. */

import { useEffect, useRef, useState } from "preact/hooks";
import { answered, needsApproval, openQuestions, opensItself, refusedByPerson, visible } from "../core/calls";
import { delayReason, duration, statusWord, toolLabel } from "../core/status";
import type { Call, ToolItem } from "../core/types";
import { mainArgument } from "../core/turns";
import type { Actions } from "../page/actions";
import { ApprovalPart, type Decide } from "./approval";
import { Icon, type IconName } from "./icon";
import { useLater } from "./loaded";
import { Outcome, pretty } from "./result";

const ICONS = new Map<string, IconName>([
  ["succeeded", "check"],
  ["failed", "cross"],
  ["timeout", "clock"],
  ["cancelled", "stop"],
  ["unknown", "question"],
  ["refused", "cross"],
]);

export function Tool({ item: { call, turnId }, actions }: { item: ToolItem; actions: Actions }) {
  const approval = needsApproval(call);
  const questions = openQuestions(call).map(({ questionId }) => questionId);
  const waits = approval || questions.length > 0;
  const summary = useRef<HTMLElement>(null);
  const [chosen, setChosen] = useState<boolean | null>(null);
  const asked = approval ? (call.approval?.hash ?? "") : questions.join() || null;
  useEffect(() => {
    if (asked !== null) setChosen(null);
  }, [asked]);
  const open = chosen ?? opensItself(call);
  const { Questions } = useLater(call.questions?.length);
  const decide: Decide = (body) => actions.decide(turnId ?? "", call.correlationId ?? "", body);
  return (
    <details
      class="tool" aria-label={`Call of ${toolLabel(call)}`} data-testid="tool-card" data-status={call.status}
      data-tool={call.toolName} data-approval={call.approval?.status ?? ""} open={open}
      onToggle={({ currentTarget }) => currentTarget.open !== open && setChosen(currentTarget.open)}
    >
      <summary ref={summary}>
        <Head call={call} waits={approval ? "Needs approval" : waits ? "Asks you" : ""} />
      </summary>
      <div class="tool-progress" hidden={waits || call.status !== "running"}>
        <Bar call={call} testId="tool-progress" />
        <p class="tool-message" data-testid="tool-message">{call.progress?.message ?? ""}</p>
      </div>
      <p class="tool-delay" data-testid="tool-delay">{waits ? "" : delayReason(call)}</p>
      <div class="tool-body" hidden={approval /* the form has them */}>
        <h3>Arguments</h3>
        <pre class="data" data-testid="tool-args" aria-label="Arguments" tabIndex={0}>
          {visible(pretty(call.arguments ?? {}))}
        </pre>
      </div>
      {call.approval && <ApprovalPart call={call} decide={decide} next={summary} />}
      {call.questions && Questions && <Questions call={call} turnId={turnId ?? ""} actions={actions} next={summary} />}
      <div class="tool-body">{answered(call) && <Outcome call={call} media={actions.media} />}</div>
    </details>
  );
}

function Head({ call, waits }: { call: Call; waits: string }) {
  const attempt = (call.attempt ?? 1) > 1 && !answered(call) ? ` (attempt ${call.attempt})` : "";
  return (
    <>
      <span class="mark">
        <Icon name={waits ? "alert" : (ICONS.get(call.status) ?? "busy")} />
      </span>
      <span class="tool-title">
        <bdi class="tool-name" data-testid="tool-name" title={call.toolName ?? ""}>{toolLabel(call)}</bdi>
        <bdi class="tool-server">{visible(call.server ?? "")}</bdi>
        <bdi class="tool-argument">{mainArgument(call)}</bdi>
        <bdi class="tool-server" data-testid="tool-quoted-title">{call.title ? `“${visible(call.title)}”` : ""}</bdi>
      </span>
      <span class="tool-state">
        <span class="tool-status" data-testid="tool-status">
          {waits || (refusedByPerson(call) ? "You refused it" : statusWord(call.status) + attempt)}
        </span>
        <span class="tool-duration" data-testid="tool-duration">
          {call.durationMs === undefined ? "" : duration(call.durationMs)}
        </span>
      </span>
      <Icon name="chevron" />
    </>
  );
}

export function Bar({ call, testId }: { call: Call; testId: string }) {
  const { value, total } = call.progress ?? {};
  const known = Number.isFinite(value) && total !== undefined && total > 0;
  return (
    <progress
      data-testid={testId} aria-label={`Progress of ${toolLabel(call)}`}
      key={String(known) /* without a value it is another element: Preact would leave a value of 0 */}
      {...(known ? { max: total, value } : {})}
    />
  );
}
