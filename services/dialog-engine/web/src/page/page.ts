/** What the page knows and what can be done on it: connects the parts, and decides what is drawn when. */

import { computed, effect, signal } from "@preact/signals";
import { Api, ApiError } from "../core/api";
import { Chat } from "../core/chat";
import { Feed, type FeedEvent } from "../core/feed";
import { isTransient } from "../core/follow";
import { backOff, pause, tryNow } from "../core/pause";
import { Places } from "../core/places";
import { SessionList } from "../core/sessions";
import { initial, Store } from "../core/state";
import { announcements } from "../core/status";
import type { About, MadeCall, Session, State } from "../core/types";
import { Choices } from "./choices";
import { Drafts } from "./drafts";
import { onceSoon } from "./frames";
import { Keys } from "./keys";
import { Notices } from "./notices";
import { Notifications } from "./notifications";
import { digestOf, Tabs } from "./person";
import { byTouch } from "./pointer";
import { Question } from "./questions";
import { Scroll } from "./scroll";
import { comeBack, leaveToSignIn } from "./sign-in";

const ANNOUNCEMENTS_KEPT = 10;
/** How often the times of the list move, in ms. */
const TICK_MS = 5_000;
const NO_FILES = "Files cannot be attached yet. What you wrote is still here: paste the text of the file instead.";

export class Page {
  store = new Store();
  notices = new Notices();
  notifications = new Notifications();
  keys: Keys = new Keys((key) => this.api.check(key));
  api: Api = new Api(this.keys, (request) => this.notices.answered(request));
  drafts = new Drafts();
  choices = new Choices();
  scroll = new Scroll(() => this.state.value.items.length === 0);
  deletion = new Question<{ title: string; runs: boolean }>();
  /** Whether to ask again, though these calls stay as they are. */
  leaving = new Question<{ calls: MadeCall[]; more: boolean }>();

  // What is drawn.
  state = signal<State>(initial);
  sessions = signal<{ all: Session[]; hasMore: boolean }>({ all: [], hasMore: false });
  /** Whether the list has come: until then it is not empty, but unknown. */
  listed = signal<"loading" | "away" | "ready">("loading");
  now = signal(Date.now());
  about = signal<About | null>(null);
  sender = signal("");
  drawerOpen = signal(false);
  spoken = signal<{ key: number; text: string }[]>([]);
  /** Counts how often the message box was to get the focus. */
  focusWished = signal(0);

  title = computed(() => {
    const { sessionId, title } = this.state.value;
    return this.sessions.value.all.find((session) => session.sessionId === sessionId)?.title || title;
  });

  /** How many conversations wait for an approval. */
  waiting = computed(() => this.sessions.value.all.filter(({ awaitsApproval }) => awaitsApproval).length);

