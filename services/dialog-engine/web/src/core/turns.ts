/** The items of a conversation as turns: each begins with a question, and has all that was done and said for it. */

import { answered, opensItself, visible } from "./calls";
import { duration, toolLabel } from "./status";
import type { Call, Item, State, ToolItem } from "./types";

/** It is the same object for as long as nothing in it changes. `live`: more of it may come. */
export interface Turn {
  key: string;
  items: Item[];
  live: boolean;
  /** Of its question and its answer, where there are several: all of them, this one too. */
  versions: string[] | undefined;
}

/** The turns of `items`; those that were in `before` are the same objects when nothing changed. `live` is of the last one. */
export function turnsOf(items: Item[], live: boolean, before: Turn[], versions: State["versions"] = {}): Turn[] {
  const groups: Item[][] = [];
  for (const item of items) {
    const group = groups.at(-1);
    if (item.kind === "user" || !group) groups.push([item]);
    else group.push(item);
  }
  const known = new Map(before.map((turn) => [turn.key, turn]));
  return groups.map((group, at) => {
    const [first] = group;
    const last = at === groups.length - 1;
    const turn = { key: first?.key ?? "", items: group, live: live && last, versions: versions[first?.turnId ?? ""] };
    const earlier = known.get(turn.key);
    return earlier && same(earlier, turn) ? earlier : turn;
  });
}

const same = (left: Turn, right: Turn): boolean =>
  left.live === right.live && left.versions === right.versions && left.items.length === right.items.length && left.items.every((item, at) => item === right.items[at]);

export const callsOf = (items: Item[]): Call[] => items.flatMap((item) => (item.kind === "tool" ? [item.call] : []));

/** What is folded away: the reasoning, and the calls of which nobody is or was asked, or is to know anything. */
export const foldedOf = (items: Item[]): Item[] =>
  items.filter((item) => item.kind === "reasoning" || (item.kind === "tool" && !item.call.approval && !item.call.questions?.length && !opensItself(item.call)));

const ENDS = new Map([
  ["failed", "failed"],
  ["timeout", "timed out"],
  ["unknown", "unknown"],
  ["cancelled", "stopped"],
]);

/** For how long tools ran: the calls of one round run beside each other. */
function timeOf(calls: Call[]): number {
  const longest = new Map<number | undefined, number>();
  for (const { round, durationMs = 0 } of calls) longest.set(round, Math.max(longest.get(round) ?? 0, durationMs));
  return [...longest.values()].reduce((sum, time) => sum + time, 0);
}

/** What was done, in one line: "3 tools · 5.2 s · 1 failed". The time is that of the tools. */
export function summaryOf(items: Item[]): string {
  const calls = callsOf(items).filter(answered);
  const ends = [...ENDS].map(([status, word]) => [calls.filter((call) => call.status === status).length, word] as const);
  const reasoned = items.some(({ kind }) => kind === "reasoning");
  return [
    ...(reasoned ? ["Reasoning"] : []),
    ...(calls.length ? [`${calls.length} ${calls.length === 1 ? "tool" : "tools"}`, duration(timeOf(calls))] : []),
    ...ends.flatMap(([count, word]) => (count ? [`${count} ${word}`] : [])),
  ].join(" · ");
}

/** The call that is shown while it runs, and how many others do. */
export function runningOf(items: Item[]): { item: ToolItem; others: number } | null {
  const open = items.filter((item): item is ToolItem => item.kind === "tool" && !answered(item.call));
  const item = open.find(({ call }) => call.status === "running") ?? open[0];
  return item ? { item, others: open.length - 1 } : null;
}

const MOST_ARGUMENT = 60;

/** The argument by which a person knows what a call is about: the first that is a short text or a number. */
export function mainArgument(call: Call): string {
  const values = typeof call.arguments === "object" && call.arguments ? Object.values(call.arguments) : [];
  const value = values.find((each) => typeof each === "number" || (typeof each === "string" && each.trim()));
  const text = visible(String(value ?? "")).replace(/\s+/g, " ").trim();
  return text.length > MOST_ARGUMENT ? `${text.slice(0, MOST_ARGUMENT - 1)}…` : text;
}

/** "get_weather · Paris", and how many others run. */
export function runningLine({ item: { call }, others }: { item: ToolItem; others: number }): string {
  const more = others ? [`and ${others} more`] : [];
  return [toolLabel(call), mainArgument(call), ...more].filter(Boolean).join(" · ");
}
