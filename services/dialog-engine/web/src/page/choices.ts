/** The choice of model and tool mode, where there is one. It is kept for this tab. */

import { computed, type Signal, signal } from "@preact/signals";
import type { Choice, Offer } from "../core/types";
import { keep, kept, ofTab } from "./storage";

const TOOL_MODES = new Map([
  ["auto", "Tools: automatic"],
  ["native", "Tools: function calling"],
  ["tool_use", "Tools: tool_use tags"],
  ["function_calls", "Tools: function_calls tags"],
]);

/** A value with its label; "" stands for the default at the time when the message arrives. */
export type Option = [value: string, label: string];

export class Picker {
  options: Signal<Option[]> = signal([]);
  #picked: Signal<string>;

  constructor(private readonly stored: string) {
    this.#picked = signal(kept(ofTab, stored) ?? "");
  }

  /** The picked value, or the first one where that is not offered. */
  chosen = computed(() => {
    const values = this.options.value.map(([value]) => value);
    return values.includes(this.#picked.value) ? this.#picked.value : (values[0] ?? "");
  });

  pick(value: string): void {
    this.#picked.value = value;
    keep(ofTab, this.stored, value);
  }
}

export class Choices {
  model = new Picker("callstream.model");
  toolMode = new Picker("callstream.tool-mode");

  /** For the next message; a field that stays at its default is left out. */
  get chosen(): Choice {
    const [model, toolMode] = [this.model.chosen.value, this.toolMode.chosen.value];
    return { ...(model && { model }), ...(toolMode && { toolMode }) };
  }

  offer({ models, toolModes }: Offer): void {
    const modes = toolModes.map((name): Option => [name, TOOL_MODES.get(name) ?? `Tools: ${name}`]);
    this.toolMode.options.value = modes.length ? [["", "Tools: default"], ...modes] : [];
    this.model.options.value = models.map((model) => [model.default ? "" : model.name, model.label]);
  }
}
