/** The types of markdown-it's parts, and what its rules have in common. */

import type { StateBlock as Block } from "markdown-it";

export type { MarkdownIt as Parser, StateBlock as Block, StateInline as Inline, Token } from "markdown-it";

/** A line without its indentation. */
export const lineOf = ({ src, bMarks, tShift, eMarks }: Block, line: number): string =>
  src.slice((bMarks[line] ?? 0) + (tShift[line] ?? 0), eMarks[line]);
