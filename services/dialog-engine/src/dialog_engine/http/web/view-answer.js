// @ts-check
/** An answer of the model: Markdown as far as it is rendered, followed by the newest words as plain text. */

import { copyButton, h } from "./dom.js";
import { parse } from "./markdown.js";

const FLOW = new Set([
  "P",
  "LI",
  "UL",
  "OL",
  "BLOCKQUOTE",
  "PRE",
  "CODE",
  "TABLE",
  "TBODY",
  "THEAD",
  "TR",
  "TD",
  "TH",
  "H3",
  "H4",
  "H5",
  "H6",
]);

export class AnswerView {
  #markdown;
  #item = { key: "", text: "", open: true };
  #rendered = "";
  #body = h("div", { class: "prose", "data-testid": "message-text" });
  #tail = h("span", { class: "tail" });
  #tools = h("div", { class: "answer-tools" });

  /** @param {import("./markdown.js").MarkdownQueue} markdown */
  constructor(markdown) {
    this.#markdown = markdown;
    const copy = copyButton("Copy", "copy-answer", () => this.#item.text);
    if (copy) this.#tools.append(copy);
    this.element = h(
      "article",
      { class: "answer", "aria-label": "Answer", "data-testid": "message-assistant" },
      this.#body,
      this.#tools,
    );
  }

  /** @param {Item} item */
  update(item) {
    this.#item = item;
    const { key, text, open } = item;
    this.element.classList.toggle("open", open);
    this.#tools.hidden = open;
    if (text !== this.#rendered) this.#markdown.ask(key, text, (html, of) => this.#show(html, of));
    this.#showTail();
    this.#finish();
  }

  /** @param {string} html @param {string} text */
  #show(html, text) {
    this.#tail.remove();
    const fresh = [...parse(html).childNodes];
    const shown = [...this.#body.childNodes];
    // Blocks that did not change stay in the page: they do not flicker, and a selection in them survives.
    const same = fresh.findIndex((node, index) => !shown[index]?.isEqualNode(node));
    const kept = same < 0 ? fresh.length : same;
    for (const node of shown.slice(kept)) node.remove();
    this.#body.append(...fresh.slice(kept));
    this.#rendered = text;
    this.#showTail();
    this.#finish();
  }

  /** Text that is not rendered yet follows the last word. A replaced text keeps its old rendering until the new one. */
  #showTail() {
    const { text } = this.#item;
    this.#tail.textContent = text.startsWith(this.#rendered) ? text.slice(this.#rendered.length) : "";
    if (this.#tail.textContent) lastBlock(this.#body).append(this.#tail);
    else this.#tail.remove();
  }

  #finish() {
    if (this.#item.open || this.#rendered !== this.#item.text) return;
    for (const pre of /** @type {NodeListOf<HTMLElement>} */ (
      this.#body.querySelectorAll("pre:not(.code > pre)")
    )) {
      const code = pre.querySelector("code") ?? pre;
      const language = code.className.replace("language-", "");
      const frame = h("div", { class: "code" });
      pre.replaceWith(frame);
      frame.append(
        h(
          "div",
          { class: "code-head" },
          h("span", {}, language),
          copyButton("Copy", "copy-code", () => code.textContent) ?? "",
        ),
        pre,
      );
      pre.tabIndex = 0;
    }
    for (const table of this.#body.querySelectorAll("table:not(.wide > table)")) {
      const frame = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" });
      table.replaceWith(frame);
      frame.append(table);
    }
  }
}

/** @param {Element} root */
function lastBlock(root) {
  let block = root;
  while (block.lastElementChild && FLOW.has(block.lastElementChild.tagName)) block = block.lastElementChild;
  return block;
}
