/** The worker that colours code and lays out mathematics, and its end. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { BEGUN, Workshop } from "../src/markdown/workshop";
import { highlight } from "../src/worker/highlight";
import { math } from "../src/worker/math";

/** A worker that sends what `answer` says to a request. */
class Scripted {
  onmessage: ((event: { data: unknown }) => void) | null = null;
  ended = false;
  constructor(readonly answer: (request: object) => unknown[]) {}
  postMessage(request: object) {
    for (const data of this.answer(request)) queueMicrotask(() => this.onmessage?.({ data }));
  }
  terminate() {
    this.ended = true;
  }
}

const wanted = () => true;

test("a block that takes too long ends the worker; the next one gets another", async () => {
  const workers: Scripted[] = [];
  const answer = (request: object) => (JSON.stringify(request).includes("slow") ? [BEGUN] : [BEGUN, [["made", null]]]);
  const shop = new Workshop(() => {
    workers.push(new Scripted(answer));
    return workers.at(-1) as unknown as Worker;
  });
  const make = (text: string) => shop.make("highlight", { text, language: "js" }, wanted);
  const results = await Promise.all([make("a"), make("slow"), make("b")]);
  assert.deepEqual(results, [[["made", null]], null, [["made", null]]]);
  assert.deepEqual(
    workers.map(({ ended }) => ended),
    [true, false],
  );
});

test("a kind of work that cannot be loaded is asked for once, and what is not wanted any more not at all", async () => {
  const asked: object[] = [];
  const shop = new Workshop(() => new Scripted((request) => (asked.push(request), [null])) as unknown as Worker);
  const work = { tex: "a", display: false };
  assert.equal(await shop.make("math", work, () => false), null);
  assert.deepEqual(asked, []);
  assert.equal(await shop.make("math", work, wanted), null);
  assert.equal(await shop.make("math", work, wanted), null);
  assert.deepEqual(asked, [{ kind: "math", work }]);
});

test("code becomes pieces that are together the code", () => {
  const text = "def f(x):\n    return 'a' + 1  # <b>\n";
  const runs = highlight({ text, language: "python" }) ?? [];
  assert.equal(runs.map(([piece]) => piece).join(""), text);
  assert.deepEqual(runs[0], ["def", "hljs-keyword"]);
  assert.equal(highlight({ text, language: "of nobody" }), null);
});

test("TeX becomes a tree; what would link, load or style is refused", () => {
  assert.equal(math({ tex: "a\\,b", display: false }).tag, "math");
  for (const tex of ["\\href{javascript:x}{y}", "\\includegraphics{http://x}", "\\htmlStyle{color:red}{x}", "\\unknown"])
    assert.throws(() => math({ tex, display: true }));
});
