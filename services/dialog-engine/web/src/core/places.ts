/**
 * Places for connections that stay open. A browser opens six at a time to one engine, for all its tabs: three may follow
 * turns and one has the stream of all conversations (`feed.ts`), so that two are left for all that is short.
 *
 * Nothing of anybody passes through this: the names of the locks are the same for all people who use the browser.
 */

const FOLLOWING = ["callstream.place.1", "callstream.place.2", "callstream.place.3"];
/** How long a tab may be hidden before it gives its place back. */
const HIDDEN_MS = 10_000;
/** A place that is free is given sooner than this. */
export const AT_ONCE_MS = 200;

/** A place that is taken: `lost` fires when it is to be given back, and `leave` gives it back. */
export interface Place {
  lost: AbortSignal;
  leave: () => void;
}

export class Places {
  /** Another tab, which is seen, wants a place. */
  #wanted = new BroadcastChannel("callstream.places");

  /** A place from which a turn is followed, as soon as this tab is to be seen and there is one. Rejects when `signal` fires. */
  async take(signal: AbortSignal): Promise<Place> {
    await shown(signal);
    const wanted = setTimeout(() => this.#wanted.postMessage(null), AT_ONCE_MS);
    try {
      return this.#held(await lock(FOLLOWING, signal));
    } finally {
      clearTimeout(wanted);
    }
  }

  /** It is lost when the tab has been hidden for long, or when it is hidden and another one wants a place. */
  #held(free: () => void): Place {
    const [lost, left] = [new AbortController(), new AbortController()];
    const { signal } = left;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const lose = () => document.hidden && lost.abort();
    const look = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(lose, HIDDEN_MS);
    };
    this.#wanted.addEventListener("message", lose, { signal });
    document.addEventListener("visibilitychange", look, { signal });
    look();
    const leave = () => {
      clearTimeout(timer);
      left.abort();
      free();
    };
    return { lost: lost.signal, leave };
  }
}

/** Resolves once the tab has not been hidden for long. */
async function shown(signal: AbortSignal): Promise<void> {
  while (document.hidden) {
    await new Promise<void>((resolve, reject) => {
      document.addEventListener("visibilitychange", () => resolve(), { once: true, signal });
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }
}

/** Takes the first of these locks that is free, and returns how to free it. Without locks (no HTTPS) nothing is counted. */
async function lock(names: string[], signal: AbortSignal): Promise<() => void> {
  signal.throwIfAborted();
  const { locks } = navigator as { locks?: LockManager };
  if (!locks) return () => {};
  const others = new AbortController();
  const given = names.map(
    (name) =>
      new Promise<() => void>((resolve, reject) => {
        const end = AbortSignal.any([signal, others.signal]);
        const held = () => (end.aborted ? undefined : new Promise<void>((free) => resolve(free)));
        locks.request(name, { signal: end }, held).catch(reject);
      }),
  );
  const first = await Promise.race(given);
  others.abort();
  // Another one may have been given in the same moment.
  for (const each of given) each.then((free) => free !== first && free()).catch(() => {});
  return first;
}
