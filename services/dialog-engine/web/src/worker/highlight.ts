/** Code in colours: pieces of text with the classes of highlight.js, never HTML. */

import dockerfile from "highlight.js/lib/languages/dockerfile";
import { common, createLowlight } from "lowlight";
import type { Jobs, Run } from "../markdown/workshop";

const lowlight = createLowlight({ ...common, dockerfile });
const SCOPE = /^(?:hljs-)?[a-z][\w-]*$/;

type Tree = ReturnType<typeof lowlight.highlight>["children"];

/** The pieces of a text, in order; null for a language that is not known. */
export function highlight({ text, language }: Jobs["highlight"]["work"]): Run[] | null {
  if (!lowlight.registered(language)) return null;
  const runs: Run[] = [];
  collect(lowlight.highlight(language, text).children, null, runs);
  return runs;
}

function collect(tree: Tree, scope: string | null, runs: Run[]): void {
  for (const node of tree) {
    if (node.type === "text") runs.push([node.value, scope]);
    else if (node.type === "element") collect(node.children as Tree, scopeOf(node.properties.className) ?? scope, runs);
  }
}

const scopeOf = (names: unknown): string | null =>
  Array.isArray(names) ? names.filter((name) => typeof name === "string" && SCOPE.test(name)).join(" ") || null : null;