  #list = new SessionList(this.api, () => {
    this.sessions.value = { all: this.#list.all, hasMore: this.#list.hasMore };
  });
  #chat = new Chat({
    api: this.api,
    store: this.store,
    places: new Places(),
    onError: (error) => this.showError(error),
    onSessions: () => this.refreshSessions(),
  });
  #feed = new Feed(this.api, (event) => this.#heard(event));
  #tabs = new Tabs(() => this.#leave());
  #draw = onceSoon(() => (this.state.value = this.store.state));
  #announced = 0;
  #begins = false;
  #digest: string | null = null;

  /** What an item of the conversation can do; it stays the same object. */
  actions = {
    media: this.api.media,
    decide: this.api.decide,
    edit: (turnId: string, text: string) => this.#chat.change(() => this.api.edit(turnId, text)),
    withdraw: (turnId: string) => this.#change(() => this.api.withdraw(turnId)),
    sendNow: (turnId: string, stop: boolean) => this.#change(() => this.api.sendNow(turnId, stop)),
    again: (turnId: string) => this.#again(turnId),
    branch: (turnId: string, text: string | null) => this.#branch(turnId, text),
    show: (turnId: string) => void this.#chat.show(turnId),
  };

  constructor() {
    this.store.subscribe((state, before) => this.#changed(state, before));
    addEventListener("popstate", () => this.#followAddress());
    addEventListener("focus", () => this.#refreshOnFocus());
    addEventListener("pagehide", () => this.#keepUnanswered());
  }

  /** Fetches all that the page shows at first. */
  start(): void {
    const { draft, refused } = comeBack();
    if (refused) this.#refuse(refused);
    this.#followAddress();
    if (draft) this.drafts.write(draft);
    effect(() => {
      if (this.keys.held.value) queueMicrotask(() => this.#begin()); // also a key that comes later
    });
    if (!this.keys.held.value) this.#begin();
    this.keepFocus();
    setInterval(() => (this.now.value = Date.now()), TICK_MS);
  }

  send(text: string): void {
    this.notices.dismiss();
    this.scroll.follow();
    this.#chat.send(text, this.choices.chosen, (sessionId) => this.drafts.giveBack(sessionId, text));
  }

  /** Files come with a later release: one that is dropped or pasted must not take the place of the page. */
  refuseFiles(): void {
    this.notices.show(NO_FILES);
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

  /** The control that was used is gone: the focus goes to the message box, except where that brings up a keyboard. */
  keepFocus(): void {
    if (!byTouch()) this.focusComposer();
  }

  newConversation(): void {
    this.drawerOpen.value = false;
    this.notices.dismiss();
    this.scroll.follow();
    this.#chat.clear();
    this.focusComposer();
  }

  /** Asks first; where a turn runs, whether it is to be stopped. */
  async deleteSession({ sessionId, title, runningTurnId }: Session): Promise<void> {
    for (let runs = runningTurnId !== null; ; runs = true) {
      if (!(await this.deletion.ask({ title: title || "New conversation", runs }))) return;
      const end = await this.#chat.delete(sessionId, runs);
      if (end === "done") this.drafts.forget(sessionId);
      if (end !== "runs") return this.focusComposer();
    }
  }

  moreSessions(): void {
    this.#list.more().catch((error: unknown) => this.showError(error));
  }

  signIn(): void {
    this.keys.forget(); // a key would stand before the sign-in
    leaveToSignIn(this.#digest === null ? this.drafts.text.value : "");
  }

  async signOut(): Promise<void> {
    try {
      await this.api.signOut();
      this.forget();
    } catch (error) {
      this.showError(error);
    }
  }

  /** Leaves nothing of this person in any tab: no key, no draft, no text on the screen. */
  forget(): void {
    this.#tabs.sayLeft();
    this.#leave();
  }

  showError(error: unknown): void {
    const waits = error instanceof ApiError && error.status === 401;
    this.notices.show(error, waits ? { word: "Sign in or use a key", act: () => this.#begin() } : trouble(error));
  }

  /** When the list cannot be fetched, the old one stays until the next refresh. */
  refreshSessions(): Promise<void> {
    return this.#list.refresh().catch(() => {});
  }

  /** The text of a message is kept of which the engine has not said that it has it. */
  #keepUnanswered(): void {
    for (const { sessionId, text } of this.#chat.unanswered) this.drafts.giveBack(sessionId, text);
  }

  #learnAbout(): void {
    this.api.about().then(
      (about) => (this.about.value = about),
      () => {},
    );
  }

  async #refreshOnFocus(): Promise<void> {
    this.#learnAbout();
    await this.refreshSessions();
    if (this.#list.runsIn(this.store.state.sessionId)) this.#chat.join();
  }

  /** The person sends it: what the turn has done with tools is done. What is in the box already stays. */
  #again(turnId: string): void {
    const asked = this.store.state.items.find((item) => item.kind === "user" && item.turnId === turnId);
    if (asked?.kind === "user") this.drafts.write(this.drafts.text.value || asked.text);
    this.focusComposer();
  }

  /** Asks first, if calls of the answers that are left have taken effect, or may have. */
  async #branch(turnId: string, text: string | null): Promise<boolean> {
    try {
      const left = await this.api.effects(turnId);
      if (left.calls.length && !(await this.leaving.ask(left))) return false;
    } catch (error) {
      this.showError(error);
      return false;
    }
    this.notices.dismiss();
    const accepted = await this.#chat.branch(turnId, text, this.choices.chosen);
    if (accepted) this.keepFocus();
    return accepted;
  }

  /** Sends or withdraws a message that waits. */
  #change(change: () => Promise<unknown>): void {
    this.keepFocus();
    this.#chat.change(change);
  }

  /** Something has changed in this tab, in another one, on another device or at another engine. */
  #heard(event: FeedEvent): void {
    const { sessionId, phase } = this.store.state;
    if (event.type === "session") {
      const listed = this.#list.all.find((session) => session.sessionId === event.session.sessionId);
      this.notifications.changed(listed, event.session);
      this.#list.put(event.session);
      if (event.session.sessionId !== sessionId) return;
      const { waiting, leafTurnId, runningTurnId } = event.session;
      if (waiting || this.store.state.waiting.length) this.#chat.sync();
      else if (leafTurnId) this.#chat.turnTo(leafTurnId);
      if (runningTurnId && runningTurnId === leafTurnId) this.#chat.join();
    } else if (event.type === "deleted") {
      this.#list.remove(event.sessionId);
      if (event.sessionId === sessionId && phase === "idle") this.#chat.clear();
    } else if (event.type === "reset") this.refreshSessions();
    else this.#learnAbout();
  }

  #leave(): void {
    this.#chat.clear();
    this.drafts.erase();
    this.keys.forget();
    location.replace(location.pathname);
  }

  #changed(state: State, before: State): void {
    writeAddress(state);
    const named = state.phase === "sending" && before.phase === "sending" && before.sessionId === null;
    if (named && state.sessionId) this.drafts.named(state.sessionId);
    else this.drafts.open(state.sessionId);
    this.#announce(announcements(before, state));
    if (before.older && before.older !== state.older && before.sessionId === state.sessionId) this.scroll.hold();
    if (before.phase === "running" && state.phase !== "running") this.notices.turnEnded();
    this.#draw();
  }

  /** Announces something to screen readers: they speak what is added to the live region. */
  #announce(texts: string[]): void {
    if (!texts.length) return;
    const added = texts.map((text) => ({ key: (this.#announced += 1), text }));
    this.spoken.value = [...this.spoken.value, ...added].slice(-ANNOUNCEMENTS_KEPT);
  }

  /** Fetches what the page shows around a conversation, until it has come; then opens the conversation that waits. */
  async #begin(): Promise<void> {
    if (this.#begins) return;
    this.#begins = true;
    try {
      for (let attempt = 0; this.listed.value !== "ready"; attempt += 1) {
        try {
          if (this.keys.held.value) await this.#learnPerson(); // a key that does not fit any more is sent once
          await Promise.all([this.#learnPerson(), this.#list.refresh(), this.#learn()]);
          this.listed.value = "ready";
        } catch (error) {
          this.listed.value = "away";
          this.showError(error);
          if (!isTransient(error)) return;
          await pause(backOff(attempt), new AbortController().signal);
        }
      }
    } finally {
      this.#begins = false;
    }
    const { phase, sessionId } = this.store.state;
    if (phase === "loading" && sessionId && !this.#chat.loads) this.#chat.open(sessionId);
  }

  async #learn(): Promise<void> {
    const [about, offer] = await Promise.all([this.api.about(), this.api.models()]);
    this.choices.offer(offer);
    this.about.value = about;
  }

  async #learnPerson(): Promise<void> {
    const { name, subject } = await this.api.me();
    this.sender.value = name;
    const digest = await digestOf(subject);
    if (!this.#feed.follows || digest !== this.#digest) this.#feed.follow(digest);
    if (digest === this.#digest) return;
    this.#digest = digest;
    this.#tabs.join(digest);
    this.drafts.belongTo(digest);
  }

  #refuse(words: string): void {
    this.keys.problem = words;
    this.notices.show(words, { word: "Sign in", act: () => this.signIn() });
  }

  #followAddress(): void {
    const sessionId = addressed();
    if (sessionId === this.store.state.sessionId) return;
    this.notices.dismiss();
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

/** What helps when the server cannot be reached or is not ready: all that waits to try again tries now. */
const trouble = (error: unknown) => (isTransient(error) ? { word: "Try now", act: () => void tryNow() } : undefined);
