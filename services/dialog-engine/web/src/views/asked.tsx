/** A question of a call's server: a form, or an address to open; and afterwards how it ended. */

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../core/api";
import { ENDED, visible } from "../core/calls";
import { addressOf, answeredOf } from "../core/forms";
import { toolLabel } from "../core/status";
import type { Asked, Call } from "../core/types";
import { inWords, sentence } from "../core/words";
import type { Actions } from "../page/actions";
import { Expiry } from "./approval";
import { Fields, useFields } from "./asked-fields";
import { Button } from "./button";

const OVER = new Map([
  ["answered", "You answered"],
  ["declined", "You declined to answer"],
  ["cancelled", "You dismissed the question"],
  ["expired", "Nobody answered in time, and the call did not go on"],
  ["withdrawn", "The question was withdrawn"],
]);
const BY_PERSON = ["answered", "declined", "cancelled"];

interface Props {
  call: Call;
  turnId: string;
  actions: Actions;
  /** What gets the focus when a form disappears with the focus in it. */
  next: RefObject<HTMLElement | null>;
}

export const Questions = (props: Props) => (
  <>
    {(props.call.questions ?? []).map((asked) => (
      <Part key={asked.questionId} asked={asked} {...props} />
    ))}
  </>
);

function Part({ asked, call, turnId, actions: { drafts, answer }, next }: Props & { asked: Asked }) {
  const open = asked.status === "asked" && !ENDED.has(call.status);
  const form = useRef<HTMLFormElement>(null);
  const [wasOpen] = useState(open);
  const sentHere = useRef(false);
  const hadFocus = !open && Boolean(form.current?.contains(document.activeElement));
  useLayoutEffect(() => {
    if (hadFocus) next.current?.focus();
  });
  useEffect(() => {
    if (!open) drafts.keepEdited(asked.questionId, "");
  }, [open]);
  const send = async (body: object) => {
    sentHere.current = true;
    await answer(turnId, asked.questionId, body).catch((error: unknown) => {
      sentHere.current = false;
      throw error;
    });
  };
  const draft = { text: drafts.edited(asked.questionId), keep: (text: string) => drafts.keepEdited(asked.questionId, text) };
  const shared = { asked, call, send, form, draft };
  if (open) return asked.kind === "url" ? <AddressForm {...shared} /> : <FieldsForm {...shared} />;
  const elsewhere = wasOpen && !sentHere.current && BY_PERSON.includes(asked.status);
  return (
    <div class="tool-body">
      <h3>Question</h3>
      <div class="asked-over" data-testid="asked-over" data-status={asked.status}>
        <p class="asked-message">{visible(asked.message)}</p>
        <p>
          {OVER.get(asked.status) ?? "The call ended without an answer"}
          {elsewhere && " in another tab or on another device"}
          {asked.reason && `: ${visible(asked.reason)}`}.
        </p>
        {asked.content && (
          <dl data-testid="asked-content">
            {answeredOf(asked.schema ?? {}, asked.content).map(([label, value]) => (
              <div key={label}>
                <dt><bdi>{label}</bdi></dt> <dd><bdi>{value}</bdi></dd>
              </div>
            ))}
          </dl>
        )}
      </div>
    </div>
  );
}

interface FormProps {
  asked: Asked;
  call: Call;
  send: (body: object) => Promise<void>;
  form: RefObject<HTMLFormElement | null>;
  draft: { text: string; keep: (text: string) => void };
}

/** What fields are sent with, one time after the other, and why the last time was refused. */
function useSending(send: FormProps["send"]) {
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState<unknown>(null);
  const trySend = async (body: object) => {
    if (busy) return;
    setBusy(true);
    setRefused(null);
    await send(body).catch(setRefused);
    setBusy(false);
  };
  return { busy, refused, forgive: () => setRefused(null), trySend };
}

