/** The whole page. */

import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { statusLine } from "../core/status";
import type { Page } from "../page/page";
import { Composer, hasFiles } from "./composer";
import { Conversation } from "./conversation";
import { KeyDialog } from "./dialogs";
import { Empty } from "./empty";
import { Head } from "./head";
import { Icon } from "./icon";
import { load, parts } from "./loaded";
import { Notice } from "./notice";
import { Sidebar } from "./sidebar";

export function App({ page, icon }: { page: Page; icon: string }) {
  const narrow = useNarrow(page);
  const open = page.drawerOpen.value && narrow;
  useDrawerFocus(open, narrow);
  useKeys(page);
  useDrops(page);
  const skip = (event: Event) => {
    event.preventDefault(); // the address belongs to the conversation
    page.focusComposer();
  };
  return (
    <div class={open ? "page drawer-open" : "page"}>
      <a class="skip" id="skip" href="#message" onClick={skip}>
        Skip to the message box
      </a>
      <Sidebar page={page} inert={narrow && !open} icon={icon} />
      <div class="backdrop" onClick={() => (page.drawerOpen.value = false)} />
      <main class="main" id="main" inert={open}>
        <Head page={page} />
        <Middle page={page} />
        <Foot page={page} />
      </main>
      <div class="unseen" id="live" role="status" aria-live="polite" data-testid="live">
        {page.spoken.value.map(({ key, text }) => (
          <p key={key}>{text}</p>
        ))}
      </div>
      <KeyDialog page={page} />
      <Confirmations page={page} />
    </div>
  );
}

/** The dialogs that ask before something is done. */
function Confirmations({ page }: { page: Page }) {
  const asked = page.deletion.asked.value ?? page.leaving.asked.value;
  useEffect(() => {
    load().catch(() => {}); // asked for again with the next question
  }, [asked]);
  const { DeleteDialog, LeavingDialog } = parts.value ?? {};
  return (
    <>
      {DeleteDialog && <DeleteDialog page={page} />}
      {LeavingDialog && <LeavingDialog page={page} />}
    </>
  );
}

function Middle({ page }: { page: Page }) {
  const scroller = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    return scroller.current && column.current ? page.scroll.attach(scroller.current, column.current) : undefined;
  }, []);
  const state = page.state.value;
  return (
    <div class="scroller" id="scroller" tabIndex={-1} ref={scroller}>
      <div class="column" id="column" ref={column}>
        <Empty page={page} />
        <Older page={page} scroller={scroller} />
        <p class="hint printed" hidden={state.older === null}>
          Earlier messages were not loaded, and are not printed.
        </p>
        <Conversation state={state} actions={page.actions} />
      </div>
    </div>
  );
}

/** How far from the first message on the screen the ones before it are loaded, in CSS pixels. */
const NEAR_PX = 600;

/** The messages before those on the screen come when they are nearly in sight, or are asked for. */
function Older({ page, scroller }: { page: Page; scroller: RefObject<HTMLDivElement | null> }) {
  const button = useRef<HTMLButtonElement>(null);
  const { older } = page.state.value;
  useEffect(() => {
    if (!button.current || older === null) return undefined;
    const seen = new IntersectionObserver(([entry]) => entry?.isIntersecting && page.loadOlder(), {
      root: scroller.current,
      rootMargin: `${NEAR_PX}px 0px 0px`,
    });
    seen.observe(button.current);
    return () => seen.disconnect();
  }, [older]);
  return (
    <button type="button" class="quiet" data-testid="older" hidden={older === null} ref={button} onClick={() => page.loadOlder()}>
      Show earlier messages
    </button>
  );
}

function Foot({ page }: { page: Page }) {
  const state = page.state.value;
  return (
    <footer class="foot">
      <button
        type="button"
        class="outlined jump"
        data-testid="jump"
        hidden={!page.scroll.away.value}
        onClick={() => page.scroll.follow()}
      >
        <Icon name="down" /> Newest
      </button>
      <Notice page={page} />
      <p class="status" id="status" data-testid="status" data-state={state.connection === "live" ? state.phase : state.connection}>
        {statusLine(state)}
      </p>
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
    const query = matchMedia("(max-width: 52rem)");
    const change = () => {
      narrow.value = query.matches;
      page.drawerOpen.value = false;
    };
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
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

/** Escape closes the drawer, or stops the answer. */
function useKeys(page: Page): void {
  useEffect(() => {
    const onKeyDown = ({ key, isComposing }: KeyboardEvent) => {
      // In an input method Escape ends the composition only.
      if (key !== "Escape" || isComposing || document.querySelector("dialog[open]")) return;
      if (page.drawerOpen.value) page.drawerOpen.value = false;
      else page.stop();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

/** A file that is dropped anywhere would be opened in place of the page. */
function useDrops(page: Page): void {
  useEffect(() => {
    const onDrag = (event: DragEvent) => {
      if (!hasFiles(event.dataTransfer)) return;
      event.preventDefault();
      if (event.type === "drop") page.refuseFiles();
    };
    addEventListener("dragover", onDrag);
    addEventListener("drop", onDrag);
    return () => {
      removeEventListener("dragover", onDrag);
      removeEventListener("drop", onDrag);
    };
  }, []);
}
