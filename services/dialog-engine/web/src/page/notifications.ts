/** Notifications of the browser, for what happens while no tab is looked at: by a switch, which is off at first. */

import { signal } from "@preact/signals";
import type { Session } from "../core/types";
import { addressOf } from "./address";
import { keep, kept, ofBrowser } from "./storage";

const STORED = "callstream.notify";

export class Notifications {
  /** Whether this browser can notify at all. */
  possible = "Notification" in globalThis;
  /** What the stream said last of each conversation: the list may be fetched again before the stream says it. */
  #heard = new Map<string, Session>();
  /** The lock that each tab of the person shares while it is seen. */
  #seen = "";
  #away = new AbortController();
  on = signal(this.possible && kept(ofBrowser, STORED) === "on" && Notification.permission === "granted");

  constructor() {
    addEventListener("visibilitychange", () => this.#look());
  }

  /** Whose tabs are looked for; without a digest there is no other one. */
  belongTo(digest: string | null): void {
    this.#seen = digest && (navigator as { locks?: LockManager }).locks ? `callstream.seen.${digest}` : "";
    this.#look();
  }

  async switch(): Promise<void> {
    this.on.value = !this.on.value && (await Notification.requestPermission()) === "granted";
    keep(ofBrowser, STORED, this.on.value ? "on" : "");
  }

  /** A conversation has changed: says that its answer has ended or needs approval, when no tab is seen. Tabs share a tag. */
  changed(listed: Session | undefined, after: Session): void {
    const before = this.#heard.get(after.sessionId) ?? listed;
    this.#heard.set(after.sessionId, after);
    const approval = Boolean(after.awaitsApproval && !before?.awaitsApproval);
    const asks = approval || Boolean(after.awaitsAnswer && !before?.awaitsAnswer);
    const ended = Boolean(before?.runningTurnId && !after.runningTurnId);
    if (!this.on.value || !document.hidden || !(asks || ended)) return;
    const show = () => notify(after, approval ? "A tool call needs your approval." : asks ? "A tool asks you something." : "The answer is there.");
    if (!this.#seen) return show();
    navigator.locks.request(this.#seen, { ifAvailable: true }, (lock) => lock && show());
  }

  #look(): void {
    this.#away.abort();
    if (document.hidden || !this.#seen) return;
    const { signal } = (this.#away = new AbortController());
    const away = new Promise((resolve) => signal.addEventListener("abort", resolve));
    navigator.locks.request(this.#seen, { mode: "shared", signal }, () => away).catch(() => {}); // hidden before it was given
  }
}

function notify({ title, sessionId }: Session, body: string): void {
  const shown = new Notification(title || "New conversation", { body, tag: sessionId });
  shown.onclick = () => {
    window.focus();
    location.hash = addressOf(sessionId);
    shown.close();
  };
}
