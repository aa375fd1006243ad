/** What a turn says of itself: the same live and read again. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { initial, reduce } from "../src/core/state";
import { summaryOf } from "../src/core/turns";
import type { Action, Call, State } from "../src/core/types";

const CALLS = [
  { correlationId: "a", round: 1, durationMs: 1_000 },
  { correlationId: "b", round: 1, durationMs: 2_000 },
  { correlationId: "c", round: 2, durationMs: 500 },
].map((call): Call => ({ ...call, toolName: "t", status: "succeeded" }));

test("tools that ran beside each other are counted once", () => {
  const steps = CALLS.map((call, at): Action => ({ type: "event", event: { id: `1-${at}`, type: "control", data: { ...call, type: "tool" } } }));
  const live = [{ type: "attached", turnId: "t1" } as Action, ...steps].reduce(reduce, initial as State);
  assert.equal(summaryOf(live.items), "3 tools · 2.5 s");
  const messages = [1, 2].map((round) => ({
    ...{ role: "assistant", content: "", turnId: "t1", messageId: round },
    toolCalls: CALLS.filter((call) => call.round === round).map(({ round: _, ...call }) => call),
  }));
  const read = reduce(initial as State, { type: "loaded", history: { sessionId: "s", runningTurnId: null, messages } });
  assert.equal(summaryOf(read.items), "3 tools · 2.5 s");
});
