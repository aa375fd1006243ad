/** What the page knows and what can be done on it: connects the parts, and decides what is drawn when. */

import { computed, effect, signal } from "@preact/signals";
import { Api, ApiError } from "../core/api";
import { Chat } from "../core/chat";
import { Feed, type FeedEvent } from "../core/feed";
import { isTransient, tryNow, withRetries } from "../core/follow";
import { Places } from "../core/places";
import { initial, Store } from "../core/state";
import { announcements } from "../core/status";
import type { About, ServerState, Session, State } from "../core/types";
import { actionsOf } from "./actions";
import { addressed, writeAddress } from "./address";
import { Announcements } from "./announcements";
import { Choices } from "./choices";
import { byTouch, onceSoon } from "./device";
import { Drafts } from "./drafts";
import { Keys } from "./keys";
import { Notices } from "./notices";
import { Notifications } from "./notifications";
import { Offers } from "./offers";
import { digestOf, Tabs } from "./person";
import { type Doubt, Question } from "./questions";
import { Scroll } from "./scroll";
import { SessionList } from "./sessions";
import { comeBack, leaveToSignIn } from "./sign-in";

export class Page {
  store = new Store();
  notices = new Notices();
  notifications = new Notifications();
  keys: Keys = new Keys((key) => this.api.check(key));
  api: Api = new Api(this.keys, (request) => this.notices.answered(request));
  drafts = new Drafts();
  offers = new Offers(this.api, this.drafts, (what) => this.showError(what));
  choices = new Choices();
  scroll = new Scroll(() => this.state.value.items.length === 0);
  doubt = new Question<Doubt>();

  // What is drawn.
  state = signal<State>(initial);
  sessions = new SessionList(this.api);
  /** Whether the list has come: until then it is not empty, but unknown. */
  listed = signal<"loading" | "away" | "ready">("loading");
  about = signal<About | null>(null);
  servers = signal<ServerState[]>([]);
  sender = signal("");
  drawerOpen = signal(false);
  announcements = new Announcements();
  /** Counts how often the message box was to get the focus. */
  focusWished = signal(0);

  title = computed(() => {
    const { sessionId, title } = this.state.value;
    return this.sessions.find(sessionId)?.title || title;
  });

  /** How many conversations wait for an approval, or for an answer to a server. */
  waiting = computed(() => this.sessions.all.value.filter((each) => each.awaitsApproval || each.awaitsAnswer).length);

  chat = new Chat(
    this.api,
    this.store,
    new Places(),
    (error) => this.showError(error),
    () => this.#feed.live || this.#refreshSessions(),
  );
  #feed = new Feed(this.api, (event) => this.#heard(event));
  #tabs = new Tabs(() => this.#leave());
  #draw = onceSoon(() => (this.state.value = this.store.state));
  #begins = false;
  #digest: string | null = null;

  actions = actionsOf(this);

