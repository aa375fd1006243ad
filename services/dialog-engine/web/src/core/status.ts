/** The state in words: the status line, and announcements for screen readers. Pure functions. */

import { ENDED, needsApproval, openQuestions, visible, waitsForPerson, waitsForProgram } from "./calls";
import { answerOf } from "./items";
import type { About, Call, EndItem, Item, Outcome, ServerState, State } from "./types";

/**
 * The tool's real name, whole: as its server has it where that is known, otherwise without its server. Its title is what
 * its server says about it, and is never shown in place of the name.
 */
export function toolLabel({ toolName = "", server = "", approval }: Pick<Call, "toolName" | "server" | "approval">): string {
  const own = toolName.startsWith(`${server}__`) ? toolName.slice(server.length + 2) : toolName;
  return visible(approval?.tool || own || "tool");
}

const TOOL_STATUS = new Map([
  ["pending", "Waiting"],
  ["queued", "Queued"],
  ["running", "Running"],
  ["succeeded", "Succeeded"],
  ["failed", "Failed"],
  ["timeout", "Timed out"],
  ["cancelled", "Cancelled"],
  ["unknown", "Outcome unknown"],
  ["refused", "Refused"],
]);

/** The status of a call in words; one that this page does not know as it is. */
export const statusWord = (status: string): string => TOOL_STATUS.get(status) ?? status;

/** What a call waits for: its name, what its absence means for a call before it runs, and for one that runs. */
const MISSING = new Map([
  ["client", ["the program that asked"]],
  ["redis", ["Redis", "Redis is unavailable. The call waits for it", "Redis is unavailable. The outcome is shown when it is back"]],
  ["worker", ["a worker", "No worker is available. The call waits for one", "The worker is gone. The outcome is shown when a worker is back"]],
]);

/** Why a call is held up, as its card says it; empty for a call that is not. */
export function delayReason({ status, waitsFor, attempt }: Call): string {
  if (ENDED.has(status)) return "";
  if (waitsFor === "client") return "The call waits for the program that asked, which runs this tool.";
  const running = status === "running";
  const [, before = `The call waits for ${waitsFor}`, since = before] = MISSING.get(waitsFor ?? "") ?? [];
  if (waitsFor) return running ? `${since}, or at the deadline.` : `${before}, until its deadline at most.`;
  return running && (attempt ?? 1) > 1 ? "The worker that ran this call was lost. It is run again, which is safe for this tool." : "";
}

const NOTES = new Map([
  ["cancelled", "You stopped this answer."],
  ["interrupted", "This answer was interrupted."],
  ["unanswered", "This message got no answer: its turn failed, or was stopped."],
  ["length", "The answer was cut at the model's length limit."],
  ["content_filter", "The provider's content filter ended this answer."],
  ["repeated_calls", "The model kept repeating a tool call with the same result, so it answered with what it had."],
  ["max_calls", "The limit of tool calls was reached, so the model answered with what it had."],
  ["max_rounds", "The limit of tool rounds was reached, so the model answered with what it had."],
]);

/** Why an answer ended early, or that the model did not get the beginning of the conversation; empty for an ordinary end. */
export function noteText(reason: string, count = 0): string {
  if (reason === "stop" || reason === "error") return "";
  if (reason !== "left_out") return NOTES.get(reason) ?? `The answer ended early: ${reason}.`;
  const which = count === 1 ? "its oldest message" : `its ${count} oldest messages`;
  return `This conversation is long: the model was not sent ${which}.`;
}

const EXPOSURE = new Map([
  ["gateway", ", behind one gateway"],
  ["search", ", found by search"],
]);

/** How many tools there are, and how the model finds them when it is not shown each; empty when tools are disabled. */
export function toolsLine({ enabled, tools = 0, exposure = "direct" }: About["mcp"]): string {
  if (!tools) return enabled ? "No tools are available" : "";
  return `${tools} ${tools === 1 ? "tool" : "tools"}${EXPOSURE.get(exposure) ?? ""}`;
}

