/** One turn's events, whatever the connection does. */

import { ApiError } from "./api.js";
import { readEvents, StreamBroken } from "./sse.js";

const IDLE_MS = 45_000; // three of the server's pings
const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;
const PASSING = new Set([0, 408, 429]); // not reached, too slow, too many

/**
 * Follows a turn to its end and says how it went: "done" when its last event was seen, "gone" when the server has
 * nothing more to send and the stored messages are the truth.
 *
 * `response` is an open stream to begin with, or null. A stream that breaks is asked for again after the last event id,
 * with exponential back-off, for as long as `signal` allows. Throws an ApiError when the server refuses, AbortError
 * when `signal` fires, and whatever `onEvent` throws.
 */
export async function follow({ api, turnId, response, lastEventId = null, signal, onEvent, onConnection }) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      response ??= await api.events(turnId, lastEventId, signal);
      if (response.status === 204) return "gone";
      onConnection("live");
      for await (const event of readEvents(response, IDLE_MS)) {
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
    onConnection("reconnecting");
    await pause(backOff(attempt), signal);
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
