/** TeX as a tree of MathML, never HTML. Nothing in it can load, link or style anything (`trust: false`). */

import temml from "temml";
import type { Jobs, MathNode } from "../markdown/workshop";

const OPTIONS = { trust: false, throwOnError: true, maxExpand: 500, maxSize: [20, 200] as [number, number] };

/** A node of Temml: an element has a type, a fragment only children, a text its text. */
interface Made {
  type?: string;
  text?: string;
  attributes?: Record<string, unknown>;
  style?: Record<string, unknown>;
  children?: Made[];
}

/** Throws what Temml throws for TeX that it does not know. */
export function math({ tex, display }: Jobs["math"]["work"]): MathNode {
  return plain(temml.__renderToMathMLTree(tex, { ...OPTIONS, displayMode: display }));
}

function plain({ type, text, attributes = {}, style = {}, children = [] }: Made): MathNode {
  if (text !== undefined) return { text };
  return { tag: type ?? "mrow", attributes: texts(attributes), style: texts(style), children: children.map(plain) };
}

const texts = (values: Record<string, unknown>): Record<string, string> =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, String(value)]));
