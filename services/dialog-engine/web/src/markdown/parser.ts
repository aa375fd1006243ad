/**
 * The dialect of the answers: CommonMark with tables, strikethrough, hard line breaks and mathematics, as tokens.
 *
 * A short text can become a large page, or take long. A row of a table fills up to the width of its head; each text
 * therefore has a number of cells, and a time, after which it is shown as it was written.
 */

import MarkdownIt, { type MarkdownIt as Parser, type StateBlock, type Token } from "markdown-it";
import { addMathematics, lineOf } from "./mathematics";

/** The most cells of the tables of one answer. */
export const MOST_CELLS = 5_000;
/** The most levels of blocks, and of marks in a line. */
export const MOST_LEVELS = 100;
/** How long one parse may take, in ms. 48 kB take 31 ms; the machine may be busy (docs/adr/0080-the-page-is-built.md). */
const MOST_MS = 3_000;
/** The most characters of a paragraph or a cell in which marks are looked for. */
const MOST_INLINE = 20_000;
/** A longer address is not a link: it could be referred to many times. */
const MOST_ADDRESS = 2_000;
/** Why a part of an answer is shown as text. */
export type Reason = "cells" | "levels" | "long" | "time";

/** What the parts of one text share: the definitions of its links, the cells so far, and when its time ends. */
export interface Shared {
  references: Record<string, { href: string; title?: string }>;
  cells: number;
  endsAt: number;
  now: () => number;
}

export const nothingShared = (now: () => number): Shared => ({
  references: Object.create(null),
  cells: 0,
  endsAt: now() + MOST_MS,
  now,
});

/** The time is over. */
export class TimeOver extends Error {}

/** The tokens of `text`; `shared` is filled. Throws TimeOver. */
export function parse(text: string, shared: Shared): Token[] {
  shared.endsAt = shared.now() + MOST_MS;
  return PARSER.parse(text, shared as unknown as Record<string, unknown>);
}

const SAFE_LINK = /^(?:https?|mailto):/i;
const PARSER = parser();

function parser(): Parser {
  const made = new MarkdownIt("commonmark", { html: false, breaks: true, maxNesting: MOST_LEVELS });
  made.enable(["table", "strikethrough"]);
  made.validateLink = (url) => url.length <= MOST_ADDRESS && SAFE_LINK.test(url.trim());
  addMathematics(made);
  // A rule that matches nothing: rules are tried at each line, and at each special character of a line.
  const alt = ["paragraph", "reference", "blockquote", "list"];
  made.block.ruler.before("table", "time", (state) => inTime(state.env as unknown as Shared), { alt });
  made.inline.ruler.before("text", "time", (state) => inTime(state.env as unknown as Shared));
  made.block.ruler.before("table", "large_table", largeTable, { alt: ["paragraph", "reference"] });
  made.core.ruler.at("inline", (state) => {
    for (const token of state.tokens) {
      if (token.type !== "inline") continue;
      token.children = [];
      if (token.content.length > MOST_INLINE) token.meta = { reason: "long" };
      else made.inline.parse(token.content, made, state.env, token.children);
    }
  });
  return made;
}

function inTime(shared: Shared): boolean {
  if (shared.now() > shared.endsAt) throw new TimeOver();
  return false;
}

const DELIMITERS = /^ {0,3}[|:-][-|: \t]*$/;

/** Counts the cells of a table before they are made; one with too many becomes a token "plain". */
function largeTable(state: StateBlock, start: number, end: number, silent: boolean): boolean {
  if (start + 1 >= end || !lineOf(state, start).includes("|")) return false;
  const delimiters = lineOf(state, start + 1);
  if (!delimiters.includes("|") || !DELIMITERS.test(delimiters)) return false;
  const columns = delimiters.trim().replace(/^\||\|$/g, "").split("|").length;
  let next = start + 2;
  while (next < end && !state.isEmpty(next) && (state.sCount[next] ?? 0) >= state.blkIndent) next += 1;
  const cells = columns * (next - start - 1);
  const shared = state.env as unknown as Shared;
  if (shared.cells + cells <= MOST_CELLS) {
    if (!silent) shared.cells += cells;
    return false;
  }
  if (silent) return true;
  const token = state.push("plain", "", 0);
  token.map = [start, next];
  token.content = state.getLines(start, next, state.blkIndent, false);
  token.meta = { reason: "cells" };
  state.line = next;
  return true;
}
