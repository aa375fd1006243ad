/** Code in colours: pieces of text with the classes of highlight.js, never HTML. */

import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import markdown from "highlight.js/lib/languages/markdown";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import type { Jobs, Run } from "../markdown/workshop";

const LANGUAGES = {
  ...{ bash, c, cpp, csharp, css, diff, dockerfile, go, ini, java, javascript, json, kotlin, markdown, php, python },
  ...{ ruby, rust, sql, swift, typescript, xml, yaml },
};
const lowlight = createLowlight(LANGUAGES);
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
