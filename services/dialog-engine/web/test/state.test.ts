/** The state: events that are replayed, late or doubled. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { needsApproval, visible } from "../src/core/calls";
import { backOff } from "../src/core/follow";
import { initial, reduce } from "../src/core/state";
import { delayReason, statusLine, toolLabel, waitsForYou } from "../src/core/status";
import type { Action, Call, State } from "../src/core/types";

const ATTACHED: Action = { type: "attached", turnId: "t1" };
const after = (...actions: Action[]): State => actions.reduce(reduce, initial);
const event = (id: string, type: string, data: object): Action => ({ type: "event", event: { id, type, data } });
const texts = ({ items }: State) => items.flatMap((item) => (item.kind === "answer" ? [item.text] : []));
const kinds = ({ items }: State) => items.map(({ kind }) => kind);
const calls = ({ items }: State): Call[] => items.flatMap((item) => (item.kind === "tool" ? [item.call] : []));

test("an event is applied once", () => {
  const [first, second] = [event("1-1", "text", { delta: "a" }), event("1-2", "text", { delta: "b" })];
  const state = after(ATTACHED, first, second, first, second, event("1-10", "text", { delta: "c" }));
  assert.deepEqual(texts(state), ["abc"]);
});

test("events of a later epoch come after those of an earlier one", () => {
  const [early, late] = [event("1-900", "text", { delta: "a" }), event("2-1", "text", { delta: "b" })];
  assert.deepEqual(texts(after(ATTACHED, early, late)), ["ab"]);
  assert.deepEqual(texts(after(ATTACHED, late, early)), ["b"]);
});

test("a call of the program that asked is said to wait for it, and another message may take its place", () => {
  const step = { type: "tool", correlationId: "c", toolName: "pick_colour", server: "client", waitsFor: "client" };
  const waits = after(ATTACHED, event("1-1", "control", { ...step, status: "pending", arguments: {} }));
  assert.equal(statusLine(waits), "Waiting for the program that asked…");
  assert.deepEqual(calls(waits).map(delayReason), ["The call waits for the program that asked, which runs this tool."]);
  assert.ok(waitsForYou(waits));
  const ended = after(ATTACHED, event("1-1", "control", { ...step, status: "succeeded", waitsFor: undefined }));
  assert.ok(!waitsForYou(ended));
});

test("a reset removes unfinished text, and later events continue", () => {
  const replayed = [{ event: "message", data: { messageId: 7, content: "kept" } }];
  const state = after(
    { type: "submitted", text: "Hi" },
    ATTACHED,
    event("1-5", "message", { messageId: 7, content: "kept" }),
    event("1-9", "text", { delta: "dropped" }),
    event("2-2", "reset", { reason: "", events: replayed }),
    event("2-3", "text", { delta: "again" }),
    event("2-2", "reset", { reason: "", events: replayed }),
  );
  assert.deepEqual(texts(state), ["kept", "again"]);
  assert.deepEqual(kinds(state), ["user", "answer", "answer"]);
});

test("items that are read again keep their keys", () => {
  const stored = { correlationId: "c", toolName: "t", status: "succeeded" };
  const messages = [
    { role: "user", content: "Hi", turnId: "t1", messageId: 1 },
    { role: "assistant", content: "kept", turnId: "t1", messageId: 7, toolCalls: [stored] },
  ];
  const before: Action[] = [
    { type: "named", sessionId: "s" },
    { type: "submitted", text: "Hi" },
    ATTACHED,
    event("1-1", "message", { messageId: 7, content: "kept", toolCalls: [{ correlationId: "c" }] }),
    event("1-2", "control", { type: "tool", correlationId: "c", toolName: "t", status: "running" }),
  ];
  const history = { sessionId: "s", title: "", messages, turns: [], runningTurnId: null };
  const read = after(...before, { type: "loaded", history });
  assert.deepEqual(
    read.items.map(({ key }) => key),
    after(...before).items.map(({ key }) => key),
  );
  assert.equal(calls(read)[0]?.status, "succeeded");
});

const STEP = { type: "tool", correlationId: "c", toolName: "t" };

test("a late step does not change an ended call", () => {
  const ended = event("1-1", "control", { ...STEP, status: "succeeded" });
  const state = after(ATTACHED, ended, event("1-2", "control", { ...STEP, status: "running" }));
  assert.deepEqual(
    calls(state).map(({ status }) => status),
    ["succeeded"],
  );
});

test("a message without deltas stands above the cards of its calls", () => {
  const said = event("1-2", "message", { content: "I will call it.", toolCalls: [{ correlationId: "c" }] });
  assert.deepEqual(kinds(after(ATTACHED, event("1-1", "control", { ...STEP, status: "pending" }), said)), ["answer", "tool"]);
});

test("no call is shown as running after its turn, or from the history", () => {
  const running = event("1-1", "control", { ...STEP, status: "running" });
  const ended = after(ATTACHED, running, event("1-2", "done", { reason: "stop" }));
  assert.equal(ended.phase, "idle");
  const messages = [{ role: "assistant", content: "", turnId: "t0", toolCalls: [{ ...STEP, status: "pending" }] }];
  const read = after({ type: "loaded", history: { sessionId: "s", messages, runningTurnId: null } });
  assert.deepEqual([calls(ended)[0]?.status, calls(read)[0]?.status], ["unknown", "unknown"]);
});

test("a rejected message is removed from the screen", () => {
  const state = after({ type: "submitted", text: "hello" }, { type: "rejected" });
  assert.deepEqual([state.items, state.phase], [[], "idle"]);
});

test("reconnect delays grow to a limit and are random", () => {
  const delays = [0, 1, 2, 3, 20].map((attempt) => [backOff(attempt, () => 0), backOff(attempt, () => 1)]);
  assert.deepEqual(delays, [[200, 400], [400, 800], [800, 1600], [1600, 3200], [7500, 15000]]); // prettier-ignore
});

const WHOLE = { toolCallId: "call_1", correlationId: "one", toolName: "a__b", server: "a", round: 1 };

test("what a call waits for is that of the newest step", () => {
  const step = (id: string, more: object) => event(id, "control", { type: "tool", ...WHOLE, ...more });
  const waitsFor = (...events: Action[]) => calls(after(ATTACHED, ...events))[0]?.waitsFor;
  const pending = { type: "tool", ...WHOLE, status: "pending", arguments: { x: 1 } };
  const before = [step("1-1", pending), step("1-2", { status: "pending", waitsFor: "redis" })];
  assert.equal(waitsFor(...before), "redis");
  assert.equal(waitsFor(...before, step("1-3", { status: "pending" })), null);
  assert.equal(waitsFor(...before, step("1-3", { status: "running", attempt: 1 })), null);
  assert.equal(waitsFor(...before, event("2-1", "reset", { events: [{ event: "control", data: pending }] })), null);
  assert.equal(waitsFor(...before, event("1-3", "done", { reason: "error" })), null);
});

const PENDING = { type: "tool", status: "pending", ...WHOLE, arguments: { x: 1 } };
const ASKED = { type: "approval", status: "asked", ...WHOLE, arguments: { x: 1 }, hash: "h", policy: "always" };
const EDITED = { type: "approval", status: "edited", ...WHOLE, arguments: { x: 2 }, decidedAt: "now" };
const ENDED = { type: "tool", status: "refused", ...WHOLE, durationMs: 0 };

function callAfter(...events: Action[]) {
  const [call] = calls(after(ATTACHED, ...events));
  assert.ok(call);
  return { ...call, waits: needsApproval(call) };
}
const controls = (...all: object[]) => all.map((data, at) => event(`1-${at + 1}`, "control", data));

test("a call needs approval until the decision", () => {
  const asked = callAfter(...controls(PENDING, ASKED));
  assert.deepEqual([asked.waits, asked.status, asked.approval?.hash], [true, "pending", "h"]);
  const decided = callAfter(...controls(PENDING, ASKED, EDITED));
  assert.deepEqual([decided.waits, decided.arguments], [false, { x: 2 }]);
});

test("an ended call needs no approval", () => {
  const ended = callAfter(...controls(PENDING, ASKED, ENDED, ASKED));
  assert.deepEqual([ended.waits, ended.status], [false, "refused"]);
});

test("a missed decision is in a reset", () => {
  const events = [PENDING, EDITED].map((data) => ({ event: "control", data }));
  const call = callAfter(...controls(PENDING, ASKED), event("2-1", "reset", { reason: "why", events }));
  assert.deepEqual([call.waits, call.approval?.status, call.arguments], [false, "edited", { x: 2 }]);
});

test("a name with the separator in it is shown whole", () => {
  const names = { files__read__delete: "files", my_files__delete: "my files", a__b: "" };
  const labels = Object.entries(names).map(([toolName, server]) => toolLabel({ toolName, server }));
  assert.deepEqual(labels, ["read__delete", "my_files__delete", "a__b"]);
});

test("what can be seen is shown as it is", () => {
  const text = "Größe: 5 €, 東京, עברית, \u{1f600}\n  x";
  assert.equal(visible(text), text);
  assert.equal(visible("a\u202eb\u00a0\u{e0041}"), "a\\u202eb\\u00a0\\udb40\\udc41");
});
