/** Server-Sent Events read from a fetch response: what EventSource does, but with POST, headers and an idle limit. */

import type { StreamEvent } from "./types";

interface Unfinished {
  id: string | null;
  type: string;
  data: string[];
}

/**
 * An incremental parser of the event-stream format.
 * `push` takes text cut anywhere and returns the events completed by it, as `{id, type, data}`;
 * `id` is null where the event carries none, `data` is a string.
 */
export class SseParser {
  /** How long to wait before reconnecting, in milliseconds, if the server has said so. */
  retry: number | null = null;
  #rest = "";
  #endedWithCr = false;
  #event = blank();

  push(chunk: string): StreamEvent<string>[] {
    if (chunk === "") return [];
    // A CRLF cut in two is one line end: the LF that follows a CR at a chunk's end is dropped.
    const text = this.#rest + (this.#endedWithCr && chunk.startsWith("\n") ? chunk.slice(1) : chunk);
    this.#endedWithCr = chunk.endsWith("\r");
    const lines = text.split(/\r\n|\r|\n/);
    this.#rest = lines.pop() ?? "";
    return lines.map((line) => this.#line(line)).filter((event) => event !== null);
  }

  #line(line: string): StreamEvent<string> | null {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#event.data.push(value);
    else if (field === "event") this.#event.type = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retry = Number(value);
    else if (field === "id" && !value.includes("\0")) this.#event.id = value || null;
    return null;
  }

  #dispatch(): StreamEvent<string> | null {
    const { id, type, data } = this.#event;
    this.#event = blank();
    return data.length ? { id, type: type || "message", data: data.join("\n") } : null;
  }
}

const blank = (): Unfinished => ({ id: null, type: "", data: [] });

/** The order of event ids, `<epoch>-<seq>`: both parts are numbers, and a later epoch wins. */
export function compareIds(left: string, right: string): number {
  const [leftEpoch = 0, leftSeq = 0] = left.split("-").map(Number);
  const [rightEpoch = 0, rightSeq = 0] = right.split("-").map(Number);
  return leftEpoch - rightEpoch || leftSeq - rightSeq;
}

/** The connection broke, or was silent for too long. */
export class StreamBroken extends Error {}

/**
 * The events of a response as they arrive, with `data` parsed from JSON.
 * When the server closes the stream, `onEnd(ms)` gets the delay that it asked for, or null, and the generator ends.
 * When `lost` fires it lets the stream go, and ends. Throws StreamBroken when the connection breaks, or when nothing, not even a ping, arrives for `idleMs`.
 */
export async function* readEvents(
  response: Response,
  idleMs: number,
  onEnd: (ms: number | null) => void,
  lost?: AbortSignal,
): AsyncGenerator<StreamEvent, void> {
  if (!response.body) return onEnd(null);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new SseParser();
  const letGo = () => reader.cancel().catch(() => {});
  lost?.addEventListener("abort", letGo);
  try {
    for (;;) {
      const { value, done } = await within(idleMs, reader.read());
      if (done) return onEnd(parser.retry);
      for (const event of parser.push(value)) yield { ...event, data: JSON.parse(event.data) };
    }
  } finally {
    lost?.removeEventListener("abort", letGo);
    letGo();
  }
}

async function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing received for ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, limit]);
  } catch (cause) {
    throw new StreamBroken("the stream broke", { cause });
  } finally {
    clearTimeout(timer);
  }
}