const SERVERS = new Map([
  ["connecting", "is being connected"],
  ["failed", "cannot be reached now, and is tried again"],
  ["disabled", "is not used"],
]);

export const isUsable = ({ state, breaker = "closed" }: ServerState): boolean => state === "ready" && breaker === "closed";

/** Whether the tools of a server can be used, and if not, why. */
export function serverWords(server: ServerState): string {
  if (server.state === "ready" && !isUsable(server)) return "has failed several times, and is tried again soon";
  return [SERVERS.get(server.state) ?? server.state, ...(server.error ? [visible(server.error)] : [])].join(": ");
}

/** What is going on now; empty when nothing is. */
export function statusLine({ phase, connection, turn, items }: State): string {
  if (phase === "loading") return "Loading the conversation…";
  if (phase === "sending") return "Sending…";
  if (phase !== "running") return "";
  if (connection === "reconnecting") return "Reconnecting…";
  if (turn?.stopping) return "Stopping…";
  if (connection === "waiting") return "Other tabs follow answers now. The end of this one is shown when it comes.";
  const calls = items.flatMap((item) => (item.kind === "tool" && !ENDED.has(item.call.status) ? [item.call] : []));
  if (calls.some(needsApproval)) return "Waiting for your approval…";
  if (calls.some((call) => openQuestions(call).length)) return "Waiting for your answer…";
  const missing = calls.find((call) => call.waitsFor)?.waitsFor;
  if (missing) return `Waiting for ${MISSING.get(missing)?.[0] ?? missing}…`;
  if (calls.length > 1) return `Running ${calls.length} tools…`;
  const [call] = calls;
  if (call) return call.status === "running" ? `Running ${toolLabel(call)}…` : `Waiting for ${toolLabel(call)}…`;
  const last = items.at(-1);
  return last?.kind === "answer" && last.open ? "Writing…" : "Thinking…";
}

/** Whether a message can take the place of what the running turn waits for: an approval, an answer or a program, alone. */
export function waitsForYou({ phase, turn, items }: State): boolean {
  if (phase !== "running" || turn?.stopping) return false;
  const calls = items.flatMap((item) => (item.kind === "tool" && !ENDED.has(item.call.status) ? [item.call] : []));
  return calls.length > 0 && calls.every((call) => waitsForPerson(call) || waitsForProgram(call));
}

/** The changes between two states that a screen reader announces; never single words of an answer. */
export function announcements(before: State, after: State): string[] {
  if (before.sessionId !== after.sessionId && after.phase !== "running") return [];
  const spoken: string[] = [];
  if (before.phase !== "running" && after.phase === "running") spoken.push("The answer is being written.");
  const lost = (state: State) => state.connection === "reconnecting";
  if (lost(before) !== lost(after) && after.phase === "running")
    spoken.push(lost(after) ? "Connection lost. Reconnecting." : "Connected again.");
  if (after.waiting.length > before.waiting.length && before.sessionId === after.sessionId)
    spoken.push("Your message waits until the answer is finished.");
  const known = new Map(before.items.map((item) => [item.key, item]));
  for (const item of after.items) {
    const earlier = known.get(item.key);
    if (item !== earlier) spoken.push(...itemSentences(item, earlier));
  }
  const end = after.items.at(-1);
  if (before.phase === "running" && end?.kind === "end" && !known.has(end.key)) spoken.push(...endSentences(end, after.items));
  return spoken;
}

/** How many characters of an answer are spoken when it ends; the rest is there to be read. */
const MOST_SPOKEN = 4_000;

