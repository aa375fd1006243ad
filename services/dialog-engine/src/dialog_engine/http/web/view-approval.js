/** The question on a card: a person reads what would be run, changes it perhaps, and decides. */

import { h } from "./dom.js";
import { needsApproval } from "./state.js";
import { toolLabel, until } from "./status.js";

const WHY = {
  destructive: "This tool may change or destroy something that cannot be brought back. It runs only if you approve.",
  always: "This tool runs only if you approve.",
};
const DECIDED = {
  approved: "Approved.",
  edited: "Approved with changed arguments.",
  refused: "Refused.",
  expired: "Nobody decided in time, so it was not run.",
};

let made = 0;

export class ApprovalView {
  #decide;
  #call = {};
  #asked = ""; // the arguments that the field began with
  #busy = false;
  #clock = 0;
  #id = `approval-${(made += 1)}`;
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
    placeholder: "Optional; the model is told",
    "data-testid": "approval-reason",
  });
  #approve = h("button", { type: "submit", class: "primary", "data-testid": "approve" });
  #refuse = h("button", { type: "button", class: "outlined", "data-testid": "refuse" }, "Refuse");
  #expiry = h("span", { class: "approval-expiry", "data-testid": "approval-expiry" });
  #form = h(
    "form",
    { class: "approval", "data-testid": "approval" },
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

  /** `decide(call, body)` sends a decision to the engine; it throws what the engine says against it. */
  constructor(decide) {
    this.#decide = decide;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(() => ({ decision: "approve", hash: this.#call.approval.hash, ...this.#edited() }));
    });
    this.#refuse.addEventListener("click", () =>
      this.#send(() => ({ decision: "refuse", reason: this.#reason.value.trim() })),
    );
    this.#arguments.addEventListener("input", () => this.#check());
    this.#form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation(); // in here it would stop the whole answer by mistake
      if (event.key === "Enter" && event.target === this.#reason) event.preventDefault(); // a reason does not approve
    });
  }

  /** Shows how the approval of `call` stands. Whoever was in the form when it went is sent to `next`. */
  update(call, next) {
    const { approval } = call;
    const before = this.#call.approval;
    this.#call = call;
    const open = needsApproval(call);
    if (!open && this.#form.contains(document.activeElement)) next.focus();
    this.element.hidden = !approval;
    this.#form.hidden = !open;
    this.#decided.hidden = open || !DECIDED[approval?.status];
    if (!approval) return;
    this.#words.textContent = [DECIDED[approval.status], approval.reason].filter(Boolean).join(" Reason: ");
    if (open && before?.hash !== approval.hash) this.#ask(call);
    this.#tick(open);
  }

  #ask({ approval, arguments: asked }) {
    const text = JSON.stringify(asked ?? {}, null, 2);
    if (this.#arguments.value === this.#asked) this.#arguments.value = text; // what was written here stays
    this.#asked = text;
    this.#arguments.rows = Math.min(12, Math.max(2, text.split("\n").length));
    this.#why.textContent = WHY[approval.policy] ?? WHY.always;
    this.#form.setAttribute("aria-label", `Approval of ${toolLabel(this.#call)}`);
    this.#check();
  }

  /** What was written in place of the model's arguments; nothing when they are as they were. */
  #edited() {
    return this.#arguments.value === this.#asked ? {} : { arguments: JSON.parse(this.#arguments.value) };
  }

  #check() {
    const complaint = complaintAbout(this.#arguments.value);
    this.#say(complaint);
    this.#approve.textContent = this.#arguments.value === this.#asked ? "Approve" : "Approve with changes";
    this.#approve.disabled = complaint !== "";
    this.#form.setAttribute("aria-busy", String(this.#busy)); // a disabled button would lose the focus
  }

  #say(complaint) {
    this.#error.textContent = complaint;
    if (complaint) this.#arguments.setAttribute("aria-invalid", "true");
    else this.#arguments.removeAttribute("aria-invalid");
  }

  async #send(body) {
    if (this.#busy) return;
    this.#busy = true;
    this.#check();
    let refused = "";
    try {
      await this.#decide(this.#call, body());
    } catch (error) {
      refused = error.fields?.length ? error.fields.map((each) => `${each.field}: ${each.message}`).join(" ") : error.message;
    }
    this.#busy = false;
    this.#check();
    if (refused) this.#say(refused);
  }

  #tick(open) {
    clearTimeout(this.#clock);
    if (!open) return;
    this.#expiry.textContent = until(Date.parse(this.#call.approval.expiresAt) - Date.now());
    this.#clock = setTimeout(() => this.#tick(this.element.isConnected && !this.#form.hidden), 1000);
  }
}

function complaintAbout(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value)
      ? ""
      : 'Write one JSON object, like {"name": "value"}.';
  } catch (error) {
    return `This is not valid JSON: ${error.message}`;
  }
}
