// @ts-check
/** The dialogs of the page: the API key, and the confirmation of a deletion. Both are native modal dialogs. */

import { byId } from "./dom.js";

const STORED_KEY = "callstream.key";

/**
 * Ends the question that each dialog is open for.
 * @type {WeakMap<HTMLDialogElement, () => void>}
 */
const endings = new WeakMap();

/**
 * Shows a dialog; resolves to true when its form was submitted, to false when it was closed.
 *
 * The `close` event of a dialog is dispatched later. By then the dialog may be open again for another question, which
 * must not take the event for its own, and the earlier question must not wait for the end of the later one.
 * @param {HTMLDialogElement} dialog
 * @returns {Promise<boolean>}
 */
function ask(dialog) {
  endings.get(dialog)?.();
  return new Promise((resolve) => {
    let confirmed = false;
    const form = /** @type {HTMLFormElement} */ (dialog.querySelector("form"));
    const cancelButton = /** @type {HTMLElement} */ (dialog.querySelector("[data-cancel]"));
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      confirmed = true;
      dialog.close();
    };
    const cancel = () => dialog.close();
    const end = () => {
      form.removeEventListener("submit", submit);
      cancelButton.removeEventListener("click", cancel);
      dialog.removeEventListener("close", close);
      endings.delete(dialog);
      resolve(confirmed);
    };
    const close = () => {
      if (!dialog.open) end();
    };
    form.addEventListener("submit", submit);
    cancelButton.addEventListener("click", cancel);
    dialog.addEventListener("close", close);
    endings.set(dialog, end);
    if (!dialog.open) dialog.showModal();
  });
}

/** @param {string | undefined} title */
export function confirmDelete(title) {
  byId("confirm-title").textContent = title || "New conversation";
  return ask(byId("confirm-dialog"));
}

/** The API key, kept until the tab is closed. Requests that ask for it at the same time share one dialog. */
export class Keys {
  /** @type {Promise<boolean> | null} */
  #asking = null;
  #onChange;

  /** @param {() => void} onChange */
  constructor(onChange) {
    this.#onChange = onChange;
    byId("sign-in").addEventListener("click", () => location.assign("/sign-in"));
  }

  current() {
    return sessionStorage.getItem(STORED_KEY);
  }

  /**
   * Resolves to true when the user entered a key. `rejected` says that the current one was not accepted, `signIn` that
   * people can sign in instead: then they leave the page, and come back to it.
   * @param {boolean} rejected
   * @param {boolean} signIn
   */
  ask(rejected, signIn) {
    this.#asking ??= this.#prompt(rejected, signIn).finally(() => (this.#asking = null));
    return this.#asking;
  }

  forget() {
    sessionStorage.removeItem(STORED_KEY);
    this.#onChange();
  }

  /**
   * @param {boolean} rejected
   * @param {boolean} signIn
   */
  async #prompt(rejected, signIn) {
    /** @type {HTMLInputElement} */
    const input = byId("key-input");
    byId("key-rejected").hidden = !rejected;
    byId("sign-in").hidden = !signIn;
    input.value = "";
    if (!(await ask(byId("key-dialog"))) || !input.value.trim()) return false;
    sessionStorage.setItem(STORED_KEY, input.value.trim());
    input.value = "";
    this.#onChange();
    return true;
  }
}
