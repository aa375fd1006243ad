/** Small helpers to make DOM nodes. Text only ever becomes text nodes. */

/** `h("button", {class: "quiet", "aria-label": "Close", onclick: close}, "text", node)`; null and false are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An icon of the sprite in index.html; decoration only, so the control around it needs a name of its own. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** A button that copies `text()` and says so for a moment; null where the browser offers no clipboard. */
export function copyButton(label, testId, text) {
  if (!navigator.clipboard) return null;
  const word = h("span", {}, label);
  const button = h("button", { type: "button", class: "quiet copy", "data-testid": testId }, icon("copy"), word);
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard.writeText(text()).then(
      () => true,
      () => false,
    );
    word.textContent = copied ? "Copied" : "Could not copy";
    setTimeout(() => (word.textContent = label), 1500);
  });
  return button;
}
