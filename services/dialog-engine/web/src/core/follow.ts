/** Follows the events of one turn over any number of connections, and retries requests that fail for a while. */

import { type Api, ApiError } from "./api";
import { backOff, pause } from "./pause";
import { type Places, placeOrEnd } from "./places";
import { readEvents, StreamBroken } from "./sse";
import type { State, StreamEvent, TurnToFollow } from "./types";

const IDLE_MS = 45_000; // three pings of the server
/** How long a tab without a place reads what has come: an approval is asked for there too, and the connection is free again. */
const GLANCE_MS = 300;
const UNNOTICED_MS = 1_500; // a shorter loss of the connection is not shown
const TRANSIENT: ReadonlySet<number> = new Set([0, 408, 429]); // not reached, too slow, too many requests

export interface Following extends TurnToFollow {
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
 * `response` is an open stream to begin with, or null. A stream is open only while this tab has a place for it. A stream that ends too early is requested again after the last
 * event id: after the delay that the server asked for, or with exponential back-off when the connection broke; until
 * `signal` fires. Throws an ApiError when the server refuses, AbortError when `signal` fires, and what `onEvent` throws.
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
  const absence = new Absence(() => onConnection("reconnecting"));
  const take = (event: StreamEvent): boolean => {
    lastEventId = event.id ?? lastEventId;
    onEvent(event);
    return event.type === "done";
  };
  const glance = async () => {
    const response = await api.events(turnId, lastEventId, signal);
    if (response.status === 204) return false;
    for await (const event of readEvents(response, IDLE_MS, () => {}, AbortSignal.timeout(GLANCE_MS))) if (take(event)) return false;
    return true;
  };
  const letGo = () => {
    response?.body?.cancel();
    response = null;
    onConnection("waiting");
  };
  try {
    for (let attempt = 0; ; attempt += 1) {
      let delay: number | null = null;
      const place = await placeOrEnd(places.take(signal), glance, letGo, signal);
      if (!place) return "gone";
      const { lost } = place;
      try {
        response ??= await api.events(turnId, lastEventId, AbortSignal.any([signal, lost]));
        if (response.status === 204) return "gone";
        absence.end();
        onConnection("live");
        for await (const event of readEvents(response, IDLE_MS, (ms) => (delay = ms), lost)) {
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
      absence.begin();
      await pause(delay ?? backOff(attempt), signal);
    }
  } finally {
    absence.end();
  }
}

/**
 * The result of `request()`, which is repeated for as long as it fails with a transient error. `onTrouble(error)` is
 * called from the second failure on. Throws any other error.
 */
export async function withRetries<T>(
  request: () => Promise<T>,
  signal: AbortSignal,
  onTrouble: (error: unknown) => void,
): Promise<T> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await request();
    } catch (error) {
      signal.throwIfAborted();
      if (!isTransient(error)) throw error;
      if (attempt > 0) onTrouble(error);
    }
    await pause(backOff(attempt), signal);
  }
}

/** The time without a connection; `onNoticed` is called when it lasts long enough to be shown. */
class Absence {
  #timer: ReturnType<typeof setTimeout> | undefined;
  #onNoticed: () => void;

  constructor(onNoticed: () => void) {
    this.#onNoticed = onNoticed;
  }

  begin(): void {
    this.#timer ??= setTimeout(this.#onNoticed, UNNOTICED_MS);
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}

/** Whether trying again may help. Errors of the page itself are not transient: they must be shown. */
export const isTransient = (error: unknown): boolean =>
  error instanceof StreamBroken || (error instanceof ApiError && (TRANSIENT.has(error.status) || error.status >= 500));
