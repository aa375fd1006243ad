/** The whole page. */

import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { statusLine } from "../core/status";
import type { Page } from "../page/page";
import { Button } from "./button";
import { Composer, hasFiles, NO_FILES } from "./composer";
import { KeyDialog } from "./dialogs";
import { Head } from "./head";
import { Icon } from "./icon";
import { usePart } from "./kept";
import { useLater } from "./loaded";
import { Notice } from "./notice";
import { Sidebar } from "./sidebar";
import { Conversation } from "./transcript";

export function App({ page, icon }: { page: Page; icon: string }) {
  const narrow = useNarrow(page);
  const open = page.drawerOpen.value && narrow;
  useDrawerFocus(open, narrow);
  useWindow(page);
  const { DoubtDialog, OfferDialog } = useLater(page.doubt.asked.value);
  const skip = (event: Event) => {
    event.preventDefault(); // the address belongs to the conversation
    page.focusComposer();
  };
  return (
    <div class={open ? "page drawer-open" : "page"}>
      <a class="skip" id="skip" href="#message" onClick={skip}>Skip to the message box</a>
      <Sidebar page={page} inert={narrow && !open} icon={icon} />
      <div class="backdrop" onClick={() => (page.drawerOpen.value = false)} />
      <main class="main" id="main" inert={open}>
        <Head page={page} />
        <Middle page={page} />
        <Foot page={page} />
      </main>
      <div class="unseen" id="live" role="status" aria-live="polite" data-testid="live">
        {page.announcements.spoken.value.map(({ key, text }) => <p key={key}>{text}</p>)}
      </div>
      <KeyDialog page={page} />
      {DoubtDialog && <DoubtDialog page={page} />}
      {OfferDialog && <OfferDialog page={page} />}
    </div>
  );
}

function Middle({ page }: { page: Page }) {
  const scroller = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (scroller.current && column.current) page.scroll.attach(scroller.current, column.current);
  }, []);
  const state = page.state.value;
  return (
    <div class="scroller" id="scroller" tabIndex={-1} ref={scroller}>
      <div class="column" id="column" ref={column}>
        <Empty page={page} />
        <Older page={page} scroller={scroller} />
        <p class="hint printed" hidden={state.older === null}>Earlier messages were not loaded, and are not printed.</p>
        <Conversation state={state} actions={page.actions} />
      </div>
    </div>
  );
}

const SUGGESTIONS = [
  "What time is it in Tokyo and in Paris?",
  "What is 17 * 23 + 4?",
  "Run a slow job for 5 seconds",
  "Call the failing tool",
];

/** The first thing seen: what the page is for, and things to try. */
function Empty({ page }: { page: Page }) {
  const begun = usePart(page, ({ items, phase }) => items.length > 0 || phase !== "idle");
  const ask = (text: string) => {
    page.focusComposer();
    page.send(text);
  };
  return (
    <section class="empty" data-testid="empty-state" aria-labelledby="empty-title" hidden={begun}>
      <h2 id="empty-title">What would you like to try?</h2>
      <p>Ask something. When a tool is needed, you see each call here as it happens.</p>
      <p class="scripted" data-testid="scripted-banner" hidden={!page.about.value?.model.scripted}>
        <Icon name="alert" />
        <span>
          <strong>Scripted demo model.</strong> The answers come from a script, not from a language model. The tool calls
          are real.
        </span>
      </p>
      <div class="suggestions">
        {SUGGESTIONS.map((text) => (
          <Button key={text} kind="outlined" testId="suggestion" onClick={() => ask(text)}>{text}</Button>
        ))}
      </div>
    </section>
  );
}

/** How far from the first message on the screen the ones before it are loaded, in CSS pixels. */
const NEAR_PX = 600;

/** The messages before those on the screen come when they are nearly in sight, or are asked for. */
function Older({ page, scroller }: { page: Page; scroller: RefObject<HTMLDivElement | null> }) {
  const button = useRef<HTMLButtonElement>(null);
  const older = usePart(page, (state) => state.older);
  useEffect(() => {
    if (!button.current || older === null) return undefined;
    const seen = new IntersectionObserver(([entry]) => entry?.isIntersecting && page.chat.loadOlder(), {
      root: scroller.current,
      rootMargin: `${NEAR_PX}px 0px 0px`,
    });
    seen.observe(button.current);
    return () => seen.disconnect();
  }, [older]);
  return (
    <Button testId="older" hidden={older === null} ref={button} onClick={() => page.chat.loadOlder()}>
      Show earlier messages
    </Button>
  );
}

function Foot({ page }: { page: Page }) {
  const status = usePart(page, statusLine);
  const connection = usePart(page, ({ phase, connection }) => (connection === "live" ? phase : connection));
  return (
    <footer class="foot">
      <Button kind="outlined jump" testId="jump" hidden={!page.scroll.away.value} onClick={() => page.scroll.follow()}>
        <Icon name="down" /> Newest
      </Button>
      <Notice page={page} />
      <p class="status" id="status" data-testid="status" data-state={connection}>{status}</p>
      <Composer page={page} />
      <p class="hint keys" id="keys">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> makes a new line, <kbd>Esc</kbd> stops the answer.
      </p>
    </footer>
  );
}

/** Whether the list is a drawer; a window that becomes wider or narrower closes it. */
function useNarrow(page: Page): boolean {
  const narrow = useSignal(matchMedia("(max-width: 52rem)").matches);
  useEffect(() => {
    matchMedia("(max-width: 52rem)").addEventListener("change", ({ matches }) => {
      narrow.value = matches;
      page.drawerOpen.value = false;
    });
  }, []);
  return narrow.value;
}

/** The focus goes into the drawer when it opens, and back to its button when it closes. */
function useDrawerFocus(open: boolean, narrow: boolean): void {
  const was = useRef(open);
  useLayoutEffect(() => {
    if (open === was.current) return;
    was.current = open;
    if (open) document.getElementById("new-conversation")?.focus();
    else if (narrow) document.getElementById("sidebar-toggle")?.focus();
  }, [open]);
}

/** What is pressed or dropped anywhere on the page, which is there for as long as its document. */
function useWindow(page: Page): void {
  useEffect(() => {
    // Escape closes the drawer, or stops the answer; in an input method it ends the composition only.
    addEventListener("keydown", ({ key, isComposing }) => {
      if (key !== "Escape" || isComposing || document.querySelector("dialog[open]")) return;
      if (page.drawerOpen.value) page.drawerOpen.value = false;
      else page.chat.stop();
    });
    // A file that is dropped would be opened in place of the page.
    const onDrag = (event: DragEvent) => {
      if (!hasFiles(event.dataTransfer)) return;
      event.preventDefault();
      if (event.type === "drop") page.notices.show(NO_FILES);
    };
    addEventListener("dragover", onDrag);
    addEventListener("drop", onDrag);
  }, []);
}
