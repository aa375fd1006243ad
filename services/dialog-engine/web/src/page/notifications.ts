/** Notifications of the browser, for what happens while no tab is looked at: by a switch, which is off at first. */

import { signal } from "@preact/signals";
import type { Session } from "../core/types";
import { keep, kept, ofBrowser } from "./storage";

const STORED = "callstream.notify";

export class Notifications {
  /** Whether this browser can notify at all. */
  possible = "Notification" in globalThis;
  /** What the stream said last of each conversation: the list may be fetched again before the stream says it. */
  #heard = new Map<string, Session>();
  on = signal(this.possible && kept(ofBrowser, STORED) === "on" && Notification.permission === "granted");

  async switch(): Promise<void> {
    this.on.value = !this.on.value && (await Notification.requestPermission()) === "granted";
    keep(ofBrowser, STORED, this.on.value ? "on" : "");
  }

  /** A conversation has changed: says that its answer has ended or needs approval, when this tab is hidden. Tabs share a tag. */
  changed(listed: Session | undefined, after: Session): void {
    const before = this.#heard.get(after.sessionId) ?? listed;
    this.#heard.set(after.sessionId, after);
    const asks = Boolean(after.awaitsApproval && !before?.awaitsApproval);
    const ended = Boolean(before?.runningTurnId && !after.runningTurnId);
    if (!this.on.value || !document.hidden || !(asks || ended)) return;
    const body = asks ? "A tool call needs your approval." : "The answer is there.";
    const shown = new Notification(after.title || "New conversation", { body, tag: after.sessionId });
    shown.onclick = () => {
      window.focus();
      location.hash = `#/s/${encodeURIComponent(after.sessionId)}`;
      shown.close();
    };
  }
}
