// @ts-check
/** The list of conversations: beside the page when there is room, otherwise a drawer over it. */

import { byId, h, icon } from "./dom.js";

const NARROW = matchMedia("(max-width: 52rem)");

export class SidebarView {
  #onDelete;
  #list = byId("sessions");
  #more = byId("sessions-more");
  #sidebar = byId("sidebar");
  #toggle = byId("sidebar-toggle");
  #main = byId("main");
  #open = false;
  /** @type {{sessions?: Session[], currentId?: string | null}} */
  #shown = {};

  /** @param {{onDelete: (session: Session) => void, onNew: () => void, onMore: () => void}} callbacks */
  constructor({ onDelete, onNew, onMore }) {
    this.#onDelete = onDelete;
    this.#more.addEventListener("click", onMore);
    this.#toggle.addEventListener("click", () => this.#setOpen(!this.#open));
    byId("backdrop").addEventListener("click", () => this.close());
    byId("new-conversation").addEventListener("click", () => {
      this.close();
      onNew();
    });
    this.#list.addEventListener("click", ({ target }) => target instanceof Element && target.closest("a") && this.close());
    NARROW.addEventListener("change", () => this.#setOpen(false));
    this.#setOpen(false);
  }

  /** Closes the drawer; true if it was open. */
  close() {
    const wasOpen = this.#open;
    if (wasOpen) this.#setOpen(false);
    return wasOpen;
  }

  /** @param {boolean} open */
  #setOpen(open) {
    const moved = open !== this.#open;
    this.#open = open && NARROW.matches;
    document.body.classList.toggle("drawer-open", this.#open);
    this.#toggle.setAttribute("aria-expanded", String(this.#open));
    this.#sidebar.inert = NARROW.matches && !this.#open;
    this.#main.inert = this.#open;
    if (moved && this.#open) byId("new-conversation").focus();
    else if (moved && NARROW.matches) this.#toggle.focus();
  }

  /**
   * Shows the list. Elements are replaced only when it has changed, so that a click never hits a new element.
   * @param {import("./sessions.js").SessionList} list
   * @param {string | null} currentId
   */
  update({ all: sessions, hasMore }, currentId) {
    if (this.#shown.sessions === sessions && this.#shown.currentId === currentId) return;
    this.#shown = { sessions, currentId };
    const active = document.activeElement;
    const focused = active instanceof HTMLElement && this.#list.contains(active) ? active.dataset.focus : null;
    this.#list.replaceChildren(...sessions.map((session) => this.#entry(session, session.sessionId === currentId)));
    byId("sessions-empty").hidden = sessions.length > 0;
    this.#more.hidden = !hasMore;
    if (!focused) return;
    /** @type {HTMLElement | null} */ (this.#list.querySelector(`[data-focus="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {Session} session @param {boolean} current */
  #entry(session, current) {
    const { sessionId, title } = session;
    const name = title || "New conversation";
    return h(
      "li",
      { class: "session", "data-testid": "session-item" },
      h(
        "a",
        {
          href: `#/s/${encodeURIComponent(sessionId)}`,
          "aria-current": current ? "page" : null,
          "data-focus": `open-${sessionId}`,
        },
        h("bdi", { class: "session-title" }, name),
        h("span", { class: "session-when" }, when(session)),
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet session-delete",
          "aria-label": `Delete “${name}”`,
          "data-testid": "session-delete",
          "data-focus": `delete-${sessionId}`,
          onclick: () => this.#onDelete(session),
        },
        icon("trash"),
      ),
    );
  }
}

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "long" });
/** @type {[Intl.RelativeTimeFormatUnit, number][]} */
const UNITS = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

/** @param {Session} session */
const when = ({ runningTurnId, awaitsApproval, updatedAt }) =>
  awaitsApproval ? "Needs your approval" : runningTurnId ? "Answering…" : ago(updatedAt);

/** @param {string} timestamp */
function ago(timestamp) {
  const seconds = (Date.now() - Date.parse(timestamp)) / 1000;
  if (Number.isNaN(seconds)) return "";
  const unit = UNITS.find(([, length]) => seconds >= length);
  return unit ? RELATIVE.format(-Math.floor(seconds / unit[1]), unit[0]) : "Just now";
}
