/**
 * Mathematics in Markdown, as models write it: `\( … \)` in a line, `\[ … \]` and `$$ … $$` on lines of their own.
 *
 * A single `$` is an amount of money more often than mathematics. `\(` without its end, and the space `\,`, keep their
 * backslashes: in Markdown alone they would lose them.
 */

import type { MarkdownIt, StateBlock, StateInline } from "markdown-it";

const MOST_CHARACTERS = 5_000;
const MOST_LINES = 50;
const PAIRS: readonly (readonly [string, string])[] = [
  ["\\[", "\\]"],
  ["$$", "$$"],
];

/** A line without its indentation. */
export const lineOf = ({ src, bMarks, tShift, eMarks }: StateBlock, line: number): string =>
  src.slice((bMarks[line] ?? 0) + (tShift[line] ?? 0), eMarks[line]);

export function addMathematics(parser: MarkdownIt): void {
  const alt = ["paragraph", "reference", "blockquote", "list"];
  parser.block.ruler.before("fence", "math_block", mathBlock, { alt });
  parser.inline.ruler.before("escape", "math_inline", mathInline);
  parser.inline.ruler.before("escape", "math_escape", mathEscape);
}

function mathBlock(state: StateBlock, start: number, end: number, silent: boolean): boolean {
  if ((state.sCount[start] ?? 0) - state.blkIndent >= 4) return false;
  const first = lineOf(state, start);
  const pair = PAIRS.find(([opening]) => first.startsWith(opening));
  if (!pair) return false;
  const last = lastLine(state, start, end, pair);
  if (last === null) return false;
  if (silent) return true;
  const lines = state.getLines(start, last + 1, state.blkIndent, false).trim();
  const token = state.push("math", "math", 0);
  token.map = [start, last + 1];
  token.markup = lines;
  token.content = lines.slice(2, -2).trim();
  token.block = true;
  state.line = last + 1;
  return true;
}

/** The line that ends with the closing mark; null when the paragraph ends before. */
function lastLine(state: StateBlock, start: number, end: number, [opening, closing]: readonly [string, string]): number | null {
  for (let line = start; line < Math.min(end, start + MOST_LINES); line += 1) {
    if (line > start && (state.isEmpty(line) || (state.sCount[line] ?? 0) < state.blkIndent)) return null;
    const text = line === start ? lineOf(state, line).slice(opening.length) : lineOf(state, line);
    const at = text.indexOf(closing);
    if (at >= 0) return text.slice(at + closing.length).trim() ? null : line;
  }
  return null;
}

function mathInline(state: StateInline, silent: boolean): boolean {
  const opening = state.src.slice(state.pos, state.pos + 2);
  const closing = opening === "\\(" ? "\\)" : opening === "$$" ? "$$" : null;
  if (!closing) return false;
  const end = state.src.indexOf(closing, state.pos + 2);
  const content = state.src.slice(state.pos + 2, end).trim();
  if (end < 0 || end + 2 > state.posMax || !content || content.length > MOST_CHARACTERS) return false;
  if (!silent) {
    const token = state.push("math", "math", 0);
    token.content = content;
    token.markup = state.src.slice(state.pos, end + 2);
    token.meta = { display: opening === "$$" };
  }
  state.pos = end + 2;
  return true;
}

/** `\(`, `\)` and `\,` as they are; `\[` too where a line begins with it and its end has not come. */
function mathEscape(state: StateInline, silent: boolean): boolean {
  const pair = state.src.slice(state.pos, state.pos + 2);
  if (!(pair === "\\(" || pair === "\\)" || pair === "\\," || (pair === "\\[" && beginsLine(state)))) return false;
  if (!silent) state.pending += pair;
  state.pos += 2;
  return true;
}

function beginsLine({ src, pos }: StateInline): boolean {
  if (pos > 0 && src[pos - 1] !== "\n") return false;
  const end = src.indexOf("\n", pos);
  return !src.slice(pos, end < 0 ? undefined : end).includes("\\]");
}
