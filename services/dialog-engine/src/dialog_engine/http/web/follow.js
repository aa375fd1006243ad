/** One turn's events, and what else is asked for, whatever the connection does. */

import { ApiError } from "./api.js";
import { readEvents, StreamBroken } from "./sse.js";

const IDLE_MS = 45_000; // three of the server's pings
const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;
const UNNOTICED_MS = 1_500; // who is back by then need not know that the connection was away
const MORE_TRIES = 5; // some ten seconds: as long as an engine takes to start again
const PASSING = new Set([0, 408, 429]); // not reached, too slow, too many

/**
 * Follows a turn to its end and says how it went: "done" when its last event was seen, "gone" when the server has
 * nothing more to send and the stored messages are the truth.
 *
 * `response` is an open stream to begin with, or null. A stream that ends before that is asked for again after the last
 * event id: when the server has said farewell, after the time that it asked for; when it broke, with exponential
 * back-off; for as long as `signal` allows. Throws an ApiError when the server refuses, AbortError when `signal` fires,
 * and whatever `onEvent` throws.
 */
export async function follow({ api, turnId, response, lastEventId = null, signal, onEvent, onConnection }) {
  const absence = new Absence(() => onConnection("reconnecting"));
  try {
    for (let attempt = 0; ; attempt += 1) {
      let delay = null;
      try {
        response ??= await api.events(turnId, lastEventId, signal);
        if (response.status === 204) return "gone";
        absence.end();
        onConnection("live");
        for await (const event of readEvents(response, IDLE_MS, (ms) => (delay = ms))) {
          attempt = 0;
          lastEventId = event.id ?? lastEventId;
          onEvent(event);
          if (event.type === "done") return "done";
        }
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof ApiError && error.status === 404) return "gone";
        if (!isPassing(error)) throw error;
      }
      response = null;
      absence.begin();
      await pause(delay ?? backOff(attempt), signal);
    }
  } finally {
    absence.end();
  }
}

/** What `ask()` brings; while it fails for what may pass it is asked again, a few times. Throws what it throws at last. */
export async function patiently(ask, signal) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await ask();
    } catch (error) {
      signal.throwIfAborted();
      if (!isPassing(error) || attempt === MORE_TRIES) throw error;
    }
    await pause(backOff(attempt), signal);
  }
}

/** The time without a connection; it is told of when it has become noticeable. */
class Absence {
  #timer = null;
  #onNoticed;

  constructor(onNoticed) {
    this.#onNoticed = onNoticed;
  }

  begin() {
    this.#timer ??= setTimeout(this.#onNoticed, UNNOTICED_MS);
  }

  end() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }
}

/** Whether trying again may help. An error of the page itself is not such a one, and must come to light. */
const isPassing = (error) =>
  error instanceof StreamBroken || (error instanceof ApiError && (PASSING.has(error.status) || error.status >= 500));

/** Half of the delay is fixed and half is random, so that many pages do not come back at the same instant. */
export const backOff = (attempt, random = Math.random) =>
  Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** attempt) * (0.5 + random() / 2);

/** Waits, but not past the moment when the browser says that the network is back. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const finish = () => {
      clearTimeout(timer);
      removeEventListener("online", finish);
      signal.removeEventListener("abort", finish);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(finish, ms);
    addEventListener("online", finish);
    signal.addEventListener("abort", finish);
    if (signal.aborted) finish();
  });
}
