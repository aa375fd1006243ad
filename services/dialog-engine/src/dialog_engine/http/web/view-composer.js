// @ts-check
/** The message box. Enter sends, Shift+Enter makes a new line, Escape stops the answer. */

import { byId } from "./dom.js";

export class ComposerView {
  /** @type {HTMLTextAreaElement} */
  #input = byId("message");
  /** @type {HTMLButtonElement} */
  #send = byId("send");
  /** @type {HTMLButtonElement} */
  #stop = byId("stop");
  #ready = true;
  #onSend;

  /**
   * `onSend(text)` is called with a message to send, `onStop()` when the answer is to be stopped.
   * @param {{onSend: (text: string) => void, onStop: () => void}} callbacks
   */
  constructor({ onSend, onStop }) {
    this.#onSend = onSend;
    this.#stop.addEventListener("click", onStop);
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
    this.#input.addEventListener("input", () => this.#refresh());
    this.#refresh();
  }

  focus() {
    this.#input.focus();
  }

  /**
   * Puts a text that was not accepted back into the box, unless something new was written there.
   * @param {string} text
   */
  restore(text) {
    if (!this.#input.value) this.#input.value = text;
    this.#refresh();
  }

  /** @param {State} state */
  update({ phase, turn, queued }) {
    const running = phase === "running";
    const stopWasFocused = document.activeElement === this.#stop;
    this.#ready = (phase === "idle" || running) && !queued;
    this.#send.hidden = running;
    this.#stop.hidden = !running;
    this.#stop.disabled = turn?.stopping ?? false;
    if (stopWasFocused && (!running || this.#stop.disabled)) this.focus();
    this.#refresh();
  }

  #submit() {
    const text = this.#input.value.trim();
    if (!text || !this.#ready) return;
    this.#input.value = "";
    this.#refresh();
    this.#onSend(text);
  }

  #refresh() {
    this.#send.disabled = !this.#ready || !this.#input.value.trim();
    if (CSS.supports("field-sizing", "content")) return;
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }
}
