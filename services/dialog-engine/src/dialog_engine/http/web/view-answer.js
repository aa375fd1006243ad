/** The model's words: rendered Markdown as far as it has come, and the newest words as plain text behind it. */

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
  #item = { text: "" };
  #rendered = "";
  #body = h("div", { class: "prose", "data-testid": "message-text" });
  #tail = h("span", { class: "tail" });
  #tools = h("div", { class: "answer-tools" });

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

  update(item) {
    const { key, text, open } = (this.#item = item);
    this.element.classList.toggle("open", open);
    this.#tools.hidden = open;
    if (text !== this.#rendered) this.#markdown.ask(key, text, (html, of) => this.#show(html, of));
    this.#showTail();
    this.#finish();
  }

  #show(html, text) {
    this.#tail.remove();
    const fresh = [...parse(html).childNodes];
    const shown = [...this.#body.childNodes];
    // Blocks that did not change stay: no flicker, and a selection in them survives.
    const same = fresh.findIndex((node, index) => !shown[index]?.isEqualNode(node));
    const kept = same < 0 ? fresh.length : same;
    for (const node of shown.slice(kept)) node.remove();
    this.#body.append(...fresh.slice(kept));
    this.#rendered = text;
    this.#showTail();
    this.#finish();
  }

  /** What is not rendered yet follows the last word. A text that was replaced keeps its old look until the new comes. */
  #showTail() {
    const { text } = this.#item;
    this.#tail.textContent = text.startsWith(this.#rendered) ? text.slice(this.#rendered.length) : "";
    if (this.#tail.textContent) lastBlock(this.#body).append(this.#tail);
    else this.#tail.remove();
  }

  #finish() {
    if (this.#item.open || this.#rendered !== this.#item.text) return;
    for (const pre of this.#body.querySelectorAll("pre:not(.code > pre)")) {
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

function lastBlock(root) {
  let block = root;
  while (block.lastElementChild && FLOW.has(block.lastElementChild.tagName)) block = block.lastElementChild;
  return block;
}
