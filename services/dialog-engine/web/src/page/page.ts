/** What the page knows and what can be done on it: connects the parts, and decides what is drawn when. */

import { computed, signal } from "@preact/signals";
import { Api, ApiError, isAbort } from "../core/api";
import { needsApproval } from "../core/calls";
import { Chat } from "../core/chat";
import { SessionList } from "../core/sessions";
import { initial, Store } from "../core/state";
import { announcements } from "../core/status";
import type { About, Session, State } from "../core/types";
import { Choices } from "./choices";
import { onceSoon } from "./frames";
import { Keys } from "./keys";
import { byTouch } from "./pointer";
import { Question } from "./questions";
import { Scroll } from "./scroll";

const ANNOUNCEMENTS_KEPT = 10;

export class Page {
  store = new Store();
  keys = new Keys();
  api = new Api(this.keys);
  choices = new Choices();
  scroll = new Scroll(() => this.state.value.items.length === 0);
  deletion = new Question<{ title: string }>();

  // What is drawn.
  state = signal<State>(initial);
  sessions = signal<{ all: Session[]; hasMore: boolean }>({ all: [], hasMore: false });
  about = signal<About | null>(null);
  sender = signal("");
  notice = signal<unknown>(null);
  draft = signal("");
  drawerOpen = signal(false);
  spoken = signal<{ key: number; text: string }[]>([]);
  /** Counts how often the message box was to get the focus. */
  focusWished = signal(0);

  title = computed(() => {
    const { sessionId, title } = this.state.value;
    return this.sessions.value.all.find((session) => session.sessionId === sessionId)?.title || title;
  });

  #list = new SessionList(this.api, () => {
    this.sessions.value = { all: this.#list.all, hasMore: this.#list.hasMore };
  });
  #chat = new Chat({
    api: this.api,
    store: this.store,
    onError: (error) => this.showError(error),
    onSessions: () => this.refreshSessions(),
  });
  /** Each tab tells the others of its new turns; those of other devices are found when the tab gets the focus. */
  #tabs = new BroadcastChannel("callstream");
  #draw = onceSoon(() => (this.state.value = this.store.state));
  #announced = 0;

  /** What an item of the conversation can do; it stays the same object. */
  actions = { media: this.api.media, decide: this.api.decide, takeBack: () => this.#chat.takeBack() };

  constructor() {
    this.store.subscribe((state, before) => this.#changed(state, before));
    this.#tabs.addEventListener("message", ({ data }) => {
      if (data.sessionId === this.store.state.sessionId) this.#chat.join();
      this.refreshSessions();
    });
    addEventListener("popstate", () => this.#followAddress());
    addEventListener("focus", () => this.#refreshOnFocus());
  }

  /** Fetches all that the page shows at first. */
  start(): void {
    this.#followAddress();
    this.#list.refresh().catch((error: unknown) => this.showError(error));
    this.#learn().catch((error: unknown) => this.showError(error));
    this.#learnSender().catch(() => {}); // the other requests show what is wrong
    if (!byTouch()) this.focusComposer();
  }

  send(text: string): void {
    this.notice.value = null;
    this.scroll.follow();
    // A text that was not accepted goes back into the box, unless something new was written there.
    this.#chat.send(text, this.choices.chosen, () => (this.draft.value ||= text));
  }

  stop(): void {
    this.#chat.stop();
  }

  loadOlder(): void {
    this.#chat.loadOlder();
  }

  focusComposer(): void {
    this.focusWished.value += 1;
  }

  newConversation(): void {
    this.drawerOpen.value = false;
    this.notice.value = null;
    this.scroll.follow();
    this.#chat.clear();
    this.focusComposer();
  }

  async deleteSession({ sessionId, title }: Session): Promise<void> {
    if (!(await this.deletion.ask({ title: title || "New conversation" }))) return;
    await this.#chat.delete(sessionId);
    this.focusComposer();
  }

  moreSessions(): void {
    this.#list.more().catch((error: unknown) => this.showError(error));
  }

  async signOut(): Promise<void> {
    try {
      await this.api.signOut();
      location.reload();
    } catch (error) {
      this.showError(error);
    }
  }

  showError(error: unknown): void {
    if (isAbort(error)) return;
    if (!(error instanceof ApiError)) console.error(error);
    this.notice.value = error;
  }

  /** When the list cannot be fetched, the old one stays until the next refresh. */
  refreshSessions(): Promise<void> {
    return this.#list.refresh().catch(() => {});
  }

  async #refreshOnFocus(): Promise<void> {
    this.api.about().then(
      (about) => (this.about.value = about),
      () => {},
    );
    await this.refreshSessions();
    if (this.#list.runsIn(this.store.state.sessionId)) this.#chat.join();
  }

  #changed(state: State, before: State): void {
    writeAddress(state);
    this.#announce(announcements(before, state));
    if (asksNow(before) !== asksNow(state)) this.refreshSessions(); // the list shows it too
    if (before.older && before.older !== state.older && before.sessionId === state.sessionId) this.scroll.hold();
    if (before.phase === "sending" && state.phase === "running") this.#tabs.postMessage({ sessionId: state.sessionId });
    this.#draw();
  }

  /** Announces something to screen readers: they speak what is added to the live region. */
  #announce(texts: string[]): void {
    if (!texts.length) return;
    const added = texts.map((text) => ({ key: (this.#announced += 1), text }));
    this.spoken.value = [...this.spoken.value, ...added].slice(-ANNOUNCEMENTS_KEPT);
  }

  async #learn(): Promise<void> {
    const about = await this.api.about();
    this.choices.offer(await this.api.models());
    this.about.value = about;
  }

  async #learnSender(): Promise<void> {
    this.sender.value = (await this.api.me()).name;
  }

  #followAddress(): void {
    const sessionId = addressed();
    if (sessionId === this.store.state.sessionId) return;
    this.notice.value = null;
    this.scroll.follow();
    if (sessionId) this.#chat.open(sessionId);
    else this.#chat.clear();
  }
}

/** The address is `#/s/<sessionId>`, so that a reload and the back button find the conversation again. */
const addressed = (): string | null => decodeURIComponent(/^#\/s\/(.+)$/.exec(location.hash)?.[1] ?? "") || null;

function writeAddress({ sessionId }: State): void {
  if (sessionId === addressed()) return;
  history.pushState(null, "", sessionId ? `#/s/${encodeURIComponent(sessionId)}` : location.pathname);
}

/** Whether a call on the screen waits for approval. */
const asksNow = ({ items }: State): boolean => items.some((item) => item.kind === "tool" && needsApproval(item.call));
