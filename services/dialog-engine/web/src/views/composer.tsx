/** The message box. Enter sends, Shift+Enter makes a new line, Escape stops the answer. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { waitsForYou } from "../core/status";
import type { Page } from "../page/page";
import { byTouch } from "../page/device";
import { Button } from "./button";
import { Icon } from "./icon";
import { usePart } from "./kept";
import { useLater } from "./loaded";

/** Files come with a later release: one that is dropped or pasted must not take the place of the page. */
export const NO_FILES = "Files cannot be attached yet. What you wrote is still here: paste the text of the file instead.";

export function Composer({ page }: { page: Page }) {
  const phase = usePart(page, (state) => state.phase);
  const stopping = usePart(page, ({ turn }) => turn?.stopping ?? false);
  const declinable = usePart(page, waitsForYou);
  const running = phase === "running";
  const ready = phase === "idle" || running;
  const input = useRef<HTMLTextAreaElement>(null);
  const stop = useRef<HTMLButtonElement>(null);
  const stopGoes = (!running || stopping) && stop.current !== null && document.activeElement === stop.current;
  const wished = page.focusWished.value;
  useLayoutEffect(() => {
    if (stopGoes) input.current?.focus();
  });
  useLayoutEffect(() => {
    if (wished) input.current?.focus();
  }, [wished]);
  const draft = page.drafts.text.value;
  useLayoutEffect(() => fit(input.current), [draft]);

  const { AttachedList, OfferList } = useLater(true);
  const { offers } = page;
  const send = async (decline = false) => {
    const text = (input.current?.value ?? "").trim();
    if (!text || !ready) return;
    const { sessionId } = page.store.state;
    const whole = offers.attached.length ? await page.shown(offers.whole(text)) : text;
    if (!whole || page.store.state.sessionId !== sessionId || !page.drafts.text.peek()) return;
    page.drafts.write("");
    offers.sent();
    page.send(whole, decline);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    send();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || !(event.shiftKey || byTouch())) submit(event);
  };
  return (
    <form class="composer" id="composer" onSubmit={submit}>
      {AttachedList && <AttachedList page={page} />}
      {OfferList && <OfferList page={page} input={input} />}
      <label class="unseen" for="message">Message</label>
      <textarea
        id="message" rows={1} dir="auto" placeholder="Write a message" enterkeyhint={byTouch() ? "enter" : "send"}
        autocomplete="off" aria-describedby="keys" data-testid="composer-input" ref={input} value={draft}
        onInput={({ currentTarget }) => page.drafts.write(currentTarget.value)}
        onPaste={(event) => hasFiles(event.clipboardData) && page.notices.show(NO_FILES)} onKeyDown={onKeyDown}
      />
      {draft.trim() && declinable && (
        <Button kind="outlined" testId="decline-and-send" onClick={() => send(true)}>Decline and send</Button>
      )}
      <Button
        kind="outlined" testId="stop" aria-label="Stop" ref={stop} hidden={!running} disabled={stopping}
        onClick={() => page.chat.stop()}
      >
        <Icon name="stop" /> <span class="word">Stop</span>
      </Button>
      <Button type="submit" kind="primary square" testId="send" aria-label="Send" disabled={!ready || !draft.trim()}>
        <Icon name="up" />
      </Button>
    </form>
  );
}

/** As high as its text, where the browser does not do that itself. */
function fit(input: HTMLTextAreaElement | null): void {
  if (!input || CSS.supports("field-sizing", "content")) return;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

/** Whether files, and no text, are pasted or dropped. */
export const hasFiles = (data: DataTransfer | null): boolean =>
  data !== null && data.types.includes("Files") && !data.types.includes("text/plain");
