/** Waits between attempts. */

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;

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
