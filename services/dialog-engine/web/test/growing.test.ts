/** Answers that grow: the same in the end as when they come whole, and bounded in time and size. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Growing, MOST_CHARACTERS, type Part } from "../src/markdown/growing";
import type { Token } from "markdown-it";

const TEXT = [
  "# Head\n\nSome *words* and\nmore of them.\n\n",
  "1. one\n\n2. two\n\n   - inner\n\n       code\n\n",
  "Setext\n===\n\n> quoted\nlazily\n\n[a]: http://x/long\n\n",
  "| a | b |\n|---|--:|\n| 1 | 2 |\n\n",
  "```js\nlet x = 1;\n\n\nlet y;\n```\n\n",
  "See [a] and [b].\n\n\\[ a\\,b \\]\n\nand \\(c\\)\r\n\r\n***\n\nThe end.\n\n[b]: http://y",
].join("");

const plain = (tokens: Token[]): unknown[] =>
  tokens.map(({ type, content, attrs, children }) => [type, content, attrs, plain(children ?? [])]);
const shape = (parts: Part[]) => parts.map((part) => (part.kind === "text" ? [part.text, part.reason] : plain(part.tokens)));
const whole = (text: string) => shape(new Growing().update(text, false));
const types = (text: string) => whole(text).flat(2);

test("an answer cut anywhere is in the end the same as one that comes whole", () => {
  for (const size of [1, 2, 3, 7, 40]) {
    const growing = new Growing();
    for (let end = size; end < TEXT.length; end += size) growing.update(TEXT.slice(0, end), true);
    assert.deepEqual(shape(growing.update(TEXT, false)), whole(TEXT), `pieces of ${size}`);
  }
});

test("while it grows each whole block is what it is in the end", () => {
  const text = TEXT.replace(/\[[ab]\]: .*/g, "");
  const last = whole(text);
  const growing = new Growing();
  for (let end = 1; end <= text.length; end += 1) {
    const parts = growing.update(text.slice(0, end), true);
    assert.deepEqual(shape(parts.slice(0, -2)), last.slice(0, Math.max(0, parts.length - 2)), `after ${end}`);
  }
});

test("whole blocks stay the same objects, and are not parsed again", () => {
  const growing = new Growing();
  const before = growing.update("one\n\ntwo\n\nthree\n\nfo", true);
  const after = growing.update("one\n\ntwo\n\nthree\n\nfour", true);
  assert.ok(before.slice(0, 2).every((part, at) => part === after[at]));
  assert.equal(after.length, 4);
});

test("mathematics keeps its backslashes, and so do its marks before their end", () => {
  assert.deepEqual(types("\\(a+b\\) and \\,").flat(3).filter((each) => each === "math").length, 1);
  assert.match(JSON.stringify(whole("so \\(a\\,b\\)")), /"math","a\\\\,b"/);
  assert.match(JSON.stringify(whole("so \\(a\\,b")), /so \\\\\(a\\\\,b/);
  assert.match(JSON.stringify(whole("text:\n\\[\na\\\\b\n\\]")), /"math","a\\\\\\\\b"/);
  assert.match(JSON.stringify(whole("It costs $5, or $6 \\* 2")), /It costs \$5, or \$6 \* 2/);
  assert.match(JSON.stringify(whole("\\[no\\](http://x)")), /\[no\]\(http:\/\/x\)/);
});

const TABLE = `|${"a|".repeat(250)}\n|${"-|".repeat(250)}\n${"|\n".repeat(250)}\n`;
const HOSTILE: Record<string, string> = {
  "tables that are filled up": TABLE.repeat(12),
  "a table of many cells": `|a|b|\n|-|-|\n${`${"|".repeat(40)}\n`.repeat(9_000)}`,
  "heads of tables": "a\n|-|\n".repeat(60_000),
  "a long address that is referred to": `[1]: http://x/${"y".repeat(20_000)}\n\n${"[1] ".repeat(90_000)}`,
  emphasis: "*a **a ".repeat(55_000),
  brackets: "[".repeat(MOST_CHARACTERS),
  lines: "a\n".repeat(200_000),
  quotes: "> ".repeat(200_000),
  "nested marks": `${"*a **b ".repeat(700)}x${" b** a*".repeat(700)}`,
  "mathematics that does not end": "\\[\n".repeat(100_000),
  definitions: "[a]: b\n".repeat(50_000),
};
const count = (parts: Part[]): number =>
  parts.reduce((sum, part) => sum + (part.kind === "text" ? 1 : part.tokens.reduce((all, { children }) => all + 1 + (children?.length ?? 0), 0)), 0);

for (const [name, text] of Object.entries(HOSTILE))
  test(`bounded: ${name}`, () => {
    const began = process.cpuUsage();
    const parts = new Growing().update(text, false);
    const { user, system } = process.cpuUsage(began);
    assert.ok(user + system < 6e6, `${(user + system) / 1e6} s`);
    assert.ok(count(parts) < 400_000, `${count(parts)} tokens`);
  });

test("what is shown as text says why", () => {
  const reasons = (text: string) => new Growing().update(text, false).flatMap((part) => (part.kind === "text" ? [part.reason] : []));
  assert.deepEqual(reasons(`${"> ".repeat(150)}deep`), ["levels"]);
  assert.deepEqual(reasons("a".repeat(20_001)), ["long"]);
  assert.deepEqual(reasons(`${"word ".repeat(20)}\n\n`.repeat(3_100)), ["size"]);
  assert.deepEqual(reasons(`${"*a **b ".repeat(60)}x${" b** a*".repeat(60)}`), ["levels"]);
});

test("a text that takes too long is shown as text", () => {
  let time = 0;
  const parts = new Growing(() => (time += 1_000)).update("one\n\n*two*\n\nthree", false);
  assert.deepEqual(shape(parts), [["one\n\n*two*\n\nthree", "time"]]);
});

test("what has taken too long once is not parsed again while it grows", () => {
  let time = 0;
  const growing = new Growing(() => (time += 1_000));
  growing.update("*one*", true);
  const before = time;
  growing.update("*one* two", true);
  assert.equal(time, before);
});
