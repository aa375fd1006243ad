/** Mathematics: its source until it is laid out, and where it cannot be. */

import { h, type VNode } from "preact";
import { type MathNode, useLaidOut } from "./workshop";

const ELEMENTS: ReadonlySet<string> = new Set(
  (
    "math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msup msub msubsup mover munder munderover mmultiscripts " +
    "mprescripts mtable mtr mtd mstyle mpadded mphantom menclose none"
  ).split(" "),
);
const ATTRIBUTES: ReadonlySet<string> = new Set(
  (
    "accent accentunder columnalign columnlines columnspacing depth dir display displaystyle fence form height linethickness " +
    "lspace mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy " +
    "symmetric voffset width columnspan rowspan mathcolor mathbackground"
  ).split(" "),
);
const STYLES: ReadonlySet<string> = new Set(["color", "padding", "paddingLeft", "paddingRight", "border", "width"]);
const PLAIN_VALUE = /^[\w#.% -]{1,40}$/;

export function Formula({ tex, source, display }: { tex: string; source: string; display: boolean }) {
  const root = useLaidOut("math", { tex, display });
  const shown = root ? node(root) : null;
  const region = { tabIndex: 0, role: "region", "aria-label": "Formula" } as const;
  return (
    <span class={display ? "formula wide" : "formula"} dir="ltr" data-testid="formula" {...(display && region)}>
      {shown ?? source}
    </span>
  );
}

/** A node of MathML; elements and attributes that are not known are left out. */
function node({ tag, attributes = {}, style = {}, children, text }: MathNode): VNode | string {
  if (text !== undefined) return text;
  const inner = (children ?? []).map(node);
  if (!tag || !ELEMENTS.has(tag)) return h("mrow", null, inner);
  const kept = Object.entries(attributes).filter(([name]) => ATTRIBUTES.has(name));
  const styles = Object.entries(style).filter(([name, value]) => STYLES.has(name) && PLAIN_VALUE.test(value));
  return h(tag, { ...Object.fromEntries(kept), ...(styles.length && { style: Object.fromEntries(styles) }) }, inner);
}
