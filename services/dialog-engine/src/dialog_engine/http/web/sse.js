/** Server-Sent Events read from a fetch response: what EventSource does, but with POST, headers and an idle limit. */

/**
 * An incremental parser of the event-stream format.
 * `push` takes text cut anywhere and returns the events completed by it, as `{id, type, data}`;
 * `id` is null where the event carries none, `data` is a string.
 */
export class SseParser {
  /** How long to wait before coming back, in milliseconds, as far as the server has said so. */
  retry = null;
  #rest = "";
  #endedWithCr = false;
  #event = blank();

  push(chunk) {
    if (chunk === "") return [];
    // A CRLF cut in two is one line end: the LF that follows a CR at a chunk's end is dropped.
    const text = this.#rest + (this.#endedWithCr && chunk.startsWith("\n") ? chunk.slice(1) : chunk);
    this.#endedWithCr = chunk.endsWith("\r");
    const lines = text.split(/\r\n|\r|\n/);
    this.#rest = lines.pop();
    return lines.map((line) => this.#line(line)).filter((event) => event !== null);
  }

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

const blank = () => ({ id: null, type: "", data: [] });

/** The connection broke, or nothing came for so long that it must have. */
export class StreamBroken extends Error {}

/**
 * The events of a response as they arrive, with `data` parsed from JSON.
 * Ends when the server closes the stream, after a call of `onEnd(ms)`: when it wants to be asked again, or null. Throws
 * StreamBroken when it breaks, or when nothing, not even a ping, came for `idleMs`.
 */
export async function* readEvents(response, idleMs, onEnd) {
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

async function within(ms, promise) {
  let timer;
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
