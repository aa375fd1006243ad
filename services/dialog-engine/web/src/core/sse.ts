/** Server-Sent Events read from a fetch response: what EventSource does, but with POST, headers and an idle limit. */

import { createParser, type EventSourceMessage } from "eventsource-parser";
import type { StreamEvent } from "./types";

/** The order of event ids, `<epoch>-<seq>`: both parts are numbers, and a later epoch wins. */
export function compareIds(left: string, right: string): number {
  const [leftEpoch = 0, leftSeq = 0] = left.split("-").map(Number);
  const [rightEpoch = 0, rightSeq = 0] = right.split("-").map(Number);
  return leftEpoch - rightEpoch || leftSeq - rightSeq;
}

/** The connection broke, or was silent for too long. */
export class StreamBroken extends Error {}

/**
 * The events of a response as they arrive, with `data` parsed from JSON. When the server closes the stream, `onEnd(ms)` gets
 * the delay that it asked for, or null, and the generator ends. When `lost` fires it lets the stream go, and ends. Throws
 * StreamBroken when the connection breaks, or when nothing, not even a ping, arrives for `idleMs`.
 */
export async function* readEvents(
  response: Response,
  idleMs: number,
  onEnd: (ms: number | null) => void,
  lost?: AbortSignal,
): AsyncGenerator<StreamEvent, void> {
  if (!response.body) return onEnd(null);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const read: EventSourceMessage[] = [];
  let retry: number | null = null;
  const parser = createParser({ onEvent: (event) => read.push(event), onRetry: (ms) => (retry = ms) });
  const letGo = () => reader.cancel().catch(() => {});
  const broke = (cause?: unknown) => new StreamBroken(`the stream broke, or was silent for ${idleMs} ms`, { cause });
  let silent: ReturnType<typeof setTimeout> | undefined;
  lost?.addEventListener("abort", letGo);
  try {
    for (;;) {
      const idle = new Promise<never>((_, reject) => (silent = setTimeout(() => reject(broke()), idleMs)));
      const next = reader.read().catch((cause) => Promise.reject(broke(cause)));
      const { value, done } = await Promise.race([next, idle]);
      clearTimeout(silent);
      if (done) return onEnd(retry);
      parser.feed(value);
      for (const { id = null, event = "", data } of read.splice(0)) yield { id, type: event, data: JSON.parse(data) };
    }
  } finally {
    clearTimeout(silent);
    lost?.removeEventListener("abort", letGo);
    letGo();
  }
}