  constructor() {
    this.store.subscribe((state, before) => this.#changed(state, before));
    addEventListener("popstate", () => this.#followAddress());
    addEventListener("focus", () => this.#refreshOnFocus());
    addEventListener("pagehide", () => {
      // The text of a message is kept of which the engine has not said that it has it.
      for (const { sessionId, text } of this.chat.sending.unanswered) this.drafts.giveBack(sessionId, text);
    });
  }

  /** Fetches all that the page shows at first. */
  start(): void {
    const { draft, refused } = comeBack();
    this.keys.problem = refused;
    if (refused) this.notices.show(refused, { word: "Sign in", act: () => this.signIn() });
    this.#followAddress();
    if (draft) this.drafts.write(draft);
    effect(() => {
      if (this.keys.held.value) queueMicrotask(() => this.#begin()); // also a key that comes later
    });
    if (!this.keys.held.value) this.#begin();
    this.keepFocus();
  }

  /** `decline`: what the running turn asks is refused first. */
  send(text: string, decline = false): void {
    this.notices.dismiss();
    this.scroll.follow();
    this.chat.send(text, this.choices.chosen, (sessionId) => this.drafts.giveBack(sessionId, text), decline);
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
    this.#open(null);
    this.focusComposer();
  }

  /** Asks first; where a turn runs, whether it is to be stopped. */
  async deleteSession({ sessionId, title, runningTurnId }: Session): Promise<void> {
    for (let runs = runningTurnId !== null; ; runs = true) {
      if (!(await this.doubt.ask({ kind: "deletion", title: title || "New conversation", runs }))) return;
      const end = await this.chat.delete(sessionId, runs);
      if (end === "runs") continue;
      if (end === "done") this.drafts.forget(sessionId);
      if (end === "done") this.sessions.remove(sessionId);
      return this.focusComposer();
    }
  }

  signIn(): void {
    this.keys.forget(); // a key would stand before the sign-in
    leaveToSignIn(this.#digest === null ? this.drafts.text.value : "");
  }

  signOut(): void {
    this.shown(this.api.signOut().then(() => this.forget()));
  }

  /** Leaves nothing of this person in any tab: no key, no draft, no text on the screen. */
  forget(): void {
    this.#tabs.sayLeft();
    this.#leave();
  }

  showError(error: unknown): void {
    const asksWho = error instanceof ApiError && error.status === 401;
    const signIn = { word: "Sign in or use a key", act: () => this.#begin() };
    // What waits to try again, because the server cannot be reached or is not ready, tries now.
    const again = isTransient(error) ? { word: "Try now", act: () => void tryNow() } : undefined;
    this.notices.show(error, asksWho ? signIn : again);
  }

  /** What `work` gives; nothing when it fails, which is shown. */
  shown<T>(work: Promise<T>): Promise<T | void> {
    return work.catch((error: unknown) => this.showError(error));
  }

  /** When the list cannot be fetched, the old one stays until the next refresh. */
  #refreshSessions(): Promise<void> {
    return this.sessions.refresh().catch(() => {});
  }

  #learnAbout(): void {
    this.api.about().then((about) => (this.about.value = about), () => {});
  }

  /** What changed comes by itself, except how many tools there are, unless its stream cannot be had now. */
  async #refreshOnFocus(): Promise<void> {
    if (this.keys.declined) return;
    this.#learnAbout();
    if (this.#feed.live) return;
    await this.#refreshSessions();
    if (this.sessions.find(this.store.state.sessionId)?.runningTurnId) this.chat.join();
  }

  /** Something has changed in this tab, in another one, on another device or at another engine. */
  #heard(event: FeedEvent): void {
    const { sessionId, phase } = this.store.state;
    if (event.type === "session") {
      this.notifications.changed(this.sessions.find(event.session.sessionId), event.session);
      this.sessions.put(event.session);
      if (event.session.sessionId === sessionId) this.chat.changed(event.session);
    } else if (event.type === "deleted") {
      this.sessions.remove(event.sessionId);
      if (event.sessionId === sessionId && phase === "idle") this.chat.clear();
    } else if (event.type === "reset") this.#refreshSessions();
    else {
      this.servers.value = event.servers;
      this.#learnAbout();
    }
  }

  #leave(): void {
    this.chat.clear();
    this.drafts.erase();
    this.keys.forget();
    location.replace(location.pathname);
  }

  #changed(state: State, before: State): void {
    writeAddress(state.sessionId);
    this.drafts.open(state.sessionId, before.phase === "sending" && before.sessionId === null && state.phase === "sending");
    this.announcements.say(announcements(before, state));
    if (before.older && before.older !== state.older && before.sessionId === state.sessionId) this.scroll.hold();
    if (before.phase === "running" && state.phase !== "running") this.notices.turnEnded();
    this.#draw();
  }

  /** Fetches what the page shows around a conversation, until it has come; then opens the conversation that waits. */
  async #begin(): Promise<void> {
    if (this.#begins) return;
    this.#begins = true;
    const away = (error: unknown) => {
      this.listed.value = "away";
      this.showError(error);
    };
    const { signal } = new AbortController();
    if (this.listed.value !== "ready") await withRetries(() => this.#learn(), signal, away, 0).catch(away);
    this.#begins = false;
    if (this.listed.value !== "ready") return;
    const { phase, sessionId } = this.store.state;
    if (phase === "loading" && sessionId && !this.chat.loads) this.chat.open(sessionId);
  }

  async #learn(): Promise<void> {
    if (this.keys.held.value) await this.#learnPerson(); // a key that does not fit any more is sent once
    const { about, models } = this.api;
    const [is, offer] = await Promise.all([about(), models(), this.#learnPerson(), this.sessions.refresh()]);
    this.choices.offer(offer);
    this.about.value = is;
    this.listed.value = "ready";
  }

  async #learnPerson(): Promise<void> {
    const { name, subject } = await this.api.me();
    this.sender.value = name;
    const digest = await digestOf(subject);
    if (!this.#feed.following || digest !== this.#digest) this.#feed.follow(digest);
    if (digest === this.#digest) return;
    this.#digest = digest;
    this.#tabs.join(digest);
    this.drafts.belongTo(digest);
    this.offers.goOn();
    this.notifications.belongTo(digest);
  }

  #followAddress(): void {
    if (addressed() !== this.store.state.sessionId) this.#open(addressed());
  }

  #open(sessionId: string | null): void {
    this.notices.dismiss();
    this.scroll.follow();
    if (sessionId) this.chat.open(sessionId);
    else this.chat.clear();
  }
}
