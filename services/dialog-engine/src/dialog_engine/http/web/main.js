// @ts-check
/** Puts the page together: connects the parts, and decides what is drawn when. */

import { Api, ApiError, isAbort } from "./api.js";
import { Chat } from "./chat.js";
import { byId, h } from "./dom.js";
import { MarkdownQueue } from "./markdown.js";
import { SessionList } from "./sessions.js";
import { needsApproval, Store } from "./state.js";
import { announcements, statusLine, toolsLine } from "./status.js";
import { ComposerView } from "./view-composer.js";
import { ConversationView } from "./view-conversation.js";
import { confirmDelete, Keys } from "./view-dialogs.js";
import { Pickers } from "./view-pickers.js";
import { NoticeView } from "./view-notice.js";
import { ScrollView } from "./view-scroll.js";
import { SidebarView } from "./view-sidebar.js";

const ANNOUNCEMENTS_KEPT = 10;

const store = new Store();
const notice = new NoticeView();
const keys = new Keys(() => (byId("forget-key").hidden = keys.current() === null));
const api = new Api(keys);
const sessions = new SessionList(api, draw);
const chat = new Chat({ api, store, onError: showError, onSessions: refreshSessions });

const scroll = new ScrollView();
const composer = new ComposerView({ onSend: send, onStop: () => chat.stop() });
const pickers = new Pickers();
const conversation = new ConversationView(byId("conversation"), {
  markdown: new MarkdownQueue(api.markdown),
  media: api.media,
  decide: api.decide,
  takeBack: () => chat.takeBack(),
});
const sidebar = new SidebarView({
  onDelete: deleteSession,
  onNew: newConversation,
  onMore: () => sessions.more().catch(showError),
});

/** @param {unknown} error */
function showError(error) {
  if (isAbort(error)) return;
  if (!(error instanceof ApiError)) console.error(error);
  notice.show(error);
}

/** When the list cannot be fetched, the old one stays until the next refresh. */
function refreshSessions() {
  return sessions.refresh().catch(() => {});
}

// ── Several tabs: each tells the others of its new turns; those of other devices are found when the tab gets the focus ──

const tabs = new BroadcastChannel("callstream");

async function refreshOnFocus() {
  api.about().then(({ mcp }) => drawTools(mcp), () => {});
  await refreshSessions();
  if (sessions.runsIn(store.state.sessionId)) chat.join();
}

tabs.addEventListener("message", ({ data }) => {
  if (data.sessionId === store.state.sessionId) chat.join();
  refreshSessions();
});

/** @param {string} text */
function send(text) {
  notice.hide();
  scroll.follow();
  return chat.send(text, pickers.chosen, () => composer.restore(text));
}

function newConversation() {
  notice.hide();
  chat.clear();
  composer.focus();
}

/** @param {Session} session */
async function deleteSession(session) {
  if (!(await confirmDelete(session.title))) return;
  await chat.delete(session.sessionId);
  composer.focus();
}

// ── The address: `#/s/<sessionId>`, so that a reload and the back button find the conversation again ──

const addressed = () => decodeURIComponent(location.hash.match(/^#\/s\/(.+)$/)?.[1] ?? "") || null;

function followAddress() {
  const sessionId = addressed();
  if (sessionId === store.state.sessionId) return;
  notice.hide();
  scroll.follow();
  if (sessionId) chat.open(sessionId);
  else chat.clear();
}

/** @param {State} state */
function writeAddress({ sessionId }) {
  if (sessionId === addressed()) return;
  history.pushState(null, "", sessionId ? `#/s/${encodeURIComponent(sessionId)}` : location.pathname);
}

// ── Drawing: at most once per frame ──

let frame = 0;

function draw() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const { state } = store;
    conversation.update(state);
    composer.update(state);
    sidebar.update(sessions, state.sessionId);
    drawSurroundings(state);
  });
}

/** @param {State} state */
function drawSurroundings(state) {
  const empty = state.items.length === 0 && state.phase === "idle";
  const title = sessions.titleOf(state.sessionId) || state.title;
  byId("empty").hidden = !empty;
  byId("older").hidden = state.older === null;
  byId("title").textContent = title || "New conversation";
  document.title = title ? `${title} · Callstream` : "Callstream";
  byId("status").textContent = statusLine(state);
  byId("status").dataset.state = state.connection === "reconnecting" ? "reconnecting" : state.phase;
}

/**
 * Announces something to screen readers: they speak what is added to the live region.
 * @param {string} text
 */
function announce(text) {
  const live = byId("live");
  live.append(h("p", {}, text));
  while (live.children.length > ANNOUNCEMENTS_KEPT) live.firstElementChild?.remove();
}

async function drawSender() {
  const { name } = await api.me();
  byId("signed-in-name").textContent = name;
  byId("signed-in").hidden = !name;
  byId("sign-out").hidden = !name || keys.current() !== null;
}

async function signOut() {
  await api.signOut();
  location.reload();
}

async function drawAbout() {
  const { model, version, mcp } = await api.about();
  byId("model").textContent = model.scripted ? "Scripted demo model" : model.label || model.id;
  byId("model").classList.toggle("scripted", model.scripted);
  byId("model").hidden = pickers.show(await api.models()) && !model.scripted;
  byId("scripted").hidden = !model.scripted;
  byId("version").textContent = version;
  drawTools(mcp);
}

/** @param {ToolsInfo} mcp */
function drawTools(mcp) {
  byId("tools").textContent = toolsLine(mcp);
  byId("tools").hidden = !byId("tools").textContent;
}

/**
 * Whether a call on the screen waits for approval: the list shows it too.
 * @param {State} state
 */
const asksNow = ({ items }) => items.some(({ call }) => call && needsApproval(call));

store.subscribe((state, before) => {
  writeAddress(state);
  announcements(before, state).forEach(announce);
  if (asksNow(before) !== asksNow(state)) refreshSessions();
  if (before.older && before.older !== state.older && before.sessionId === state.sessionId) scroll.hold();
  if (before.phase === "sending" && state.phase === "running") tabs.postMessage({ sessionId: state.sessionId });
  draw();
});

byId("empty").addEventListener("click", ({ target }) => {
  const suggestion = target instanceof Element && target.closest("[data-suggestion]");
  if (suggestion) {
    composer.focus();
    send(suggestion.textContent?.trim() ?? "");
  }
});
byId("older").addEventListener("click", () => chat.loadOlder());
byId("forget-key").addEventListener("click", () => keys.forget());
byId("sign-out").addEventListener("click", () => signOut().catch(showError));
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the conversation
  composer.focus();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (!sidebar.close()) chat.stop();
});
addEventListener("popstate", followAddress);
addEventListener("focus", refreshOnFocus);

byId("forget-key").hidden = keys.current() === null;
draw();
followAddress();
sessions.refresh().catch(showError);
drawAbout().catch(showError);
drawSender().catch(() => {}); // the other requests show what is wrong
if (!matchMedia("(pointer: coarse)").matches) composer.focus();
