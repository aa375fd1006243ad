/** The questions the page asks: the API key, and whether to delete. Both are native modal dialogs. */

import { byId } from "./dom.js";

const STORED_KEY = "callstream.key";

/** How to end the question that a dialog is being used for. */
const endings = new WeakMap();

/**
 * Shows a dialog; true if it was confirmed, by its form, and false if it was left.
 *
 * A dialog tells of its closing a moment later. By then it may be open again, for another question, which must not take
 * that for its own end; and the earlier question must not wait for the end of the other.
 */
function ask(dialog) {
  endings.get(dialog)?.();
  return new Promise((resolve) => {
    let confirmed = false;
    const form = dialog.querySelector("form");
    const submit = (event) => {
      event.preventDefault();
      confirmed = true;
      dialog.close();
    };
    const cancel = () => dialog.close();
    const end = () => {
      form.removeEventListener("submit", submit);
      dialog.querySelector("[data-cancel]").removeEventListener("click", cancel);
      dialog.removeEventListener("close", close);
      endings.delete(dialog);
      resolve(confirmed);
    };
    const close = () => {
      if (!dialog.open) end();
    };
    form.addEventListener("submit", submit);
    dialog.querySelector("[data-cancel]").addEventListener("click", cancel);
    dialog.addEventListener("close", close);
    endings.set(dialog, end);
    if (!dialog.open) dialog.showModal();
  });
}

export function confirmDelete(title) {
  byId("confirm-title").textContent = title || "New conversation";
  return ask(byId("confirm-dialog"));
}

/** The API key, for as long as the tab lives. Several requests that ask at once share one dialog. */
export class Keys {
  #asking = null;
  #onChange;

  constructor(onChange) {
    this.#onChange = onChange;
  }

  current() {
    return sessionStorage.getItem(STORED_KEY);
  }

  /** True when the user gave a key. `rejected` says that the one in use was not accepted. */
  ask(rejected) {
    this.#asking ??= this.#prompt(rejected).finally(() => (this.#asking = null));
    return this.#asking;
  }

  forget() {
    sessionStorage.removeItem(STORED_KEY);
    this.#onChange();
  }

  async #prompt(rejected) {
    const input = byId("key-input");
    byId("key-rejected").hidden = !rejected;
    input.value = "";
    if (!(await ask(byId("key-dialog"))) || !input.value.trim()) return false;
    sessionStorage.setItem(STORED_KEY, input.value.trim());
    input.value = "";
    this.#onChange();
    return true;
  }
}
