/**
 * Tokens of Markdown as nodes of the page. Which elements and attributes there can be is written here and nowhere else;
 * a text of a model becomes text, an address of a link, or the name of a language, and never HTML.
 */

import type { Token } from "markdown-it";
import { Fragment, h, type ComponentChildren, type VNode } from "preact";
import { CodeBlock } from "./code-block";
import { Formula } from "./formula";
import type { Reason } from "./parser";

/** An element that is open while its children are collected. */
interface Frame {
  make: (children: ComponentChildren[]) => ComponentChildren;
  children: ComponentChildren[];
  block: boolean;
  item?: boolean;
  link?: boolean;
}

const ELEMENTS = new Map([
  ["paragraph_open", "p"],
  ["blockquote_open", "blockquote"],
  ["bullet_list_open", "ul"],
  ["ordered_list_open", "ol"],
  ["list_item_open", "li"],
  ["thead_open", "thead"],
  ["tbody_open", "tbody"],
  ["tr_open", "tr"],
  ["th_open", "th"],
  ["td_open", "td"],
  ["em_open", "em"],
  ["strong_open", "strong"],
  ["s_open", "s"],
]);
/** Each has the direction of its own text; a paragraph of a list item that of the item, where its mark stands. */
const DIRECTED: ReadonlySet<string> = new Set(["p", "li", "th", "td"]);
const ALIGNED = /^text-align:(left|center|right)$/;

/** The tokens of one block. `open` says that it is being written. */
export const nodesOf = (tokens: Token[], open: boolean): ComponentChildren[] =>
  collected(tokens, (token) =>
    token.type === "inline" ? collected(token.children ?? [], inlineLeaf) : [leaf(token, open), "\n"],
  );

/** The nodes of tokens, of which each that has no children becomes `leafOf(token, inLink)`. */
function collected(tokens: Token[], leafOf: (token: Token, inLink: boolean) => ComponentChildren[]): ComponentChildren[] {
  const root: Frame = { make: (children) => children, children: [], block: false };
  const frames = [root];
  for (const token of tokens) {
    const frame = frames.at(-1) ?? root;
    if (token.nesting > 0) frames.push(opened(token, frame));
    else if (token.nesting < 0 && frames.length > 1) close(frames);
    else if (token.nesting === 0) frame.children.push(...leafOf(token, frames.some(({ link }) => link)));
  }
  while (frames.length > 1) close(frames);
  return root.children;
}

/** Ends the innermost element. A line end follows a block: it is what a reader of the text alone needs. */
function close(frames: Frame[]): void {
  const frame = frames.pop();
  if (frame) frames.at(-1)?.children.push(frame.make(frame.children), ...(frame.block ? ["\n"] : []));
}

function opened(token: Token, within: Frame): Frame {
  const [item, link] = [token.type === "list_item_open", token.type === "link_open"];
  return { make: maker(token, within.item ?? false), children: [], block: token.block && !token.hidden, item, link };
}

function maker(token: Token, inItem: boolean): Frame["make"] {
  if (token.hidden) return (children) => h(Fragment, null, children);
  if (token.type === "heading_open") {
    // The page owns the first two levels.
    const level = Math.min(6, Number(token.tag.slice(1)) + 2);
    return (children) => h(`h${level}`, { dir: "auto" }, children);
  }
  if (token.type === "link_open") return (children) => link(attribute(token, "href"), children, attribute(token, "title"));
  if (token.type === "table_open")
    return (children) => (
      <div class="wide" tabIndex={0} role="region" aria-label="Table"><table>{children}</table></div>
    );
  const tag = ELEMENTS.get(token.type);
  const dir = tag && DIRECTED.has(tag) && !(tag === "p" && inItem) ? "auto" : undefined;
  const attributes = { dir, start: start(token), align: ALIGNED.exec(attribute(token, "style"))?.[1] };
  return (children) => (tag ? h(tag, attributes, children) : h(Fragment, null, children));
}

const attribute = (token: Token, name: string): string => String(token.attrGet(name) ?? "");

/** The first number of a list, where it is not 1. */
function start(token: Token): number | undefined {
  const number = token.type === "ordered_list_open" ? Number(attribute(token, "start") || 1) : 1;
  return Number.isSafeInteger(number) && number !== 1 ? number : undefined;
}

const link = (href: string, children: ComponentChildren, title = ""): VNode => (
  <a href={href} title={title || undefined} target="_blank" rel="noopener noreferrer nofollow">{children}</a>
);

function leaf(token: Token, open: boolean): ComponentChildren {
  switch (token.type) {
    case "hr":
      return <hr />;
    case "fence":
      return <CodeBlock text={token.content} language={languageOf(token.info)} open={open} />;
    case "code_block":
      return <CodeBlock text={token.content} language="" open={open} />;
    case "math":
      return <Formula tex={token.content} source={token.markup} display />;
    case "plain":
      return <PlainText text={token.content} reason={token.meta?.reason as Reason} />;
    default:
      return token.content;
  }
}

/** The language of a code block, as it may be named. */
const languageOf = (info: string): string => /^[\w+#.-]{1,40}(?=\s|$)/.exec(info.trim())?.[0] ?? "";

function inlineLeaf(token: Token, inLink: boolean): ComponentChildren[] {
  switch (token.type) {
    case "softbreak":
    case "hardbreak":
      return [<br />, "\n"];
    case "code_inline":
      return [<code dir="ltr">{token.content}</code>];
    case "math":
      return [<Formula tex={token.content} source={token.markup} display={token.meta?.display === true} />];
    case "image":
      return [image(token, inLink)];
    default:
      return [token.content];
  }
}

/** An image becomes a link to it, so that nothing is loaded from another host; inside a link its description alone. */
function image(token: Token, inLink: boolean): ComponentChildren {
  const source = attribute(token, "src");
  const label = token.content || source;
  return inLink ? label : link(source, label);
}

const WHY: Record<Reason | "size", string> = {
  size: "The rest of this answer is shown as text, because it is very long.",
  cells: "This table is shown as text, because it is very large.",
  levels: "This part is shown as text, because it is nested very deeply.",
  long: "This part is shown as text, because it is very long.",
  time: "This part is shown as text, because its layout would take too long.",
};

/** A part of an answer that is shown as it was written, and why. */
export function PlainText({ text, reason }: { text: string; reason: Reason | "size" }) {
  return (
    <div class="plain" data-testid="plain-text">
      <p class="hint">{WHY[reason]}</p>
      <div class="plain-text" dir="auto">{text}</div>
    </div>
  );
}
