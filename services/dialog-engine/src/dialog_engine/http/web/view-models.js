/** Which model answers: a picker, where there is more than one. What was picked is kept for this tab. */

import { byId, h } from "./dom.js";

const STORED = "callstream.model";

export class ModelPicker {
  #select = byId("model-choice");

  constructor() {
    this.#select.addEventListener("change", () => keep(this.#select.value));
  }

  /** The name of the picked model; null is the usual one, whichever that is when the message arrives. */
  get chosen() {
    return this.#select.value || null;
  }

  /** Offers `models`, `{name, label, default}` each; returns whether there is a choice. */
  show(models) {
    const kept = stored();
    const options = models.map((model) => [model.default ? "" : model.name, model.label]);
    this.#select.replaceChildren(
      ...options.map(([value, label]) => h("option", { value, selected: value === kept }, label)),
    );
    this.#select.hidden = models.length < 2;
    return models.length > 1;
  }
}

function stored() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return ""; // storage is blocked
  }
}

function keep(name) {
  try {
    sessionStorage.setItem(STORED, name);
  } catch {
    // The choice lasts until the page is left.
  }
}
