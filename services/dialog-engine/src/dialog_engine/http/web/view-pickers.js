/** What a message may ask for: pickers, each where there is a choice. What was picked is kept for this tab. */

import { byId, h } from "./dom.js";

const TOOL_MODES = {
  auto: "Tools: automatic",
  native: "Tools: function calling",
  tool_use: "Tools: tool_use tags",
  function_calls: "Tools: function_calls tags",
};

/** The fields of a message that were picked; what is left as usual is left out. */
export class Pickers {
  #model = new Picker("model-choice", "callstream.model");
  #toolMode = new Picker("tool-mode-choice", "callstream.tool-mode");

  get chosen() {
    const [model, toolMode] = [this.#model.chosen, this.#toolMode.chosen];
    return { ...(model && { model }), ...(toolMode && { toolMode }) };
  }

  /** Offers `models`, `{name, label, default}` each, and the names of tool modes; returns whether models can be picked. */
  show({ models, toolModes }) {
    const usual = toolModes.length ? [["", "Tools: as usual"]] : [];
    this.#toolMode.show([...usual, ...toolModes.map((name) => [name, TOOL_MODES[name] ?? `Tools: ${name}`])]);
    return this.#model.show(models.map((model) => [model.default ? "" : model.name, model.label]));
  }
}

class Picker {
  #select;
  #stored;

  constructor(id, stored) {
    this.#select = byId(id);
    this.#stored = stored;
    this.#select.addEventListener("change", () => keep(stored, this.#select.value));
  }

  /** What was picked; "" is the usual, whatever that is when the message arrives. */
  get chosen() {
    return this.#select.value;
  }

  /** Offers `[value, label]` pairs; returns whether there is a choice. */
  show(options) {
    const picked = kept(this.#stored);
    this.#select.replaceChildren(
      ...options.map(([value, label]) => h("option", { value, selected: value === picked }, label)),
    );
    this.#select.hidden = options.length < 2;
    return options.length > 1;
  }
}

function kept(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return ""; // storage is blocked
  }
}

function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The choice lasts until the page is left.
  }
}
