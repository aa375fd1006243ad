// @ts-check
/** Server-Sent Events read from a fetch response: what EventSource does, but with POST, headers and an idle limit. */

/**
 * An incremental parser of the event-stream format.
 * `push` takes text cut anywhere and returns the events completed by it, as `{id, type, data}`;
 * `id` is null where the event carries none, `data` is a string.
 */
export class SseParser {
  /** @type {number | null} How long to wait before reconnecting, in milliseconds, if the server has said so. */
  retry = null;
  #rest = "";
  #endedWithCr = false;
  #event = blank();

  /** @param {string} chunk @returns {StreamEvent<string>[]} */
  push(chunk) {
    if (chunk === "") return [];
    // A CRLF cut in two is one line end: the LF that follows a CR at a chunk's end is dropped.
    const text = this.#rest + (this.#endedWithCr && chunk.startsWith("\n") ? chunk.slice(1) : chunk);
    this.#endedWithCr = chunk.endsWith("\r");
    const lines = text.split(/\r\n|\r|\n/);
    this.#rest = lines.pop() ?? "";
    return lines.map((line) => this.#line(line)).filter((event) => event !== null);
  }

  /** @param {string} line @returns {StreamEvent<string> | null} */
  #line(line) {
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

  #dispatch() {
    const { id, type, data } = this.#event;
    this.#event = blank();
    return data.length ? { id, type: type || "message", data: data.join("\n") } : null;
  }
}

/** @returns {{id: string | null, type: string, data: string[]}} */
const blank = () => ({ id: null, type: "", data: [] });

/**
 * The order of event ids, `<epoch>-<seq>`: both parts are numbers, and a later epoch wins.
 * @param {string} left
 * @param {string} right
 */
export function compareIds(left, right) {
  const [leftEpoch, leftSeq] = left.split("-").map(Number);
  const [rightEpoch, rightSeq] = right.split("-").map(Number);
  return leftEpoch - rightEpoch || leftSeq - rightSeq;
}

/** The connection broke, or was silent for too long. */
export class StreamBroken extends Error {}

/**
 * The events of a response as they arrive, with `data` parsed from JSON.
 * When the server closes the stream, `onEnd(ms)` gets the delay that it asked for, or null, and the generator ends.
 * Throws StreamBroken when the connection breaks, or when nothing, not even a ping, arrives for `idleMs`.
 * @param {Response} response
 * @param {number} idleMs
 * @param {(ms: number | null) => void} onEnd
 * @returns {AsyncGenerator<StreamEvent, void>}
 */
export async function* readEvents(response, idleMs, onEnd) {
  if (!response.body) return onEnd(null);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new SseParser();
  try {
    for (;;) {
      const { value, done } = await within(idleMs, reader.read());
      if (done) return onEnd(parser.retry);
      for (const event of parser.push(value)) yield { ...event, data: JSON.parse(event.data) };
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * @template T
 * @param {number} ms
 * @param {Promise<T>} promise
 */
async function within(ms, promise) {
  /** @type {number | undefined} */
  let timer;
  /** @type {Promise<never>} */
  const limit = new Promise((_, reject) => {
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
