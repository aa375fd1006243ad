// @ts-check
/** The approval form on a card: a person reads what would be run, may change it, and decides. */

import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { needsApproval } from "./state.js";
import { toolLabel, until } from "./status.js";
import { visible } from "./visible.js";

/** @type {Record<string, string>} */
const WHY = {
  destructive: "This tool may change or destroy something that cannot be restored. It runs only if you approve.",
  always: "This tool runs only if you approve.",
};
/** @type {Record<string, string>} */
const DECIDED = {
  approved: "Approved.",
  edited: "Approved with changed arguments.",
  refused: "Refused.",
  expired: "There was no decision in time, so it was not run.",
};

/** About as many characters as a line of the field has. */
const LINE = 60;

let created = 0;

function nextId() {
  created += 1;
  return `approval-${created}`;
}

export class ApprovalView {
  #decide;
  /** @type {Call | null} */
  #call = null;
  #asked = ""; // the arguments that the field began with
  #busy = false;
  #clock = 0;
  #id = nextId();
  #tool = h("p", { class: "approval-why", "data-testid": "approval-tool" });
  #why = h("p", { class: "approval-why" });
  #arguments = h("textarea", {
    id: `${this.#id}-arguments`,
    class: "data",
    rows: "3",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    "aria-describedby": `${this.#id}-error`,
    "data-testid": "approval-arguments",
  });
  #error = h("p", { id: `${this.#id}-error`, class: "approval-error", role: "alert", "data-testid": "approval-error" });
  #reason = h("input", {
    id: `${this.#id}-reason`,
    maxlength: "1000",
    autocomplete: "off",
    placeholder: "Optional; the model gets it",
    "data-testid": "approval-reason",
  });
  #approve = h("button", { type: "submit", class: "primary", "data-testid": "approve" });
  #refuse = h("button", { type: "button", class: "outlined", "data-testid": "refuse" }, "Refuse");
  #expiry = h("span", { class: "approval-expiry", "data-testid": "approval-expiry" });
  #form = h(
    "form",
    { class: "approval", "data-testid": "approval" },
    this.#tool,
    this.#why,
    h("label", { for: `${this.#id}-arguments` }, "Arguments, as JSON; you may change them"),
    this.#arguments,
    this.#error,
    h("label", { for: `${this.#id}-reason` }, "Reason for refusing"),
    this.#reason,
    h("div", { class: "approval-actions" }, this.#approve, this.#refuse, this.#expiry),
  );
  #words = h("p", { class: "approval-decided", "data-testid": "approval-decided" });
  #decided = h("div", { class: "tool-body" }, h("h3", {}, "Approval"), this.#words);
  element = h("div", {}, this.#form, this.#decided);

  /**
   * `decide` sends a decision to the engine; it throws the ApiError of a refusal.
   * @param {Decide} decide
   */
  constructor(decide) {
    this.#decide = decide;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(() => ({ decision: "approve", hash: this.#call?.approval?.hash, ...this.#edited() }));
    });
    this.#refuse.addEventListener("click", () =>
      this.#send(() => ({ decision: "refuse", reason: this.#reason.value.trim() })),
    );
    this.#arguments.addEventListener("input", () => this.#check());
    this.#form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation(); // on the page it stops the whole answer
      if (event.key === "Enter" && event.target === this.#reason) event.preventDefault(); // Enter in the reason must not approve
    });
  }

  /**
   * Shows the approval of `call`. When the form disappears with the focus in it, the focus moves to `next`.
   * @param {Call} call
   * @param {HTMLElement} next
   */
  update(call, next) {
    const { approval } = call;
    const before = this.#call?.approval;
    this.#call = call;
    const open = needsApproval(call);
    if (!open && this.#form.contains(document.activeElement)) next.focus();
    this.element.hidden = !approval;
    this.#form.hidden = !open;
    this.#decided.hidden = open || !DECIDED[approval?.status ?? ""];
    if (!approval) return;
    this.#words.textContent = [DECIDED[approval.status], approval.reason].filter(Boolean).join(" Reason: ");
    if (open && before?.hash !== approval.hash) this.#ask(call, approval);
    this.#tick(open);
  }

  /** @param {Call} call @param {Approval} approval */
  #ask(call, approval) {
    const text = visible(JSON.stringify(call.arguments ?? {}, null, 2));
    if (this.#arguments.value === this.#asked) this.#arguments.value = text; // what the user wrote stays
    this.#asked = text;
    const rows = text.split("\n").reduce((sum, line) => sum + Math.ceil((line.length + 1) / LINE), 0);
    this.#arguments.rows = Math.min(12, Math.max(2, rows));
    const name = h("bdi", {}, `${visible(call.server ?? "")} / ${toolLabel(call)}`);
    const title = call.title ? h("bdi", {}, ` (its server calls it “${visible(call.title)}”)`) : "";
    this.#tool.replaceChildren(name, title);
    this.#why.textContent = WHY[approval.policy ?? "always"] ?? WHY.always;
    this.#form.setAttribute("aria-label", `Approval of ${toolLabel(call)}`);
    this.#check();
  }

  /** The arguments that replace the model's; nothing when they are unchanged. */
  #edited() {
    return this.#arguments.value === this.#asked ? {} : { arguments: JSON.parse(this.#arguments.value) };
  }

  #check() {
    const problem = problemOf(this.#arguments.value);
    this.#say(problem);
    this.#approve.textContent = this.#arguments.value === this.#asked ? "Approve" : "Approve with changes";
    this.#approve.disabled = problem !== "";
    this.#form.setAttribute("aria-busy", String(this.#busy)); // a disabled button would lose the focus
  }

  /** @param {string} problem */
  #say(problem) {
    this.#error.textContent = problem;
    if (problem) this.#arguments.setAttribute("aria-invalid", "true");
    else this.#arguments.removeAttribute("aria-invalid");
  }

  /** @param {() => object} body */
  async #send(body) {
    if (this.#busy || !this.#call) return;
    this.#busy = true;
    this.#check();
    let refused = "";
    try {
      await this.#decide(this.#call, body());
    } catch (error) {
      const fields = error instanceof ApiError ? error.fields : [];
      refused = fields.map(({ field, message }) => `${field}: ${message}`).join(" ") || errorText(error);
    }
    this.#busy = false;
    this.#check();
    if (refused) this.#say(refused);
  }

  /** @param {boolean} open */
  #tick(open) {
    clearTimeout(this.#clock);
    if (!open) return;
    this.#expiry.textContent = until(Date.parse(this.#call?.approval?.expiresAt ?? "") - Date.now());
    this.#clock = setTimeout(() => this.#tick(this.element.isConnected && !this.#form.hidden), 1000);
  }
}

/** @param {unknown} error */
const errorText = (error) => (error instanceof Error ? error.message : String(error));

/**
 * Why the text is not a JSON object; empty when it is one.
 * @param {string} text
 */
function problemOf(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value)
      ? ""
      : 'Write one JSON object, like {"name": "value"}.';
  } catch (error) {
    return `This is not valid JSON: ${errorText(error)}`;
  }
}
