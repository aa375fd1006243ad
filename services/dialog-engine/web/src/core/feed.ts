/**
 * What changes in a person's conversations, at any engine. One tab of the browser has the stream of it, and passes on
 * what comes to the other tabs of the same person.
 */

import { type Api, ApiError } from "./api";
import { backOff, isTransient, pause } from "./follow";
import { readEvents } from "./sse";
import type { ServerState, Session, StreamEvent } from "./types";

/** A stream that is silent for so long is dead: three pings of the server. */
const IDLE_MS = 45_000;
/** How often the tab with the stream says that it lives, and after how much silence another one takes its place. */
const ALIVE_MS = 8_000;
const SILENT_MS = 20_000;

export type FeedEvent =
  | { type: "session"; session: Session }
  | { type: "deleted"; sessionId: string }
  | { type: "tools"; servers: ServerState[] }
  | { type: "reset" };

/** `live`: the stream is open, so that every change comes. */
type Passed = { place: string | null; event: FeedEvent | null; live: boolean };

export class Feed {
  /** Whether every change comes by itself: then nothing needs to be asked for. */
  live = false;
  /** The id of the last event that this tab knows, wherever it came from. */
  #place: string | null = null;
  /** Null before `follow`, and after the engine has refused: once it does not any more, follow again. */
  following: AbortController | null = null;

  constructor(private readonly api: Pick<Api, "sessionEvents">, private readonly onEvent: (event: FeedEvent) => void) {}

  /** Follows the conversations of the person with this digest. Without one, or without locks, a tab has its own stream. */
  follow(digest: string | null): void {
    this.following?.abort();
    this.following = new AbortController();
    this.#place = null;
    const { signal } = this.following;
    const { locks } = navigator as { locks?: LockManager };
    if (digest === null || !locks) this.#read((passed) => this.#take(passed), signal);
    else this.#share(`callstream.feed.${digest}`, locks, signal);
  }

  /** Has the stream while this tab has the lock of that name, and otherwise what the tab with the lock passes on. */
  async #share(name: string, locks: LockManager, signal: AbortSignal): Promise<void> {
    const others = new BroadcastChannel(name);
    let heardAt = Date.now();
    const hear = (passed: Passed) => {
      heardAt = Date.now();
      this.#take(passed);
    };
    others.addEventListener("message", ({ data }: MessageEvent<Passed>) => hear(data));
    for (let steal = false; !signal.aborted; ) {
      const [silent, lost] = [new AbortController(), new AbortController()];
      const look = setInterval(() => Date.now() - heardAt > SILENT_MS && silent.abort(), ALIVE_MS);
      const waits = AbortSignal.any([signal, silent.signal]);
      const lead = async () => {
        clearInterval(look);
        const pass = (passed: Passed) => {
          others.postMessage(passed);
          hear(passed);
        };
        await this.#read(pass, AbortSignal.any([signal, lost.signal]));
      };
      try {
        await locks.request(name, steal ? { steal } : { signal: waits }, lead);
      } catch {
        // The tab with the lock was silent, or another tab took the lock from this one.
      }
      steal = silent.signal.aborted;
      heardAt = Date.now();
      clearInterval(look);
      lost.abort();
    }
    others.close();
  }

  /** Reads the stream, over any number of connections, until `signal` fires or the engine refuses. */
  async #read(pass: (passed: Passed) => void, signal: AbortSignal): Promise<void> {
    let live = false;
    const say = () => pass({ place: this.#place, event: null, live });
    const alive = setInterval(say, ALIVE_MS);
    try {
      for (let attempt = 0; !signal.aborted; attempt += 1) {
        let delay: number | null = null;
        try {
          const response = await this.api.sessionEvents(this.#place, signal);
          for await (const event of readEvents(response, IDLE_MS, (ms) => (delay = ms), signal)) {
            attempt = 0;
            live = true;
            pass({ place: event.id, event: known(event), live });
          }
        } catch (error) {
          const status = error instanceof ApiError ? error.status : 0;
          if (status === 400) this.#place = null;
          // An engine of an earlier release has no such stream. Without a key or a sign-in there is nothing to follow.
          else if (!isTransient(error) && status !== 404 && !signal.aborted) return this.#end();
        }
        live = false;
        if (!signal.aborted) say();
        await pause(delay ?? backOff(attempt), signal).catch(() => {});
      }
    } finally {
      clearInterval(alive);
    }
  }

  #end(): void {
    this.following?.abort();
    this.following = null;
    this.live = false;
  }

  #take({ place, event, live }: Passed): void {
    this.#place = place ?? this.#place;
    this.live = live;
    if (event) this.onEvent(event);
  }
}

const KNOWN: ReadonlySet<string> = new Set(["session", "deleted", "tools", "reset"]);

/** The event as the page knows it; null for one of a later engine. */
const known = ({ type, data }: StreamEvent): FeedEvent | null =>
  KNOWN.has(type) ? { type, ...(type === "session" ? { session: data } : data) } : null;
