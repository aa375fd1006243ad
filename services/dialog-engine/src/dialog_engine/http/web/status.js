// @ts-check
/** The state in words: the status line, and announcements for screen readers. Pure functions. */

import { ENDED, needsApproval } from "./state.js";
import { visible } from "./visible.js";

/**
 * The tool's real name, whole: as its server has it where that is known, otherwise without its server. Its title is what
 * its server says about it, and is never shown in place of the name.
 * @param {Pick<Call, "toolName" | "server" | "approval">} call
 */
export function toolLabel({ toolName = "", server = "", approval }) {
  const own = toolName.startsWith(`${server}__`) ? toolName.slice(server.length + 2) : toolName;
  return visible(approval?.tool || own || "tool");
}

/** @type {Record<string, string>} */
export const TOOL_STATUS = {
  pending: "Waiting",
  queued: "Queued",
  running: "Running",
  succeeded: "Succeeded",
  failed: "Failed",
  timeout: "Timed out",
  cancelled: "Cancelled",
  unknown: "Outcome unknown",
  refused: "Refused",
};

/** @type {Record<string, string>} */
const MISSING = { redis: "Redis", worker: "a worker" };
/** @type {Record<string, string>} */
const WAITS_FOR = {
  redis: "Redis is unavailable. The call waits for it, until its deadline at most.",
  worker: "No worker is available. The call waits for one, until its deadline at most.",
};
/** @type {Record<string, string>} */
const RUNNING_WAITS_FOR = {
  redis: "Redis is unavailable. The outcome is shown when it is back, or at the deadline.",
  worker: "The worker is gone. The outcome is shown when a worker is back, or at the deadline.",
};

/**
 * Why a call is held up, as its card says it; empty for a call that is not.
 * @param {Call} call
 */
export function delayReason({ status, waitsFor, attempt }) {
  if (ENDED.has(status)) return "";
  const running = status === "running";
  if (waitsFor) return (running ? RUNNING_WAITS_FOR : WAITS_FOR)[waitsFor] ?? `The call waits for ${waitsFor}.`;
  return running && (attempt ?? 1) > 1 ? "The worker that ran this call was lost. It is run again, which is safe for this tool." : "";
}

/** @type {Record<string, string>} */
export const NOTES = {
  cancelled: "You stopped this answer.",
  interrupted: "This answer was interrupted.",
  unanswered: "This message got no answer: its turn failed, or was stopped.",
  length: "The answer was cut at the model's length limit.",
  content_filter: "The provider's content filter ended this answer.",
  repeated_calls: "The model kept repeating a tool call with the same result, so it answered with what it had.",
  max_calls: "The limit of tool calls was reached, so the model answered with what it had.",
  max_rounds: "The limit of tool rounds was reached, so the model answered with what it had.",
};

/**
 * That the model did not get the beginning of the conversation.
 * @param {number} count
 */
export const leftOutNote = (count) =>
  `This conversation is long: the model was not sent ${count === 1 ? "its oldest message" : `its ${count} oldest messages`}.`;

/** @type {Record<string, string>} */
const EXPOSURE = { gateway: "behind one gateway", search: "found by search" };

/**
 * How many tools there are, and how the model finds them when it is not shown each; empty when tools are disabled.
 * @param {ToolsInfo} info
 */
export function toolsLine({ enabled, tools = 0, exposure = "direct" }) {
  if (!tools) return enabled ? "No tools are available" : "";
  const how = EXPOSURE[exposure] ? `, ${EXPOSURE[exposure]}` : "";
  return `${tools} ${tools === 1 ? "tool" : "tools"}${how}`;
}

/**
 * What is going on now; empty when nothing is.
 * @param {State} state
 */
export function statusLine({ phase, connection, turn, items }) {
  if (phase === "loading") return "Loading the conversation…";
  if (phase === "sending") return "Sending…";
  if (phase !== "running") return "";
  if (connection === "reconnecting") return "Reconnecting…";
  if (turn?.stopping) return "Stopping…";
  const calls = items.filter((item) => item.kind === "tool" && !ENDED.has(item.call.status)).map((item) => item.call);
  if (calls.some(needsApproval)) return "Waiting for your approval…";
  const missing = calls.find((call) => call.waitsFor)?.waitsFor;
  if (missing) return `Waiting for ${MISSING[missing] ?? missing}…`;
  if (calls.length > 1) return `Running ${calls.length} tools…`;
  if (calls.length)
    return calls[0].status === "running" ? `Running ${toolLabel(calls[0])}…` : `Waiting for ${toolLabel(calls[0])}…`;
  const last = items.at(-1);
  return last?.kind === "answer" && last.open ? "Writing…" : "Thinking…";
}

/**
 * The changes between two states that a screen reader announces; never single words of an answer.
 * @param {State} before
 * @param {State} after
 */
export function announcements(before, after) {
  if (before.sessionId !== after.sessionId && after.phase !== "running") return [];
  /** @type {string[]} */
  const spoken = [];
  if (before.phase !== "running" && after.phase === "running") spoken.push("The answer is being written.");
  if (before.connection !== after.connection && after.phase === "running")
    spoken.push(after.connection === "live" ? "Connected again." : "Connection lost. Reconnecting.");
  if (after.queued && !before.queued) spoken.push("Your message waits until the answer is finished.");
  const known = new Map(before.items.map((item) => [item.key, item]));
  for (const item of after.items) {
    const earlier = known.get(item.key);
    if (item.kind === "tool" && !item.call.past && item.call.status !== earlier?.call.status)
      spoken.push(toolSentence(item.call));
    if (item.kind === "tool" && !item.call.past) spoken.push(...delaySentence(item.call, earlier?.call ?? null));
    if (item.kind === "tool" && item.call.approval?.status !== earlier?.call.approval?.status)
      spoken.push(...approvalSentence(item.call));
    if (item.kind === "error" && !earlier) spoken.push(`Error: ${item.message}`);
  }
  if (before.phase === "running" && after.outcome && !before.outcome)
    spoken.push(after.outcome.reason === "cancelled" ? "The answer was stopped." : "The answer is finished.");
  return spoken;
}

/** @param {Call} call */
function toolSentence(call) {
  const code = call.error?.code ? `, ${call.error.code}` : "";
  return `Tool ${toolLabel(call)}: ${TOOL_STATUS[call.status] ?? call.status}${code}.`;
}

/**
 * Why a call is held up, once for each reason, and that it continues.
 * @param {Call} call
 * @param {Call | null} before
 */
function delaySentence(call, before) {
  const reason = delayReason(call);
  if (reason === (before ? delayReason(before) : "") || (call.status !== before?.status && !reason)) return [];
  return [`Tool ${toolLabel(call)}: ${reason || "continues."}`];
}

/**
 * The announcement of an approval. A refusal is announced with the end of the call.
 * @param {Call} call
 */
function approvalSentence(call) {
  if (needsApproval(call)) return [`Tool ${toolLabel(call)} needs your approval.`];
  return ["approved", "edited"].includes(call.approval?.status ?? "") && !call.past ? [`Tool ${toolLabel(call)}: approved.`] : [];
}

/**
 * How much time is left, as a card says it.
 * @param {number} ms
 */
export function until(ms) {
  if (ms <= 0) return "Expires now";
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 60) return `Expires in ${seconds} s`;
  return seconds < 3600 * 2 ? `Expires in ${Math.round(seconds / 60)} min` : `Expires in ${Math.round(seconds / 3600)} h`;
}

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}
