/** The list of conversations: beside the page when there is room, otherwise a drawer over it. */

import { visible } from "../core/calls";
import { isUsable, serverWords, toolsLine } from "../core/status";
import type { Session } from "../core/types";
import { addressOf } from "../page/address";
import type { Page } from "../page/page";
import { Button } from "./button";
import { Icon } from "./icon";
import { useNow, usePart } from "./kept";

/** What stands in place of an empty list. */
const LISTED = {
  loading: "Loading…",
  away: "The conversations could not be loaded. They are still there.",
  ready: "Nothing here yet.",
};

export function Sidebar({ page, inert, icon }: { page: Page; inert: boolean; icon: string }) {
  const all = page.sessions.all.value;
  const now = useNow(5_000);
  const sessionId = usePart(page, (state) => state.sessionId);
  return (
    <nav class="sidebar" id="sidebar" aria-label="Conversations" data-testid="sidebar" inert={inert}>
      <p class="brand"><img src={icon} alt="" width="24" height="24" /> Callstream</p>
      <Button kind="outlined" id="new-conversation" testId="new-conversation" onClick={() => page.newConversation()}>
        <Icon name="plus" /> New conversation
      </Button>
      <h2 class="sidebar-head">Past conversations</h2>
      <ul class="sessions" id="sessions">
        {all.map((session) => (
          <Entry key={session.sessionId} session={session} current={session.sessionId === sessionId} now={now} page={page} />
        ))}
      </ul>
      <p class="hint" hidden={all.length > 0}>{LISTED[page.listed.value]}</p>
      <Button testId="sessions-more" hidden={page.sessions.next.value === null} onClick={() => page.shown(page.sessions.more())}>Show older</Button>
      <Foot page={page} />
    </nav>
  );
}

function Foot({ page }: { page: Page }) {
  const name = page.sender.value;
  const keyHeld = page.keys.held.value;
  return (
    <div class="sidebar-foot">
      <span class="hint" id="signed-in" data-testid="signed-in" hidden={!name}>Signed in as <bdi>{name}</bdi></span>
      <Button testId="sign-out" hidden={!name || keyHeld} onClick={() => page.signOut()}>Sign out</Button>
      <Button testId="forget-key" hidden={!keyHeld} onClick={() => page.forget()}>Forget the API key</Button>
      {page.notifications.possible && (
        <label class="hint switch">
          <input
            type="checkbox" data-testid="notify" checked={page.notifications.on.value}
            onChange={({ currentTarget }) =>
              page.notifications.switch().then(() => (currentTarget.checked = page.notifications.on.value))
            }
          />
          Notify me when an answer ends or asks
        </label>
      )}
      <Tools page={page} />
      <span class="hint">Version <span data-testid="version">{page.about.value?.version ?? "–"}</span></span>
    </div>
  );
}

/** How many tools there are, and, opened, which servers can be used, and may be in the conversation on the screen. */
function Tools({ page }: { page: Page }) {
  const { about, servers } = page;
  const tools = usePart(page, (state) => state.tools);
  const { servers: only, deny = [] } = tools ?? {};
  const isChosen = (server: string) => (only?.includes(server) ?? true) && !deny.includes(`${server}/*`);
  const look = () => page.shown(page.api.tools().then((answer) => (servers.value = answer.servers)));
  const choose = (server: string, used: boolean) => {
    const others = deny.filter((each) => each !== `${server}/*`);
    const next = { ...tools, deny: used ? others : [...others, `${server}/*`] };
    if (used && only) next.servers = [...new Set([...only, server])];
    page.chat.chooseTools(next);
  };
  const away = servers.value.filter((each) => !isUsable(each)).length;
  const line = about.value ? toolsLine(about.value.mcp) : "";
  return (
    <details class="hint" hidden={!line} onToggle={({ currentTarget }) => currentTarget.open && look()}>
      <summary data-testid="tools">
        {line}
        {away > 0 && ` · ${away} ${away === 1 ? "server" : "servers"} away`}
      </summary>
      <ul class="servers" aria-label="Servers used in this conversation" data-testid="servers">
        {servers.value.map((each) => (
          <li key={each.server}>
            <label>
              <input
                type="checkbox"
                checked={isChosen(each.server)}
                onChange={({ currentTarget }) => choose(each.server, currentTarget.checked)}
              />{" "}
              <bdi>{visible(each.title || each.server)}</bdi> {serverWords(each)}
            </label>
          </li>
        ))}
      </ul>
    </details>
  );
}

interface Props {
  session: Session;
  current: boolean;
  now: number;
  page: Page;
}

function Entry({ session, current, now, page }: Props) {
  const name = session.title || "New conversation";
  return (
    <li class="session" data-testid="session-item">
      <a
        href={addressOf(session.sessionId)} aria-current={current ? "page" : undefined}
        onClick={() => (page.drawerOpen.value = false)}
      >
        <bdi class="session-title">{name}</bdi>
        <span class="session-when">{when(session, now)}</span>
      </a>
      <Button
        kind="quiet session-delete" aria-label={`Delete “${name}”`} testId="session-delete"
        onClick={() => page.deleteSession(session)}
      >
        <Icon name="trash" />
      </Button>
    </li>
  );
}

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "long" });
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

function when({ runningTurnId, awaitsApproval, awaitsAnswer, awaitsClient, waiting, updatedAt }: Session, now: number): string {
  if (awaitsApproval) return "Needs your approval";
  if (awaitsAnswer) return "Asks you something";
  if (awaitsClient) return "Waits for the program that asked";
  if (runningTurnId) return "Answering…";
  return waiting ? "A message waits for you" : ago(updatedAt, now);
}

function ago(timestamp: string, now: number): string {
  const seconds = (now - Date.parse(timestamp)) / 1000;
  if (Number.isNaN(seconds)) return "";
  const unit = UNITS.find(([, length]) => seconds >= length);
  return unit ? RELATIVE.format(-Math.floor(seconds / unit[1]), unit[0]) : "Just now";
}
