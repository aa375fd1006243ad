/** Follows the events of one turn over any number of connections, and tries again what fails for a while. */

import { type Api, ApiError } from "./api";
import { AT_ONCE_MS, type Places } from "./places";
import { readEvents, StreamBroken } from "./sse";
import type { State, StreamEvent, TurnToFollow } from "./types";

const IDLE_MS = 45_000; // three pings of the server
/** How long a tab that is seen waits between two looks at a turn that it cannot follow now, in ms. */
const LOOK_MS = 3_000;
/** How long it reads what has come: an approval is asked for there too, and the connection is free again. */
const GLANCE_MS = 300;
const [FIRST_DELAY_MS, LONGEST_DELAY_MS] = [400, 15_000];
const UNNOTICED_MS = 1_500; // a shorter loss of the connection is not shown
const TRANSIENT: ReadonlySet<number> = new Set([0, 408, 429]); // not reached, too slow, too many requests

interface Following extends TurnToFollow {
  api: Api;
  places: Pick<Places, "take">;
  lastEventId?: string | null;
  signal: AbortSignal;
  onEvent: (event: StreamEvent) => void;
  onConnection: (connection: State["connection"]) => void;
}

/**
 * Follows a turn to its end. Returns "done" when its last event was seen, "gone" when the server has nothing more to
 * send and the stored messages are to be read instead.
 *
 * `response` is an open stream to begin with, or null. A stream is open only while this tab has a place for it; otherwise
 * a tab that is seen looks now and then. One that ends too early is requested again after the last event id: after the delay
 * that the server asked for, or with exponential back-off when the connection broke; until `signal` fires. Throws an ApiError
 * when the server refuses, AbortError when `signal` fires, and what `onEvent` throws.
 */
export async function follow({
  api,
  places,
  turnId,
  response,
  lastEventId = null,
  signal,
  onEvent,
  onConnection,
}: Following): Promise<"done" | "gone"> {
  let absent: ReturnType<typeof setTimeout> | undefined;
  const take = (event: StreamEvent): boolean => {
    lastEventId = event.id ?? lastEventId;
    onEvent(event);
    return event.type === "done";
  };
  const glance = async () => {
    const seen = await api.events(turnId, lastEventId, signal);
    if (seen.status === 204) return false;
    const soon = AbortSignal.timeout(GLANCE_MS);
    for await (const event of readEvents(seen, IDLE_MS, () => {}, soon)) if (take(event)) return false;
    return true;
  };
  try {
    for (let attempt = 0; ; attempt += 1) {
      let delay: number | null = null;
      const taken = places.take(signal);
      let place = await Promise.race([taken, pause(AT_ONCE_MS, signal)]);
      if (!place) {
        response?.body?.cancel();
        response = null;
        onConnection("waiting");
      }
      while (!place) {
        place = await Promise.race([taken, pause(LOOK_MS, signal)]);
        if (place || document.hidden || (await glance().catch(() => true))) continue;
        taken.then(({ leave }) => leave()).catch(() => {});
        return "gone";
      }
      const { lost } = place;
      const over = AbortSignal.any([signal, lost]);
      try {
        response ??= await api.events(turnId, lastEventId, over);
        if (response.status === 204) return "gone";
        clearTimeout(absent);
        absent = undefined;
        onConnection("live");
        for await (const event of readEvents(response, IDLE_MS, (ms) => (delay = ms), over)) {
          attempt = 0;
          if (take(event)) return "done";
        }
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof ApiError && error.status === 404) return "gone";
        if (!isTransient(error) && !lost.aborted) throw error;
      } finally {
        place.leave();
      }
      response = null;
      if (lost.aborted) continue;
      absent ??= setTimeout(() => onConnection("reconnecting"), UNNOTICED_MS);
      await pause(delay ?? backOff(attempt), signal);
    }
  } finally {
    clearTimeout(absent);
    response?.body?.cancel().catch(() => {}); // it was not read yet
  }
}

/**
 * The result of `request()`, which is repeated for as long as it fails with a transient error. `onTrouble(error)` is
 * called for those but the first `silent` ones. Throws any other error.
 */
export async function withRetries<T>(
  request: () => Promise<T>,
  signal: AbortSignal,
  onTrouble: (error: unknown) => void,
  silent = 1,
): Promise<T> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await request();
    } catch (error) {
      signal.throwIfAborted();
      if (!isTransient(error)) throw error;
      if (attempt >= silent) onTrouble(error);
    }
    await pause(backOff(attempt), signal);
  }
}

/** Whether trying again may help. Errors of the page itself are not transient: they must be shown. */
export const isTransient = (error: unknown): boolean =>
  error instanceof StreamBroken || (error instanceof ApiError && (TRANSIENT.has(error.status) || error.status >= 500));

/** The delay in ms before the next attempt. Half of it is random, so that many pages do not reconnect at the same time. */
export const backOff = (attempt: number, random: () => number = Math.random): number =>
  Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** attempt) * (0.5 + random() / 2);

/** Waits, at most until the browser says that the network is back. Rejects when `signal` fires. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
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

/** Ends every pause: what waits to try again tries now. */
export const tryNow = (): boolean => dispatchEvent(new Event("online"));
