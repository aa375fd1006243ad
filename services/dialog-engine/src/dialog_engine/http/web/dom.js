// @ts-check
/** Small helpers to make DOM nodes. Text only ever becomes text nodes. */

/**
 * An element: `h("button", {class: "quiet", "aria-label": "Close", onclick: close}, "text", node)`. Null and false are
 * left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} properties
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * An icon of the sprite in index.html. It is decoration: the control around it needs a name of its own.
 * @param {string} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/**
 * The element of index.html with this id, which is known to exist; its type is that of the context.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export const byId = (id) => /** @type {T} */ (document.getElementById(id));

/**
 * A button that copies `text()` and shows that for a moment; null when the browser offers no clipboard.
 * @param {string} label
 * @param {string} testId
 * @param {() => string | null} text
 */
export function copyButton(label, testId, text) {
  if (!navigator.clipboard) return null;
  const word = h("span", {}, label);
  const button = h("button", { type: "button", class: "quiet copy", "data-testid": testId }, icon("copy"), word);
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard.writeText(text() ?? "").then(
      () => true,
      () => false,
    );
    word.textContent = copied ? "Copied" : "Could not copy";
    setTimeout(() => (word.textContent = label), 1500);
  });
  return button;
}
