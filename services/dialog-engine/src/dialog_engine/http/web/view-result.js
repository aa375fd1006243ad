/** Parts of a tool's result: the rest of a long text, and links. What a tool says is shown as text, never as markup. */

import { h } from "./dom.js";

const WEB = /^https?:\/\//i;

/** What is said below a text that is shown in part; with a way to the whole where there is one. */
export function theRest(url, pre, fetch) {
  const hint = h("p", { class: "hint" }, "The result was long and is shown in part. ");
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
      button.textContent = "It could not be loaded. Try again";
    }
  });
  hint.append(button);
  return hint;
}

/** The resources that a tool points at; only addresses of the web can be clicked. */
export function links(list) {
  return h("ul", { class: "tool-links", "data-testid": "tool-links" }, ...list.map(link));
}

function link({ uri, name, title, mimeType, description }) {
  const label = title || name || uri;
  const target = WEB.test(uri)
    ? h("a", { href: uri, target: "_blank", rel: "noopener noreferrer" }, label)
    : h("span", {}, label);
  const about = [mimeType, description].filter(Boolean).join(" · ");
  return h("li", {}, target, " ", h("code", {}, uri), about ? h("span", { class: "hint" }, ` ${about}`) : null);
}
