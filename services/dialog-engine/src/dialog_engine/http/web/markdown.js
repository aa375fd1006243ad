// @ts-check
/** Markdown is rendered to HTML by the engine; this module requests it, at most one request at a time. */

const MOST_TEXTS = 100;
const MOST_CHARACTERS = 300_000;
const INTERVAL_MS = 100;
const MOST_FAILURES = 3;

// The only way from a string to HTML on this page, and only for what the engine has made safe.
const policy = globalThis.trustedTypes?.createPolicy("callstream", { createHTML: (/** @type {string} */ html) => html });

/**
 * Safe HTML of the engine, parsed to nodes that are not in the page yet.
 * @param {string} html
 */
export function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = policy ? policy.createHTML(html) : html;
  return template.content;
}

/**
 * Renders the newest text of each key. During a request newer texts wait and replace older ones.
 * @typedef {{text: string, show: (html: string, text: string) => void}} Entry
 */
export class MarkdownQueue {
  #render;
  /** @type {Map<string, Entry>} */
  #waiting = new Map();
  #working = false;

  /** @param {(texts: string[]) => Promise<string[]>} render */
  constructor(render) {
    this.#render = render;
  }

  /**
   * Calls `show(html, text)` later, unless a newer text for `key` comes first or rendering fails.
   * @param {string} key
   * @param {string} text
   * @param {Entry["show"]} show
   */
  ask(key, text, show) {
    this.#waiting.delete(key);
    if (text.length > MOST_CHARACTERS) return;
    this.#waiting.set(key, { text, show });
    if (!this.#working) this.#work();
  }

  async #work() {
    this.#working = true;
    let failures = 0;
    while (this.#waiting.size && failures < MOST_FAILURES) {
      const batch = this.#take();
      const rested = new Promise((resolve) => setTimeout(resolve, INTERVAL_MS * 4 ** failures));
      try {
        const html = await this.#render(batch.map(([, { text }]) => text.toWellFormed()));
        failures = 0;
        for (const [index, [, { text, show }]] of batch.entries()) show(html[index], text);
      } catch {
        failures += 1;
        for (const [key, entry] of batch) if (!this.#waiting.has(key)) this.#waiting.set(key, entry);
      }
      await rested;
    }
    this.#waiting.clear(); // after too many failures the plain text stays
    this.#working = false;
  }

  #take() {
    /** @type {[string, Entry][]} */
    const batch = [];
    let characters = 0;
    for (const [key, entry] of this.#waiting) {
      characters += entry.text.length;
      if (batch.length === MOST_TEXTS || (batch.length && characters > MOST_CHARACTERS)) break;
      batch.push([key, entry]);
      this.#waiting.delete(key);
    }
    return batch;
  }
}
