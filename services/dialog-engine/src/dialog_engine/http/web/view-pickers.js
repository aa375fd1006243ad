// @ts-check
/** The pickers of model and tool mode, shown when there is a choice. The choice is kept for this tab. */

import { byId, h } from "./dom.js";

/** @type {Record<string, string>} */
const TOOL_MODES = {
  auto: "Tools: automatic",
  native: "Tools: function calling",
  tool_use: "Tools: tool_use tags",
  function_calls: "Tools: function_calls tags",
};

/** The choice for the next message; a field that stays at its default is left out. */
export class Pickers {
  #model = new Picker("model-choice", "callstream.model");
  #toolMode = new Picker("tool-mode-choice", "callstream.tool-mode");

  /** @returns {Choice} */
  get chosen() {
    const [model, toolMode] = [this.#model.chosen, this.#toolMode.chosen];
    return { ...(model && { model }), ...(toolMode && { toolMode }) };
  }

  /**
   * Offers models and tool modes; returns whether there is a choice of models.
   * @param {{models: {name: string, label: string, default: boolean}[], toolModes: string[]}} offer
   */
  show({ models, toolModes }) {
    /** @type {[string, string][]} */
    const modes = toolModes.map((name) => [name, TOOL_MODES[name] ?? `Tools: ${name}`]);
    this.#toolMode.show(modes.length ? [["", "Tools: default"], ...modes] : []);
    return this.#model.show(models.map((model) => [model.default ? "" : model.name, model.label]));
  }
}

class Picker {
  /** @type {HTMLSelectElement} */
  #select;
  #stored;

  /** @param {string} id @param {string} stored */
  constructor(id, stored) {
    this.#select = byId(id);
    this.#stored = stored;
    this.#select.addEventListener("change", () => keep(stored, this.#select.value));
  }

  /** The chosen value; "" stands for the default at the time when the message arrives. */
  get chosen() {
    return this.#select.value;
  }

  /**
   * Offers values with their labels; returns whether there is a choice.
   * @param {[value: string, label: string][]} options
   */
  show(options) {
    const picked = kept(this.#stored);
    this.#select.replaceChildren(
      ...options.map(([value, label]) => h("option", { value, selected: value === picked }, label)),
    );
    this.#select.hidden = options.length < 2;
    return options.length > 1;
  }
}

/** @param {string} name */
function kept(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return ""; // storage is blocked
  }
}

/** @param {string} name @param {string} value */
function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The choice lasts until the page is left.
  }
}
