/** What went wrong with a request, in the words of its problem document. */

import { byId, h, icon } from "./dom.js";

export class NoticeView {
  #element = byId("notice");

  show(error) {
    const { title, detail, code, fields } = error.title ? error : { title: "Something went wrong.", detail: String(error), fields: [] };
    this.#element.replaceChildren(
      icon("alert"),
      h(
        "div",
        { class: "notice-text" },
        h("p", { class: "notice-title" }, title, code ? h("code", { class: "chip bad" }, code) : null),
        detail && detail !== title ? h("p", {}, detail) : null,
        fields.length ? h("ul", {}, ...fields.map(fieldEntry)) : null,
      ),
      h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", "data-testid": "notice-dismiss", onclick: () => this.hide() }, icon("cross")),
    );
    this.#element.hidden = false;
  }

  hide() {
    this.#element.hidden = true;
    this.#element.replaceChildren();
  }
}

const fieldEntry = ({ field, message }) => h("li", { "data-testid": "notice-field" }, h("code", {}, field), " ", message);
