/** The questions the page asks: the API key, and whether to delete. Both are native modal dialogs. */

import { byId } from "./dom.js";

const STORED_KEY = "callstream.key";

/** The question each dialog is being used for. */
const asking = new WeakMap();

/**
 * Shows a dialog; true if it was confirmed, by its form, and false if it was left.
 *
 * One question at a time: a dialog tells of its closing a moment later, when the next question may be on the way, which
 * must not take that for its own end.
 */
function ask(dialog) {
  const answer = Promise.resolve(asking.get(dialog)).then(() => show(dialog));
  asking.set(dialog, answer);
  return answer;
}

function show(dialog) {
  return new Promise((resolve) => {
    let confirmed = false;
    const form = dialog.querySelector("form");
    const submit = (event) => {
      event.preventDefault();
      confirmed = true;
      dialog.close();
    };
    const cancel = () => dialog.close();
    const close = () => {
      form.removeEventListener("submit", submit);
      dialog.querySelector("[data-cancel]").removeEventListener("click", cancel);
      dialog.removeEventListener("close", close);
      resolve(confirmed);
    };
    form.addEventListener("submit", submit);
    dialog.querySelector("[data-cancel]").addEventListener("click", cancel);
    dialog.addEventListener("close", close);
    dialog.showModal();
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
