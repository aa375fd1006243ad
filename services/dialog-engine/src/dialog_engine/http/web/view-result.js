// @ts-check
/** Parts of a tool's result: the rest of a long text, and links. Texts of tools are shown as text, never as markup. */

import { h } from "./dom.js";

const WEB = /^https?:\/\//i;

/**
 * The hint below a shortened text, with a button that loads the whole text if it has a URL.
 * @param {string | undefined} url
 * @param {HTMLElement} pre
 * @param {FetchBlob} fetch
 */
export function shortenedHint(url, pre, fetch) {
  const hint = h("p", { class: "hint" }, "The result is long; a part of it is shown. ");
  if (!url) return hint;
  const button = h("button", { type: "button", class: "quiet", "data-testid": "tool-show-all" }, "Show all");
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Loading…";
    try {
      pre.textContent = await (await fetch(url)).text();
      hint.replaceWith(...(pre.isConnected ? [] : [pre]));
    } catch {
      button.disabled = false;
      button.textContent = "Loading failed. Try again";
    }
  });
  hint.append(button);
  return hint;
}

/**
 * The resources that a result links to; only web addresses can be clicked.
 * @param {ResourceLink[]} list
 */
export function links(list) {
  return h("ul", { class: "tool-links", "data-testid": "tool-links" }, ...list.map(link));
}

/** @param {ResourceLink} resource */
function link({ uri, name, title, mimeType, description }) {
  const label = title || name || uri;
  const target = WEB.test(uri)
    ? h("a", { href: uri, target: "_blank", rel: "noopener noreferrer" }, label)
    : h("span", {}, label);
  const about = [mimeType, description].filter(Boolean).join(" · ");
  return h("li", {}, target, " ", h("code", {}, uri), about ? h("span", { class: "hint" }, ` ${about}`) : null);
}
