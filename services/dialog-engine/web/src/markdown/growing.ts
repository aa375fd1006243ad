/**
 * An answer that grows, as blocks. Blocks that are whole are kept: only the last one is parsed again.
 *
 * A block is whole when a later one has begun on a whole line. No text that comes after that can change it, except a
 * definition of a link, which all blocks get once the answer has ended.
 */

import type { Token } from "markdown-it";
import { MOST_LEVELS, nothingShared, parse, type Reason, type Shared, TimeOver } from "./parser";

/** The most characters of an answer that are laid out. */
export const MOST_CHARACTERS = 300_000;

/** A part of an answer: tokens, or text as it was written. It is the same object as long as it stays the same. */
export type Part =
  | { kind: "tokens"; key: string; tokens: Token[]; open: boolean }
  | { kind: "text"; key: string; text: string; reason: Reason | "size" };

export class Growing {
  #text = "";
  #open = true;
  #parts: Part[] = [];
  #kept: Part[] = [];
  #at = 0; // where the first block begins that is not kept
  #over = false; // what begins there has taken too long once
  #shared: Shared;

  /** `now` is a clock in milliseconds. */
  constructor(private readonly now: () => number = () => performance.now()) {
    this.#shared = nothingShared(now);
  }

  /** The parts of `text`; `open` says that more will come. */
  update(text: string, open: boolean): Part[] {
    if (text === this.#text && open === this.#open) return this.#parts;
    if (!text.startsWith(this.#text.slice(0, this.#at))) this.#forget();
    this.#text = text;
    this.#open = open;
    this.#parts = [...this.#grown(text.slice(0, MOST_CHARACTERS), open), ...rest(text)];
    return this.#parts;
  }

  #forget(): void {
    this.#kept = [];
    this.#at = 0;
    this.#over = false;
    this.#shared = nothingShared(this.now);
  }

  #grown(text: string, open: boolean): Part[] {
    for (;;) {
      const tail = text.slice(this.#at);
      const shared = { ...this.#shared, references: { ...this.#shared.references } };
      const blocks = this.#over ? null : parsed(tail, shared);
      this.#over = blocks === null;
      // A definition may stand below its use: in the end all blocks get all of them.
      if (!open && this.#at > 0 && Object.keys(shared.references).length > 0) {
        this.#forget();
        continue;
      }
      const whole = open ? wholeBlocks(tail, blocks) : 0;
      if (whole === 0) return [...this.#kept, ...partsOf(tail, blocks, this.#kept.length, open)];
      // Parsed once more, for what they define.
      const kept = tail.slice(0, whole);
      this.#kept.push(...partsOf(kept, parsed(kept, this.#shared), this.#kept.length, false));
      this.#at += whole;
    }
  }
}

/** The blocks of the first level; null when they take too long. */
function parsed(text: string, shared: Shared): Token[][] | null {
  try {
    return split(parse(text, shared));
  } catch (error) {
    if (error instanceof TimeOver) return null;
    throw error;
  }
}

/** How many characters are blocks that nothing can change: all before the last one that begins on a whole line. */
function wholeBlocks(text: string, blocks: Token[][] | null): number {
  if (!blocks || blocks.length < 2) return 0;
  const starts = lineStarts(text);
  const begins = blocks.map(([first]) => first?.map?.[0] ?? 0).filter((line) => line < starts.length - 1);
  return starts[begins.at(-1) ?? 0] ?? 0;
}

function partsOf(text: string, blocks: Token[][] | null, from: number, open: boolean): Part[] {
  if (!blocks) return [{ kind: "text", key: `${from}`, text, reason: "time" }];
  const starts = lineStarts(text);
  return blocks.map((tokens, at) => {
    const key = `${from + at}`;
    const reason = reasonOf(tokens);
    if (!reason) return { kind: "tokens", key, tokens, open: open && at === blocks.length - 1 };
    const [first, end] = tokens[0]?.map ?? [0, starts.length];
    return { kind: "text", key, text: text.slice(starts[first], starts[end]).trimEnd(), reason };
  });
}

/** What is too long to be laid out. */
const rest = (text: string): Part[] =>
  text.length > MOST_CHARACTERS ? [{ kind: "text", key: "rest", text: text.slice(MOST_CHARACTERS), reason: "size" }] : [];

/** Where each line of the text begins, in characters. */
function lineStarts(text: string): number[] {
  return [0, ...Array.from(text.matchAll(/\r\n?|\n/g), ({ 0: end, index }) => index + end.length)];
}

/** The tokens of each block of the first level. */
function split(tokens: Token[]): Token[][] {
  const blocks: Token[][] = [];
  let begins = 0;
  for (const [at, { level, nesting }] of tokens.entries()) {
    if (level !== 0 || nesting > 0) continue;
    blocks.push(tokens.slice(begins, at + 1));
    begins = at + 1;
  }
  return blocks;
}

/** Why a block is shown as text; null for one that is laid out. */
function reasonOf(tokens: Token[]): Reason | null {
  for (const { level, meta, children, type } of tokens) {
    if (level >= MOST_LEVELS - 1) return "levels";
    if (type === "inline" && level + deepest(children ?? []) > MOST_LEVELS) return "levels";
    if (meta?.reason && type === "inline") return meta.reason as Reason;
  }
  return null;
}

function deepest(tokens: Token[]): number {
  let [level, most] = [0, 0];
  for (const { nesting } of tokens) {
    level += nesting;
    most = Math.max(most, level);
  }
  return most;
}