function FieldsForm({ asked, call, send, form, draft }: FormProps) {
  const { busy, refused, forgive, trySend } = useSending(send);
  const fields = useFields(asked.schema ?? {}, draft, refused, forgive);
  const submit = (event: Event) => {
    event.preventDefault();
    const content = fields.checked();
    if (content) trySend({ action: "accept", content });
  };
  return (
    <Frame {...{ asked, call, form, busy, submit, trySend }} refused={fields.others(refused)}>
      <Fields fields={fields} />
      <Frame.Actions asked={asked} trySend={trySend}>
        <Button type="submit" kind="primary" testId="asked-answer">Answer</Button>
      </Frame.Actions>
    </Frame>
  );
}

/** The address is opened by the person's click only; that is no answer yet: the server waits for that. */
function AddressForm({ asked, call, send, form, draft }: FormProps) {
  const { busy, refused, trySend } = useSending(send);
  const [clicked, setClicked] = useState(false);
  const address = addressOf(asked.url ?? "");
  const opened = clicked || draft.text !== "";
  const onOpen = () => {
    setClicked(true);
    draft.keep("opened");
  };
  const submit = (event: Event) => event.preventDefault();
  return (
    <Frame {...{ asked, call, form, busy, submit, trySend }} refused={refusal(refused)}>
      {address ? (
        <p class="asked-address">
          It asks you to open an address at <bdi class="asked-host" data-testid="asked-host">{address.host}</bdi>.
          Open it only if you trust that server and this host.
          <code class="data" data-testid="asked-url">{visible(address.href)}</code>
        </p>
      ) : (
        <p class="bad-text" data-testid="asked-no-address">Its address cannot be opened safely.</p>
      )}
      {opened && <p role="status" data-testid="asked-opened">The server waits. Come back here when you have done what the other page asks for.</p>}
      <Frame.Actions asked={asked} trySend={trySend}>
        {address && (
          <a
            class={opened ? "button outlined" : "button primary"}
            href={address.href}
            target="_blank"
            rel="noopener noreferrer"
            data-testid="asked-open"
            onClick={onOpen}
          >
            {opened ? "Open again" : `Open ${address.host}`}
          </a>
        )}
        {opened && (
          <Button kind="primary" testId="asked-done" onClick={() => trySend({ action: "accept" })}>I have done it</Button>
        )}
      </Frame.Actions>
    </Frame>
  );
}

interface FrameProps extends Pick<FormProps, "asked" | "call" | "form"> {
  busy: boolean;
  refused: string;
  submit: (event: Event) => void;
  trySend: (body: object) => Promise<void>;
  children: ComponentChildren;
}

function Frame({ asked, call, form, busy, refused, submit, children }: FrameProps) {
  const id = useId();
  const who = `${visible(call.server ?? "")} / ${toolLabel(call)}`;
  return (
    <form
      class="approval"
      data-testid="asked"
      aria-labelledby={id}
      aria-busy={busy /* a disabled button would lose the focus */}
      noValidate
      ref={form}
      onSubmit={submit}
      onKeyDown={(event) => event.key === "Escape" && event.stopPropagation() /* on the page it stops the answer */}
    >
      <p class="approval-why" id={id} data-testid="asked-by"><bdi>{who}</bdi> asks you:</p>
      <p class="asked-message" data-testid="asked-message">{visible(asked.message)}</p>
      {children}
      <p class="approval-error" role="alert" data-testid="asked-error">{refused}</p>
    </form>
  );
}

Frame.Actions = ({ asked, trySend, children }: Pick<FrameProps, "asked" | "trySend" | "children">) => (
  <div class="approval-actions">
    {children}
    <Button kind="outlined" testId="asked-decline" onClick={() => trySend({ action: "decline" })}>Decline</Button>
    <Button testId="asked-cancel" onClick={() => trySend({ action: "cancel" })}>Cancel</Button>
    <Expiry expiresAt={asked.expiresAt ?? ""} />
  </div>
);

const refusal = (error: unknown): string =>
  error === null ? "" : error instanceof ApiError ? inWords(error) : sentence(String(error));
