/** Where a message is written. Enter sends, Shift+Enter makes a new line, Escape stops the answer. */

import { byId } from "./dom.js";

export class ComposerView {
  #input = byId("message");
  #send = byId("send");
  #stop = byId("stop");
  #ready = true;
  #onSend;

  /** `onSend(text)` is called when a message may be sent, `onStop()` when the answer shall stop. */
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

  /** Gives a text back that was not accepted, unless something new was written in the meantime. */
  restore(text) {
    if (!this.#input.value) this.#input.value = text;
    this.#refresh();
  }

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
