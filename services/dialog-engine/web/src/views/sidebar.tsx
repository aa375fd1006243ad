/** The list of conversations: beside the page when there is room, otherwise a drawer over it. */

import { toolsLine } from "../core/status";
import type { Session } from "../core/types";
import type { Page } from "../page/page";
import { Icon } from "./icon";

/** What stands in place of an empty list. */
const LISTED = {
  loading: "Loading…",
  away: "The conversations could not be loaded. They are still there.",
  ready: "Nothing here yet.",
};

export function Sidebar({ page, inert, icon }: { page: Page; inert: boolean; icon: string }) {
  const { all, hasMore } = page.sessions.value;
  const { sessionId } = page.state.value;
  return (
    <nav class="sidebar" id="sidebar" aria-label="Conversations" data-testid="sidebar" inert={inert}>
      <p class="brand">
        <img src={icon} alt="" width="24" height="24" /> Callstream
      </p>
      <button
        type="button"
        class="outlined"
        id="new-conversation"
        data-testid="new-conversation"
        onClick={() => page.newConversation()}
      >
        <Icon name="plus" /> New conversation
      </button>
      <h2 class="sidebar-head">Past conversations</h2>
      <ul class="sessions" id="sessions">
        {all.map((session) => (
          <Entry key={session.sessionId} session={session} current={session.sessionId === sessionId} page={page} />
        ))}
      </ul>
      <p class="hint" hidden={all.length > 0}>
        {LISTED[page.listed.value]}
      </p>
      <button type="button" class="quiet" data-testid="sessions-more" hidden={!hasMore} onClick={() => page.moreSessions()}>
        Show older
      </button>
      <Foot page={page} />
    </nav>
  );
}

function Foot({ page }: { page: Page }) {
  const about = page.about.value;
  const tools = about ? toolsLine(about.mcp) : "";
  const name = page.sender.value;
  const keyHeld = page.keys.held.value;
  return (
    <div class="sidebar-foot">
      <span class="hint" id="signed-in" data-testid="signed-in" hidden={!name}>
        Signed in as <bdi>{name}</bdi>
      </span>
      <button type="button" class="quiet" data-testid="sign-out" hidden={!name || keyHeld} onClick={() => page.signOut()}>
        Sign out
      </button>
      <button type="button" class="quiet" data-testid="forget-key" hidden={!keyHeld} onClick={() => page.forget()}>
        Forget the API key
      </button>
      {page.notifications.possible && (
        <label class="hint switch">
          <input
            type="checkbox"
            data-testid="notify"
            checked={page.notifications.on.value}
            onChange={({ currentTarget }) =>
              page.notifications.switch().then(() => (currentTarget.checked = page.notifications.on.value))
            }
          />
          Notify me when an answer ends or asks
        </label>
      )}
      <span class="hint" data-testid="tools" hidden={!tools}>
        {tools}
      </span>
      <span class="hint">
        Version <span data-testid="version">{about?.version ?? "–"}</span>
      </span>
    </div>
  );
}

function Entry({ session, current, page }: { session: Session; current: boolean; page: Page }) {
  const name = session.title || "New conversation";
  return (
    <li class="session" data-testid="session-item">
      <a
        href={`#/s/${encodeURIComponent(session.sessionId)}`}
        aria-current={current ? "page" : undefined}
        onClick={() => (page.drawerOpen.value = false)}
      >
        <bdi class="session-title">{name}</bdi>
        <span class="session-when">{when(session, page.now.value)}</span>
      </a>
      <button
        type="button"
        class="quiet session-delete"
        aria-label={`Delete “${name}”`}
        data-testid="session-delete"
        onClick={() => page.deleteSession(session)}
      >
        <Icon name="trash" />
      </button>
    </li>
  );
}

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "long" });
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

function when({ runningTurnId, awaitsApproval, waiting, updatedAt }: Session, now: number): string {
  if (awaitsApproval) return "Needs your approval";
  if (runningTurnId) return "Answering…";
  return waiting ? "A message waits for you" : ago(updatedAt, now);
}

function ago(timestamp: string, now: number): string {
  const seconds = (now - Date.parse(timestamp)) / 1000;
  if (Number.isNaN(seconds)) return "";
  const unit = UNITS.find(([, length]) => seconds >= length);
  return unit ? RELATIVE.format(-Math.floor(seconds / unit[1]), unit[0]) : "Just now";
}
