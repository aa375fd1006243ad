// @ts-check
/** The conversation from top to bottom: one view per item, kept as long as the item. */

import { h, icon } from "./dom.js";
import { duration, leftOutNote, NOTES } from "./status.js";
import { AnswerView } from "./view-answer.js";
import { ToolView } from "./view-tool.js";

/** @typedef {{element: HTMLElement, update: (item: any) => void}} View */

export class ConversationView {
  #list;
  /** @type {Map<string, {view: View, item: any}>} By the key of the item. */
  #views = new Map();
  /** @type {Record<string, () => View>} By the kind of the item. */
  #make;

  /**
   * `list` is the element that holds the items.
   * @param {HTMLElement} list
   * @param {{
   *   markdown: import("./markdown.js").MarkdownQueue,
   *   media: FetchBlob,
   *   decide: import("./api.js").Api["decide"],
   *   takeBack: () => void,
   * }} dependencies
   */
  constructor(list, { markdown, media, decide, takeBack }) {
    this.#list = list;
    this.#make = {
      user: () => new UserView(),
      reasoning: () => new ReasoningView(),
      answer: () => new AnswerView(markdown),
      tool: () => new ToolView(media, decide),
      error: () => new ErrorView(),
      note: () => new NoteView(),
      queued: () => new QueuedView(takeBack),
    };
  }

  /** @param {State} state */
  update({ items, outcome, queued }) {
    const views = new Map();
    const shown = queued ? [...items, { key: "queued", kind: "queued", ...queued }] : items;
    for (const item of shown) views.set(item.key, this.#viewOf(item));
    for (const [key, { view }] of this.#views) if (!views.has(key)) view.element.remove();
    this.#views = views;
    [...views.values()].forEach(({ view }, index) => {
      if (this.#list.children[index] !== view.element)
        this.#list.insertBefore(view.element, this.#list.children[index] ?? null);
    });
    this.#showOutcome(outcome);
  }

  /** @param {{key: string, kind: string}} item */
  #viewOf(item) {
    const known = this.#views.get(item.key);
    if (known?.item === item) return known;
    const view = known?.view ?? this.#make[item.kind]();
    view.update(item);
    return { view, item };
  }

  /** @param {Outcome | null} outcome */
  #showOutcome(outcome) {
    const line = this.#list.nextElementSibling;
    if (line) line.textContent = outcome ? facts(outcome) : "";
  }
}

/** @param {Outcome} outcome */
function facts({ usage, ttftMs, model }) {
  const said = model ? [model.slice(model.indexOf(":") + 1)] : [];
  if (ttftMs !== undefined && Number.isFinite(ttftMs)) said.push(`First word after ${duration(ttftMs)}`);
  if (usage?.outputTokens) said.push(`${usage.estimated ? "≈ " : ""}${usage.inputTokens ?? 0} tokens in, ${usage.outputTokens} out`);
  return said.join(" · ");
}

class UserView {
  #text = h("div", { class: "bubble", dir: "auto" });
  element = h("article", { class: "user", "aria-label": "You", "data-testid": "message-user" }, this.#text);

  /** @param {Item} item */
  update({ text }) {
    this.#text.textContent = text;
  }
}

/** A message that is queued behind the running answer. */
class QueuedView {
  #text = h("div", { class: "bubble", dir: "auto" });
  #takeBack = h("button", { type: "button", class: "quiet", "data-testid": "take-back" }, "Take back");
  element = h(
    "article",
    { class: "user queued", "aria-label": "Your queued message", "data-testid": "message-queued" },
    this.#text,
    h("p", { class: "hint" }, "Waits for the answer above. ", this.#takeBack),
  );

  /** @param {() => void} takeBack */
  constructor(takeBack) {
    this.#takeBack.addEventListener("click", takeBack);
  }

  /** @param {NonNullable<State["queued"]>} message */
  update({ text, turnId }) {
    this.#text.textContent = text;
    this.#takeBack.hidden = turnId !== null;
  }
}

class ReasoningView {
  #text = h("p", { dir: "auto" });
  #summary = h("summary", {}, "Reasoning");
  element = h("details", { class: "reasoning", "data-testid": "reasoning" }, this.#summary, this.#text);

  /** @param {Item} item */
  update({ text }) {
    this.#text.textContent = text;
  }
}

class ErrorView {
  #code = h("code", { class: "chip bad", "data-testid": "turn-error-code" });
  #text = h("p", {});
  element = h(
    "div",
    { class: "turn-error", "data-testid": "turn-error" },
    icon("alert"),
    h("div", {}, this.#text, this.#code),
  );

  /** @param {Item} item */
  update({ code, message }) {
    this.#code.textContent = code;
    this.#text.textContent = message;
  }
}

class NoteView {
  element = h("p", { class: "note", "data-testid": "turn-note" });

  /** @param {Item} item */
  update({ reason, count }) {
    this.element.textContent =
      reason === "left_out" ? leftOutNote(count) : (NOTES[reason] ?? `The answer ended early: ${reason}.`);
  }
}
