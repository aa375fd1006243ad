/** The state in words: one line for the eye, and sparse announcements for a screen reader. Pure functions. */

import { ENDED, needsApproval } from "./state.js";

export const toolLabel = ({ title, toolName = "" }) => title || toolName.split("__").at(-1) || "tool";

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

const MISSING = { redis: "Redis", worker: "a worker" };
const WAITS_FOR = {
  redis: "Redis is away. The call waits for it, until its deadline at most.",
  worker: "No worker is there. The call waits for one, until its deadline at most.",
};
const RUNNING_WAITS_FOR = {
  redis: "Redis is away. What becomes of the call is told when it is back, or at the deadline.",
  worker: "No worker is there any more. What becomes of the call is told when one is back, or at the deadline.",
};

/** What is said on a card of a call that does not go on as ever; empty for one that does. */
export function hitch({ status, waitsFor, attempt }) {
  if (ENDED.has(status)) return "";
  const running = status === "running";
  if (waitsFor) return (running ? RUNNING_WAITS_FOR : WAITS_FOR)[waitsFor] ?? `It waits for ${waitsFor}.`;
  return running && attempt > 1 ? "The worker that ran it was lost. It is run again, which is safe for this tool." : "";
}

export const NOTES = {
  cancelled: "You stopped this answer.",
  interrupted: "This answer was interrupted.",
  unanswered: "This message got no answer: its turn failed, or was stopped.",
  length: "The answer was cut at the model's length limit.",
  content_filter: "The provider's content filter ended this answer.",
  repeated_calls: "The model kept repeating a tool call with the same result, so it answered with what it had.",
  max_rounds: "The limit of tool rounds was reached, so the model answered with what it had.",
};

const EXPOSURE = { gateway: "behind one gateway", search: "found by search" };

/** How many tools there are, and how the model gets at them where it is not shown each; empty where there are to be none. */
export function toolsLine({ enabled, tools = 0, exposure = "direct" }) {
  if (!tools) return enabled ? "No tools are there just now" : "";
  const how = EXPOSURE[exposure] ? `, ${EXPOSURE[exposure]}` : "";
  return `${tools} ${tools === 1 ? "tool" : "tools"}${how}`;
}

/** What is going on right now; empty when nothing is. */
export function statusLine({ phase, connection, turn, items }) {
  if (phase === "loading") return "Loading the conversation…";
  if (phase === "sending") return "Sending…";
  if (phase !== "running") return "";
  if (connection === "reconnecting") return "Reconnecting…";
  if (turn.stopping) return "Stopping…";
  const calls = items.filter((item) => item.kind === "tool" && !ENDED.has(item.call.status)).map((item) => item.call);
  if (calls.some(needsApproval)) return "Waiting for your approval…";
  const waits = calls.find((call) => call.waitsFor);
  if (waits) return `Waiting for ${MISSING[waits.waitsFor] ?? waits.waitsFor}…`;
  if (calls.length > 1) return `Running ${calls.length} tools…`;
  if (calls.length)
    return calls[0].status === "running" ? `Running ${toolLabel(calls[0])}…` : `Waiting for ${toolLabel(calls[0])}…`;
  return items.at(-1)?.kind === "answer" && items.at(-1).open ? "Writing…" : "Thinking…";
}

/** What changed between two states that is worth hearing; never single words of an answer. */
export function announcements(before, after) {
  if (before.sessionId !== after.sessionId && after.phase !== "running") return [];
  const spoken = [];
  if (before.phase !== "running" && after.phase === "running") spoken.push("The answer is being written.");
  if (before.connection !== after.connection && after.phase === "running")
    spoken.push(after.connection === "live" ? "Connected again." : "Connection lost. Reconnecting.");
  if (after.queued && !before.queued) spoken.push("Your message waits for the answer that is being written.");
  const known = new Map(before.items.map((item) => [item.key, item]));
  for (const item of after.items) {
    const earlier = known.get(item.key);
    if (item.kind === "tool" && !item.call.past && item.call.status !== earlier?.call.status)
      spoken.push(toolSentence(item.call));
    if (item.kind === "tool" && !item.call.past) spoken.push(...hitchSentence(item.call, earlier?.call ?? {}));
    if (item.kind === "tool" && item.call.approval?.status !== earlier?.call.approval?.status)
      spoken.push(...approvalSentence(item.call));
    if (item.kind === "error" && !earlier) spoken.push(`Error: ${item.message}`);
  }
  if (before.phase === "running" && after.outcome && !before.outcome)
    spoken.push(after.outcome.reason === "cancelled" ? "The answer was stopped." : "The answer is finished.");
  return spoken;
}

function toolSentence(call) {
  const code = call.error?.code ? `, ${call.error.code}` : "";
  return `Tool ${toolLabel(call)}: ${TOOL_STATUS[call.status] ?? call.status}${code}.`;
}

/** Why a call does not go on, once for each reason, and that it does again. */
function hitchSentence(call, before) {
  if (hitch(call) === hitch(before) || call.status !== before.status && !hitch(call)) return [];
  return [`Tool ${toolLabel(call)}: ${hitch(call) || "goes on."}`];
}

/** What is said of an approval. How it was refused is told by the call's own end. */
function approvalSentence(call) {
  if (needsApproval(call)) return [`Tool ${toolLabel(call)} needs your approval.`];
  return ["approved", "edited"].includes(call.approval?.status) && !call.past ? [`Tool ${toolLabel(call)}: approved.`] : [];
}

/** How long is left, in the words of a card. */
export function until(ms) {
  if (ms <= 0) return "Expires now";
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 60) return `Expires in ${seconds} s`;
  return seconds < 3600 * 2 ? `Expires in ${Math.round(seconds / 60)} min` : `Expires in ${Math.round(seconds / 3600)} h`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}
