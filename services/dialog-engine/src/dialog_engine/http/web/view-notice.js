// @ts-check
/** The notice of a failed request, with the texts of its problem document. */

import { ApiError } from "./api.js";
import { byId, h, icon } from "./dom.js";

export class NoticeView {
  #element = byId("notice");

  /** @param {unknown} error */
  show(error) {
    const { headline, code, fields } = inWords(error);
    this.#element.replaceChildren(
      icon("alert"),
      h(
        "div",
        { class: "notice-text" },
        h(
          "p",
          { class: "notice-title" },
          h("span", {}, headline),
          code ? h("code", { class: "chip bad" }, code) : null,
        ),
        fields.length ? h("ul", {}, ...fields.map(fieldEntry)) : null,
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-label": "Dismiss",
          "data-testid": "notice-dismiss",
          onclick: () => this.hide(),
        },
        icon("cross"),
      ),
    );
    this.#element.hidden = false;
  }

  hide() {
    this.#element.hidden = true;
    this.#element.replaceChildren();
  }
}

/**
 * The detail is the headline; when fields are to blame it is the title, with the fields below.
 * @param {unknown} error
 * @returns {{headline: string, code: string, fields: ApiError["fields"]}}
 */
function inWords(error) {
  if (!(error instanceof ApiError)) return { headline: `The page failed: ${error}`, code: "", fields: [] };
  const { title, detail, code, fields } = error;
  return { headline: fields.length ? title : detail || title, code, fields };
}

/** @param {ApiError["fields"][number]} problem */
const fieldEntry = ({ field, message }) =>
  h("li", { "data-testid": "notice-field" }, h("code", {}, field), " ", message);