/** That the answer has ended, and the answer itself, which is spoken only then. */
function endSentences({ reason }: EndItem, items: Item[]): string[] {
  const text = answerOf(items.slice(items.findLastIndex(({ kind }) => kind === "user") + 1));
  const words = text.replace(/[*_`#>|~]+/g, " ").replace(/\s+/g, " ").trim();
  const said = words.length > MOST_SPOKEN ? `${words.slice(0, MOST_SPOKEN)}…` : words;
  return [reason === "cancelled" ? "The answer was stopped." : "The answer is finished.", ...(said ? [said] : [])];
}

function itemSentences(item: Item, earlier: Item | undefined): string[] {
  if (item.kind === "error") return earlier ? [] : [`Error: ${item.message}`];
  if (item.kind !== "tool") return [];
  const { call } = item;
  const before = earlier?.kind === "tool" ? earlier.call : null;
  const spoken = call.status === "running" || ENDED.has(call.status); // what a listener needs: that it runs, and how it ended
  const news = call.past ? [] : [...questionSentences(call, before), ...(call.status === before?.status || !spoken ? [] : [`Tool ${toolLabel(call)}: ${statusWord(call.status)}.`]), ...delaySentence(call, before)];
  return call.approval?.status === before?.approval?.status ? news : [...news, ...approvalSentence(call)];
}

/** Why a call is held up, once for each reason, and that it continues. */
function delaySentence(call: Call, before: Call | null): string[] {
  const reason = delayReason(call);
  if (reason === (before ? delayReason(before) : "") || (call.status !== before?.status && !reason)) return [];
  return [`Tool ${toolLabel(call)}: ${reason || "continues."}`];
}

/** The announcement of an approval. A refusal is announced with the end of the call. */
function approvalSentence(call: Call): string[] {
  if (needsApproval(call)) return [`Tool ${toolLabel(call)} needs your approval.`];
  return ["approved", "edited"].includes(call.approval?.status ?? "") && !call.past ? [`Tool ${toolLabel(call)}: approved.`] : [];
}

const ENDS = new Map([
  ["asked", "asks you something"],
  ["answered", "has its answer"],
  ["declined", "has its answer: you declined"],
  ["cancelled", "has its answer: you dismissed the question"],
  ["expired", "has no answer in time"],
  ["withdrawn", "does not ask any more"],
]);

/** That a server asks, and how that ended, here or in another tab. */
function questionSentences(call: Call, before: Call | null): string[] {
  const earlier = new Map((before?.questions ?? []).map((each) => [each.questionId, each.status]));
  const changed = (call.questions ?? []).filter(({ questionId, status }) => earlier.get(questionId) !== status);
  return changed.map(({ status }) => `Tool ${toolLabel(call)} ${ENDS.get(status) ?? status}.`);
}

/** What a person checks before asking again for a call of which nobody knows whether it has taken effect. */
export const whatToCheck = (call: Call): string =>
  `It may have taken effect. Before you ask again, check at ${visible(call.server || "its server")} whether ${toolLabel(call)} has done what these arguments say.`;

export const stateLost = ({ server }: Call): string =>
  `${visible(server || "Its server")} was started anew before this call. What it remembered of earlier calls is lost.`;

/** What an answer cost, as the line below it says it. */
export function endFacts({ usage, ttftMs, model }: Outcome): string {
  const said = model ? [model.slice(model.indexOf(":") + 1)] : [];
  if (ttftMs !== undefined && Number.isFinite(ttftMs)) said.push(`First word after ${duration(ttftMs)}`);
  if (usage?.outputTokens || usage?.inputTokens)
    said.push(`${usage.estimated ? "≈ " : ""}${usage.inputTokens ?? 0} tokens in, ${usage.outputTokens ?? 0} out`);
  return said.join(" · ");
}

/** How much time is left, as a card says it. */
export function until(ms: number): string {
  if (ms <= 0) return "Expires now";
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 60) return `Expires in ${seconds} s`;
  return seconds < 3600 * 2 ? `Expires in ${Math.round(seconds / 60)} min` : `Expires in ${Math.round(seconds / 3600)} h`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}
