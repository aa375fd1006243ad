/** The approval on a card: a person reads what would be run, may change it, and decides. */

import type { RefObject } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../core/api";
import { needsApproval, visible } from "../core/calls";
import { toolLabel, until } from "../core/status";
import type { Approval, Call } from "../core/types";
import { Button } from "./button";
import { useNow } from "./kept";

/** Sends a decision to the engine; throws the ApiError of a refusal. */
export type Decide = (body: object) => Promise<unknown>;

const ALWAYS = "This tool runs only if you approve.";
const WHY = new Map([
  ["destructive", "This tool may change or destroy something that cannot be restored. It runs only if you approve."],
  ["always", ALWAYS],
]);
const DECIDED = new Map([
  ["approved", "Approved."],
  ["edited", "Approved with changed arguments."],
  ["refused", "Refused."],
  ["expired", "There was no decision in time, so it was not run."],
]);

interface Props {
  call: Call;
  decide: Decide;
  /** What gets the focus when the form disappears with the focus in it. */
  next: RefObject<HTMLElement | null>;
}

export function ApprovalPart({ call, decide, next }: Props) {
  const { approval } = call;
  const open = needsApproval(call);
  const form = useRef<HTMLFormElement>(null);
  const hadFocus = !open && Boolean(form.current?.contains(document.activeElement));
  useLayoutEffect(() => {
    if (hadFocus) next.current?.focus();
  });
  if (!approval) return null;
  if (open) return <Form call={call} approval={approval} decide={decide} form={form} />;
  const word = DECIDED.get(approval.status);
  if (!word) return null;
  return (
    <div class="tool-body">
      <h3>Approval</h3>
      <p class="approval-decided" data-testid="approval-decided">
        {[word, approval.reason].filter(Boolean).join(" Reason: ")}
      </p>
    </div>
  );
}

type FormProps = Omit<Props, "next"> & { approval: Approval; form: RefObject<HTMLFormElement | null> };

function Form({ call, approval, decide, form }: FormProps) {
  const id = useId();
  const reason = useRef<HTMLInputElement>(null);
  const { asked, value, setValue } = useArguments(call, approval);
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState("");
  const problem = problemOf(value);
  const said = problem || refused;
  const edited = value !== asked;

  const send = async (body: object) => {
    if (busy) return;
    setBusy(true);
    setRefused("");
    await decide(body).catch((error: unknown) => setRefused(refusal(error)));
    setBusy(false);
  };
  const approve = (event: Event) => {
    event.preventDefault();
    if (!problem) send({ decision: "approve", hash: approval.hash, ...(edited && { arguments: JSON.parse(value) }) });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") event.stopPropagation(); // on the page it stops the whole answer
    if (event.key === "Enter" && event.target === reason.current) event.preventDefault(); // Enter in the reason must not approve
  };
  return (
    <form
      class="approval" data-testid="approval" aria-label={`Approval of ${toolLabel(call)}`}
      aria-busy={busy /* a disabled button would lose the focus */}
      ref={form} onSubmit={approve} onKeyDown={onKeyDown}
    >
      <p class="approval-why" data-testid="approval-tool">
        <bdi>{`${visible(call.server ?? "")} / ${toolLabel(call)}`}</bdi>
        {call.title && <bdi>{` (its server calls it “${visible(call.title)}”)`}</bdi>}
      </p>
      <p class="approval-why">{WHY.get(approval.policy ?? "always") ?? ALWAYS}</p>
      <label for={`${id}-arguments`}>Arguments, as JSON; you may change them</label>
      <textarea
        id={`${id}-arguments`} class="data" rows={Math.min(12, asked.split("\n").length + 1)} spellcheck={false}
        autocapitalize="off" autocomplete="off" aria-describedby={`${id}-error`}
        aria-invalid={said ? "true" : undefined} data-testid="approval-arguments" value={value}
        onInput={({ currentTarget }) => {
          setValue(currentTarget.value);
          setRefused("");
        }}
      />
      <p id={`${id}-error`} class="approval-error" role="alert" data-testid="approval-error">{said}</p>
      <label for={`${id}-reason`}>Reason for refusing</label>
      <input
        id={`${id}-reason`} ref={reason} maxLength={1000} autocomplete="off" placeholder="Optional; the model gets it"
        data-testid="approval-reason"
      />
      <div class="approval-actions">
        <Button type="submit" kind="primary" testId="approve" disabled={problem !== ""}>
          {edited ? "Approve with changes" : "Approve"}
        </Button>
        <Button
          kind="outlined" testId="refuse"
          onClick={() => send({ decision: "refuse", reason: reason.current?.value.trim() ?? "" })}
        >
          Refuse
        </Button>
        <Expiry expiresAt={approval.expiresAt ?? ""} />
      </div>
    </form>
  );
}

/** The text of the arguments: as they are asked about, until the user has changed it. */
function useArguments(call: Call, { hash }: Approval) {
  const text = visible(JSON.stringify(call.arguments ?? {}, null, 2));
  const [field, setField] = useState({ asked: text, value: text });
  useLayoutEffect(() => {
    setField(({ asked, value }) => ({ asked: text, value: value === asked ? text : value })); // what the user wrote stays
  }, [hash]);
  return { ...field, setValue: (value: string) => setField(({ asked }) => ({ asked, value })) };
}

export const Expiry = ({ expiresAt }: { expiresAt: string }) => (
  <span class="approval-expiry" data-testid="approval-expiry">{until(Date.parse(expiresAt) - useNow())}</span>
);

function refusal(error: unknown): string {
  const fields = error instanceof ApiError ? error.fields : [];
  return fields.map(({ field, message }) => `${field}: ${message}`).join(" ") || errorText(error);
}

const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** Why the text is not a JSON object; empty when it is one. */
function problemOf(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    const fits = value !== null && typeof value === "object" && !Array.isArray(value);
    return fits ? "" : 'Write one JSON object, like {"name": "value"}.';
  } catch (error) {
    return `This is not valid JSON: ${errorText(error)}`;
  }
}
